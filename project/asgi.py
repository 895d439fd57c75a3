"""The demo site as an ASGI application: a consumer of Channels at one address, Django at all others."""

import os
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

django_application: Any = get_asgi_application()  # before what needs the apps to be there

from project.orders import OrderConsumer  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("orders/consumer/", AuthMiddlewareStack(OrderConsumer.as_asgi()), name="orders-consumer"),
                re_path("", django_application),
            ]
        )
    }
)
