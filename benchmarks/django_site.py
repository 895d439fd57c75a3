"""The Django site that ``benchmarks.server`` measures: one path per wrapper and kind of chunk."""

from collections.abc import AsyncGenerator

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import path

from benchmarks.sources import EVENTS, SOURCES, Chunk
from benchmarks.wrappers import task_per_step
from sse_keepalive.decorators import sse_keepalive

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DEBUG=False,
    LOGGING_CONFIG=None,
    MIDDLEWARE=[],
    ROOT_URLCONF=__name__,
    SECRET_KEY="benchmark",
    SSE_KEEPALIVE_INTERVAL=15.0,
)


def upstream(request: HttpRequest, chunk: str) -> AsyncGenerator[Chunk]:
    """Return as many chunks as the client asked for, of the type that it asked for."""
    return SOURCES[chunk](EVENTS[request.GET["type"]], int(request.GET["chunks"]))


async def bare(request: HttpRequest, chunk: str) -> StreamingHttpResponse:
    """Stream without keep-alives."""
    return StreamingHttpResponse(upstream(request, chunk), content_type="text/event-stream")


async def task(request: HttpRequest, chunk: str) -> StreamingHttpResponse:
    """Stream with a task for each step."""
    stream = task_per_step(upstream(request, chunk), settings.SSE_KEEPALIVE_INTERVAL)
    return StreamingHttpResponse(stream, content_type="text/event-stream")


@sse_keepalive
async def ours(request: HttpRequest, chunk: str) -> AsyncGenerator[Chunk]:
    """Stream with this package."""
    return upstream(request, chunk)


urlpatterns = [
    path("bare/<chunk>", bare),
    path("task/<chunk>", task),
    path("ours/<chunk>", ours),
]

application = get_asgi_application()
