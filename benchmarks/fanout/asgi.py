"""The site that is measured: the same room, streamed by this package and by its peers, a path each."""

from collections.abc import AsyncGenerator
from importlib.util import find_spec
from typing import Any

from channels.layers import channel_layers
from channels.routing import URLRouter
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import URLPattern, URLResolver, include, path, re_path

django_application = get_asgi_application()

from sse_keepalive.consumers import EventStreamConsumer  # noqa: E402 - it needs the application
from sse_keepalive.decorators import sse_keepalive  # noqa: E402
from sse_keepalive.frames import ServerSentEvent  # noqa: E402
from sse_keepalive.layers import group_messages  # noqa: E402


@sse_keepalive
async def view(_request: HttpRequest, layer: str, room: str) -> AsyncGenerator[ServerSentEvent]:
    """Stream with this package, as a view."""
    async with group_messages(room, layer=layer) as messages:
        async for message in messages:
            yield ServerSentEvent(message["text"])


class Consumer(EventStreamConsumer):
    """Stream with this package, as a consumer with a handler."""

    async def get_groups(self) -> list[str]:
        """Join the room of the address."""
        return [self.scope["url_route"]["kwargs"]["room"]]

    async def room_message(self, message: dict[str, Any]) -> None:
        """Pass a message on."""
        await self.send_event(ServerSentEvent(message["text"]))


class CoreConsumer(Consumer):
    """The same on the one layer."""

    channel_layer_alias = "core"


class PubSubConsumer(Consumer):
    """The same on the other."""

    channel_layer_alias = "pubsub"


async def plain(_request: HttpRequest, layer: str, room: str) -> StreamingHttpResponse:
    """Stream as it is written by hand: a channel per client, and no keep-alives."""
    return StreamingHttpResponse(receive(layer, room), content_type="text/event-stream")


async def receive(layer: str, room: str) -> AsyncGenerator[str]:
    """Yield what comes to a channel of its own."""
    channel_layer = channel_layers[layer]
    channel = await channel_layer.new_channel()
    await channel_layer.group_add(room, channel)
    try:
        while True:
            message = await channel_layer.receive(channel)
            yield f"data: {message['text']}\n\n"
    finally:
        await channel_layer.group_discard(room, channel)


urlpatterns: list[URLPattern | URLResolver] = [
    path("view/<layer>/<room>", view),
    path("plain/<layer>/<room>", plain),
]
if find_spec("django_eventstream"):
    urlpatterns.append(
        path("eventstream/<room>", include("django_eventstream.urls"), {"format-channels": ["{room}"]}),
    )

# Consumers are no views, which the types of path() ask for.
_consumers: dict[str, Any] = {"core": CoreConsumer.as_asgi(), "pubsub": PubSubConsumer.as_asgi()}
_rest: Any = django_application

application = URLRouter(
    [*(path(f"consumer/{layer}/<room>", consumer) for layer, consumer in _consumers.items()), re_path("", _rest)]
)
