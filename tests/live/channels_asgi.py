"""The application of the live site with Channels: its consumers, and Django for all other paths."""

from typing import Any, Final
from urllib.parse import parse_qs

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path

from .asgi import Message, Receive, Send, Watch, django
from .channels_consumers import Doorkeeper, Player, Room
from .channels_urls import INTERVAL
from .play import Diary

#: The types of Django know only views in such a list.
APPLICATIONS: Final[list[tuple[str, Any]]] = [
    ("consumer/<room>", Room.as_asgi(interval=INTERVAL)),
    ("alive", Player.as_asgi(interval=0.1)),
    ("silent", Player.as_asgi(interval=60)),
    ("guarded", Doorkeeper.as_asgi(interval=60)),
    ("<path:rest>", django),
]

consumers = URLRouter([path(route, application) for route, application in APPLICATIONS])


async def watched(scope: Message, receive: Receive, send: Send) -> None:
    """Run the consumers; as :func:`tests.live.asgi.application` does, write down when the server blocks in `send`."""
    query: dict[str, Any] = parse_qs(scope["query_string"].decode())
    if "watch" not in query:
        await consumers(scope, receive, send)
        return
    watch = Watch(send, Diary.here(query["name"][0]))
    try:
        await consumers(scope, receive, watch.send)
    finally:
        watch.timer.cancel()


application = ProtocolTypeRouter({"http": watched})
