"""The views of the live site with Channels."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from channels.layers import get_channel_layer
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.layers import group_messages

# Along with the views comes what they note in a stream's diary when Django is told of an error.
from .urls import connections, ping

#: Seconds; shorter than what lies between two messages of a test, most of the time.
INTERVAL: Final = 0.005


async def tasks(request: HttpRequest) -> HttpResponse:
    """Tell what runs on the server's loop; this request is among it."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return JsonResponse(sorted(getattr(coroutine, "__qualname__", "?") for coroutine in coroutines), safe=False)


async def send(request: HttpRequest, room: str) -> HttpResponse:
    """Send a message to a group, from the process of the server."""
    await get_channel_layer().group_send(room, {"type": request.GET["type"], "text": request.GET["text"]})
    return HttpResponse()


@sse_keepalive(interval=INTERVAL)
async def messages(request: HttpRequest, room: str) -> AsyncGenerator[ServerSentEvent]:
    """Stream what is sent to a group, after an event that tells that nothing is missed from now on."""
    async with group_messages(room) as received:
        yield ServerSentEvent("joined", event="ready")
        async for message in received:
            yield ServerSentEvent(message["text"])


urlpatterns = [
    path("ping", ping),
    path("connections", connections),
    path("tasks", tasks),
    path("send/<room>", send),
    path("view/<room>", messages),
]
