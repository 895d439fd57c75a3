"""
A crowd of clients of event streams in one event loop, for tests in which there are many and much comes at once.

They hear numbers: each event's data is one, but for the first, which tells that none is missed from then on.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httptools

from .play import PATIENCE
from .servers import Server

KEEP_ALIVE: Final = b": keep-alive"
READY: Final = b"event: ready\ndata: joined"

#: So many bytes at most may one client get: all that a test sends, and some hundred keep-alives a second for long.
MOST_BYTES: Final = 4 * 1024 * 1024


class Guest(asyncio.Protocol):
    """One client of one stream; made by :meth:`Crowd.join`."""

    def __init__(self, server: Server, path: str) -> None:
        self.server = server
        self.path = path
        self.status = 0
        self.is_ready = False
        self.numbers: list[int] = []
        self.keep_alives = 0
        #: What has come and is none of these.
        self.strange: list[bytes] = []
        #: How the stream has ended, if it has: "whole", "cut", or "left" by us.
        self.end = ""
        self.has_gone = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._count = 0

    def __repr__(self) -> str:
        state = self.end or ("ready" if self.is_ready else f"not ready, status {self.status}")
        heard = f"{len(self.numbers)} numbers to {self.numbers[-1]}" if self.numbers else "no number"
        return f"<{self.server.name} {self.path}: {state}, {heard}, {self.keep_alives} keep-alives, {self.strange}>"

    async def leave(self) -> None:
        """Close the connection, and wait until it is; harmless if the stream has ended."""
        self.end = self.end or "left"
        if self._transport is not None:
            self._transport.abort()
            await self.has_gone.wait()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self._count += len(data)
        assert self._count <= MOST_BYTES, f"More than {MOST_BYTES} bytes came to {self}"
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end = self.end or "cut"
        self.has_gone.set()

    # What the parser calls.

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        *events, self._rest = (self._rest + body).split(b"\n\n")
        for event in events:
            if event == KEEP_ALIVE:
                self.keep_alives += 1
            elif event == READY:
                self.is_ready = True
            elif event.startswith(b"data: ") and event[6:].isdigit():
                self.numbers.append(int(event[6:]))
            else:
                self.strange.append(event)

    def on_message_complete(self) -> None:
        self.end = self.end or "whole"
        if self._transport is not None:
            self._transport.close()


class Crowd:
    """All clients of a test; made by :func:`crowd`."""

    def __init__(self) -> None:
        self.guests: list[Guest] = []

    async def join(self, server: Server, path: str) -> Guest:
        """Ask for a stream; it is there when the guest is ready."""
        guest = Guest(server, path)
        self.guests.append(guest)
        await asyncio.get_running_loop().create_connection(lambda: guest, "127.0.0.1", server.port)
        return guest

    async def until(self, condition: Callable[[Guest], Any], what: str, *, within: float = PATIENCE) -> None:
        """Wait until something is so for each guest."""
        waiting = self.guests
        deadline = time.monotonic() + within
        while waiting := [guest for guest in waiting if not condition(guest)]:
            assert time.monotonic() < deadline, f"Not within {within} s: {what}, for {len(waiting)}: {waiting[:8]}"
            await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Let all of them leave."""
        guests, self.guests = self.guests, []
        for guest in guests:
            await guest.leave()


@contextlib.asynccontextmanager
async def crowd() -> AsyncIterator[Crowd]:
    """Gather clients, none of whom is left after the block."""
    gathered = Crowd()
    try:
        yield gathered
    finally:
        await gathered.leave()
