"""The Starlette site that ``benchmarks.server`` measures: the peer, sse-starlette."""

from typing import Final

from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from benchmarks.sources import EVENTS, SOURCES, Chunk

#: What it has to be given for the events of ``EVENTS``: it makes the event of text itself, and passes bytes through.
GIVEN: Final[dict[str, Chunk]] = {"str": "0123456789", "bytes": EVENTS["bytes"]}


async def peer(request: Request) -> EventSourceResponse:
    """Stream with sse-starlette as many chunks as the client asked for, of the type that it asked for."""
    upstream = SOURCES[request.path_params["chunk"]]
    chunk = GIVEN[request.query_params["type"]]
    return EventSourceResponse(upstream(chunk, int(request.query_params["chunks"])), ping=15)


application = Starlette(routes=[Route("/peer/{chunk}", peer)])
