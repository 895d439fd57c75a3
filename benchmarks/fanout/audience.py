"""The clients of a room, in this process: what has come to them, and what has not."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from benchmarks.processes import HOST

#: A message, wherever it stands in an event: its number, and when it was sent.
MESSAGE: Final = re.compile(rb"<(\d+) (\d+)>")

#: Longer than a message, so that one that was cut in two is found.
TAIL: Final = 64

#: The number of messages that are only to show who is listening already.
PROBE: Final = 0

#: Seconds in which a room has to open.
PATIENCE: Final = 30.0

#: Seconds in which nothing comes to any client, after which what is missing counts as lost.
LOST_AFTER: Final = 0.25


class Client(asyncio.Protocol):
    """One of them."""

    def __init__(self, audience: "Audience", path: str) -> None:
        self._audience = audience
        self._request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.is_answered = False
        self.has_heard = False
        self.latest = PROBE
        self.passed = PROBE
        self.seen: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Find the messages."""
        now = time.monotonic_ns()
        data = self._rest + data
        if not self.is_answered:
            self.is_answered = True
            if not data.startswith(b"HTTP/1.1 200 "):
                self._audience.fail(f"A room was not answered with a stream: {data[:200]!r}")
        end = 0
        for match in MESSAGE.finditer(data):
            end = match.end()
            self._audience.hear(self, int(match[1]), now - int(match[2]))
        self._rest = data[max(end, len(data) - TAIL) :]

    def connection_lost(self, error: Exception | None) -> None:
        """Complain unless it was hung up here."""
        if self._transport is not None:
            self._audience.fail(f"A stream has ended: {error!r}, after {self._rest!r}")

    def hang_up(self) -> None:
        """Leave."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class Audience:
    """All of them. A client has passed a message when it has it, or a later one: what is between is lost, or late."""

    def __init__(self, clients: int) -> None:
        self._expected = clients
        self._probed = 0
        self._passed: Counter[int] = Counter()
        self._error: str | None = None
        self._news = asyncio.Event()
        self.clients: list[Client] = []
        self.slowest = PROBE
        self.arrivals = 0
        self.out_of_order = 0
        self.last_arrival = 0.0
        self.latencies: list[float] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether each client has heard a probe."""
        return self._probed == self._expected

    def hear(self, client: Client, number: int, latency: int) -> None:
        """Note that a message has come to a client."""
        self.last_arrival = time.monotonic()
        if number == PROBE:
            self._probed += not client.has_heard
            client.has_heard = True
            if self.is_complete:
                self._news.set()
            return
        if number <= client.latest:
            self.out_of_order += 1
        client.latest = max(client.latest, number)
        if number in client.seen:
            return
        client.seen.add(number)
        self.arrivals += 1
        if self.latencies is not None:
            self.latencies.append(latency / 1e6)
        for passed in range(client.passed + 1, number + 1):
            self._passed[passed] += 1
        client.passed = max(client.passed, number)
        while self._passed[self.slowest + 1] == self._expected:
            self.slowest += 1
            del self._passed[self.slowest]
            self._news.set()

    def fail(self, error: str) -> None:
        """End whatever is being waited for."""
        self._error = self._error or error
        self._news.set()

    def write_off(self, number: int) -> None:
        """Expect no message any more up to this one."""
        for client in self.clients:
            client.passed = number
        self._passed.clear()
        self.slowest = number

    async def wait_for_news(self, seconds: float) -> bool:
        """Wait until all clients have passed a message, or have heard a probe; return whether that came in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        if self._error is not None:
            raise RuntimeError(self._error)
        return True


@asynccontextmanager
async def listening(audience: Audience, ports: Sequence[int], path: str, clients: int) -> AsyncGenerator[None]:
    """Let clients ask for a room, spread over the servers, until the block ends."""
    loop = asyncio.get_running_loop()
    try:
        for number in range(clients):
            _, client = await loop.create_connection(lambda: Client(audience, path), HOST, ports[number % len(ports)])
            audience.clients.append(client)
        yield
    finally:
        for client in audience.clients:
            client.hang_up()
