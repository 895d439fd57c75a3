"""The site that is measured: a stream for each name, and a way to switch it in the process that is asked."""

import asyncio
import time
from collections.abc import AsyncGenerator

from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.http import EventStreamResponse

application = get_asgi_application()

from sse_keepalive.models import Endpoint  # noqa: E402 - it needs the application


async def silent() -> AsyncGenerator[bytes]:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()
    yield b""


async def stream(request: HttpRequest, name: str) -> EventStreamResponse:
    """Stream nothing, under a name to be switched by."""
    return EventStreamResponse(silent(), request=request, endpoint=name)


@sse_keepalive
async def one_event(_request: HttpRequest) -> AsyncGenerator[bytes]:
    """Stream as little as a stream can."""
    yield b"data: 0123456789\n\n"


def switch(_request: HttpRequest, name: str, state: str) -> HttpResponse:
    """Set a state, and tell when that began, by the clock that all processes of the machine share."""
    began_at = time.monotonic()
    if not Endpoint.objects.filter(name=name).set_state(state):
        raise RuntimeError(f"{name} was not switched.")
    return HttpResponse(repr(began_at), content_type="text/plain")


urlpatterns = [
    path("one-event", one_event, name="one-event"),
    path("stream/<name>", stream),
    path("switch/<name>/<state>", switch),
]
