"""The Starlette site that ``benchmarks.server`` measures: the peer, sse-starlette."""

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from benchmarks.sources import EVENTS, SOURCES


async def peer(request: Request) -> EventSourceResponse:
    """Stream with sse-starlette, which passes bytes through as they are, and makes an event of its own of text."""
    upstream = SOURCES[request.path_params["chunk"]]
    return EventSourceResponse(upstream(EVENTS["bytes"], int(request.query_params["chunks"])), ping=15)


application = Starlette(routes=[Route("/peer/{chunk}", peer)])
