"""How long it takes from the save of a change to its effect on a stream, in the process that saves and in another."""

import asyncio
import http.client
import statistics
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.processes import HOST, Server, serving
from benchmarks.switches.refresh import PERIOD
from sse_keepalive.models import Endpoint

SITE: Final = "benchmarks.switches.asgi"

#: The changes, by turns, each with what a client reads at once when an open stream obeys: a keep-alive that has been
#: due for long, and the end of the response. So the streams of an endpoint are turned on first, and then stopped.
EFFECTS: Final = {"on": b": keep-alive\n\n", "stop": b"\r\n0\r\n\r\n"}

#: Seconds of silence after which a keep-alive is due where one is: the least that an operator can set.
INTERVAL: Final = 1.0

#: Milliseconds in which every stream of every process is to obey.
BAR: Final = 5_000.0

#: Seconds in which a server answers, and after which a change that has no effect is given up.
PATIENCE: Final = 30.0


@dataclass(frozen=True)
class Delay:
    """Milliseconds from the save to its effect."""

    saved_in: str
    seen_in: str
    median: float
    highest: float
    bar: float
    kept: bool


def delays(names: Sequence[str], *, changes: int) -> list[Delay]:
    """Let each of these servers save so many changes, one after the other, for all of them to see."""
    endpoints = {saver: [f"{saver}-{number}" for number in range(-(-changes // len(EFFECTS)))] for saver in names}
    Endpoint.objects.bulk_create(
        Endpoint(name=name, keep_alive=False, interval=INTERVAL) for saver in names for name in endpoints[saver]
    )
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(name, SITE)) for name in names}
        return [
            delay
            for saver in names
            for delay in asyncio.run(delays_of_one(saver, servers, endpoints[saver], changes=changes))
        ]


async def delays_of_one(
    saver: str, servers: Mapping[str, Server], endpoints: Sequence[str], *, changes: int
) -> list[Delay]:
    """Measure what one server saves."""
    times: dict[str, list[float]] = {name: [] for name in servers}
    async with AsyncExitStack() as stack:
        streams = {
            (name, endpoint): await stack.enter_async_context(open_stream(server.port, endpoint))
            for name, server in servers.items()
            for endpoint in endpoints
        }
        await asyncio.sleep(INTERVAL)
        for number in range(changes):
            # The last change was seen when a process had just looked. From there on, saves are spread evenly over the
            # time until it looks again: each at once would be each at the worst moment.
            await asyncio.sleep(PERIOD * (number + 0.5) / changes)
            endpoint, state = endpoints[number // len(EFFECTS)], list(EFFECTS)[number % len(EFFECTS)]
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                seeing = {name: group.create_task(see(streams[name, endpoint], EFFECTS[state])) for name in servers}
                saved_at = await asyncio.to_thread(save, servers[saver].port, endpoint, state)
            for name, task in seeing.items():
                times[name].append((task.result() - saved_at) * 1e3)
    return [
        Delay(saver, name, statistics.median(values), max(values), BAR, max(values) <= BAR)
        for name, values in times.items()
    ]


@asynccontextmanager
async def open_stream(port: int, endpoint: str) -> AsyncGenerator[asyncio.StreamReader]:
    """Open a stream, and read its head."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"GET /stream/{endpoint} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
    try:
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{endpoint} was not answered with a stream: {head!r}")
        yield reader
    finally:
        writer.close()


async def see(stream: asyncio.StreamReader, effect: bytes) -> float:
    """Return when the effect was read."""
    await stream.readuntil(effect)
    return time.monotonic()


def save(port: int, endpoint: str, state: str) -> float:
    """Let a server save a change, and return when it began to."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    try:
        connection.request("GET", f"/switch/{endpoint}/{state}")
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{endpoint} could not be switched: {response.status}")
    return float(body)
