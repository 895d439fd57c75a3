"""Orders that everybody sees at once: the same stream as a view and as a consumer of Channels."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Final

from channels.layers import get_channel_layer
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from project.forms import OrderForm
from sse_keepalive.consumers import EventStreamConsumer
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.http import json_event
from sse_keepalive.layers import group_messages

#: The group of all boards, in every process.
BOARDS: Final = "orders"


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    """The page that shows orders as they are placed, and places them."""
    return render(request, "orders.html", {"form": OrderForm()})


@require_POST
async def place(request: HttpRequest) -> HttpResponse:
    """Tell every board, in whatever process its stream runs."""
    form = OrderForm(request.POST)
    if not form.is_valid():
        return HttpResponse(form.errors.as_text(), status=400, content_type="text/plain")
    order = {**form.cleaned_data, "at": timezone.now().isoformat(), "process": os.getpid()}
    layer: Any = get_channel_layer()
    await layer.group_send(BOARDS, {"type": "order.placed", "order": order})
    return redirect("orders")


@require_safe
@sse_keepalive
async def events(request: HttpRequest) -> AsyncIterator[str]:  # noqa: ARG001
    """The orders, from a view."""
    async with group_messages(BOARDS) as messages:
        yield greeting()
        async for message in messages:
            yield json_event(message["order"])


class OrderConsumer(EventStreamConsumer):
    """The orders, from a consumer."""

    groups = (BOARDS,)
    endpoint = "orders-consumer"

    async def stream(self) -> AsyncIterator[str]:
        """Say hello, and be open until the client leaves."""
        yield greeting()
        await asyncio.Event().wait()

    async def order_placed(self, message: dict[str, Any]) -> None:
        """Hear what is sent with the type ``order.placed``."""
        await self.send_event(json_event(message["order"]))


def greeting() -> ServerSentEvent:
    """Return the event that tells a board that it misses nothing from here on."""
    return json_event({"process": os.getpid()}, event="joined")
