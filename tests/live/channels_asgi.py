"""The application of the live site with Channels: its consumers, and Django for all other paths."""

from typing import Any, Final

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path

from .asgi import django, watched
from .channels_consumers import Doorkeeper, Player, Room
from .channels_urls import INTERVAL

#: The types of Django know only views in such a list.
APPLICATIONS: Final[list[tuple[str, Any]]] = [
    ("consumer/<room>", Room.as_asgi(interval=INTERVAL)),
    ("alive", Player.as_asgi(interval=0.1)),
    ("silent", Player.as_asgi(interval=60)),
    ("guarded", Doorkeeper.as_asgi(interval=60)),
    ("<path:rest>", django),
]

consumers = URLRouter([path(route, application) for route, application in APPLICATIONS])

application = ProtocolTypeRouter({"http": watched(consumers)})
