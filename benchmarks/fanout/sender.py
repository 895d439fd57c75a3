"""
The process that sends: for each line on its standard input, the messages that the line asks for, one after the other.

A line is a JSON array of who streams the room (as in ``fleet.py``), the layer, the room, and the numbers of the first
and the last message. A message carries its number and when it was sent, by the clock that all processes of the
machine share.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import django
from channels.layers import channel_layers
from django.utils.module_loading import import_string

#: What makes a message as long as a short line of chat.
FILLER = "0123456789" * 3


def text(number: int) -> str:
    """Return what a message says."""
    return f"<{number} {time.monotonic_ns()}> {FILLER}"


def sending(who: str, layer: str, room: str) -> Callable[[int], Awaitable[None]]:
    """Return a function that sends a message, and returns when Redis has acknowledged it."""
    if who == "eventstream":
        send_event = import_string("django_eventstream.send_event")

        async def send(number: int) -> None:
            send_event(room, "message", text(number))
    else:
        channel_layer = channel_layers[layer]

        async def send(number: int) -> None:
            await channel_layer.group_send(room, {"type": "room.message", "text": text(number)})

    return send


async def main() -> None:
    """Send what is asked for until the input ends."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        who, layer, room, first, last = json.loads(line)
        send = sending(who, layer, room)
        for number in range(first, last + 1):
            await send(number)


if __name__ == "__main__":
    django.setup()
    asyncio.run(main())
