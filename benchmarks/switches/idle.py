"""What the switches cost a process whose streams are idle, and how long a change holds up its event loop."""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db import connections
from django.db.backends.signals import connection_created

from benchmarks.overhead import no_gc
from benchmarks.switches.asgi import silent
from benchmarks.switches.refresh import PERIOD, use_switches
from sse_keepalive.http import EventStreamResponse
from sse_keepalive.models import Endpoint
from sse_keepalive.switches import Switch

#: Of the endpoint of all these streams.
NAME: Final = "idle"

#: How many endpoints the site has besides.
OTHERS: Final = 20

#: Percent of one core that watching the switches may cost.
CPU_BAR: Final = 1.0

#: How often in a minute that may ask the database.
QUERIES_BAR: Final = 60 / PERIOD

#: What is measured of changes, in this order: each ends where the next can begin.
CHANGES: Final = ("off", "on", "stop")

#: Seconds in which any of this has to happen.
PATIENCE: Final = 60.0

#: Seconds after which the loop looks whether it was held up: what is shorter is not seen.
PULSE: Final = 0.001


@dataclass(frozen=True)
class Spread:
    """What was measured several times."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Watching:
    """Percent of one core without and with the switches, and what the latter ask the database in a minute."""

    without: Spread
    with_switches: Spread
    added: Spread
    cpu_bar: float
    is_cheap: bool
    queries: float
    connections: float
    queries_bar: float
    is_quiet: bool


@dataclass(frozen=True)
class Change:
    """Milliseconds for which the loop does nothing else, and from the save until all streams have obeyed."""

    state: str
    held_up: Spread
    obeyed: Spread


@dataclass
class Load:
    """What the database was asked."""

    queries: int = 0
    connections: int = 0


def make_endpoints() -> None:
    """Fill the table as that of a site."""
    Endpoint.objects.bulk_create(Endpoint(name=name) for name in [NAME, *(f"other-{n}" for n in range(OTHERS))])


async def watching(*, streams: int, turns: int, periods: int) -> Watching:
    """Compare the CPU time of spans in which nothing but the watching happens, in turns with and without it."""
    percent: dict[bool, list[float]] = {True: [], False: []}
    asked = Load()
    with counted() as load:
        async with open_streams(streams):
            for number in range(turns):
                for is_on in (True, False) if number % 2 == 0 else (False, True):
                    use_switches(is_on=is_on)
                    async with open_streams(1):  # the first stream to open starts the watch
                        # From the middle between two looks, so that as many of them as there are periods fall into it.
                        await asyncio.sleep(PERIOD / 2)
                    before = replace(load)
                    percent[is_on].append(await cpu_percent(periods * PERIOD))
                    if is_on:
                        asked.queries += load.queries - before.queries
                        asked.connections += load.connections - before.connections
                    elif load != before:
                        raise RuntimeError("The database was asked although the switches are off.")
            use_switches(is_on=True)
    added = spread(list(map(float.__sub__, percent[True], percent[False])))
    minutes = turns * periods * PERIOD / 60
    queries = asked.queries / minutes
    return Watching(
        without=spread(percent[False]),
        with_switches=spread(percent[True]),
        added=added,
        cpu_bar=CPU_BAR,
        is_cheap=added.median < CPU_BAR,
        queries=queries,
        connections=asked.connections / minutes,
        queries_bar=QUERIES_BAR,
        is_quiet=queries <= QUERIES_BAR,
    )


async def changes(*, streams: int, turns: int) -> list[Change]:
    """Measure each change so many times."""
    use_switches(is_on=True)
    held_up: dict[str, list[float]] = {state: [] for state in CHANGES}
    obeyed: dict[str, list[float]] = {state: [] for state in CHANGES}
    for _ in range(turns):
        async with open_streams(streams) as tasks:
            for state in CHANGES:
                with no_gc():
                    async with pulse() as longest, asyncio.timeout(PATIENCE):
                        Stream.to_obey, Stream.have_obeyed = len(tasks), asyncio.Event()
                        started_at = time.perf_counter()
                        await asyncio.to_thread(save, state)
                        await Stream.have_obeyed.wait()
                        if state == "stop":
                            await asyncio.wait(tasks)
                        obeyed[state].append((time.perf_counter() - started_at) * 1e3)
                held_up[state].append(longest[0] * 1e3)
        await asyncio.to_thread(save, "open")
    return [Change(state, spread(held_up[state]), spread(obeyed[state])) for state in CHANGES]


class Stream(EventStreamResponse):
    """One of many, the last of which tells when it has obeyed."""

    to_obey = 0
    have_obeyed = asyncio.Event()

    def _obey(self, switch: Switch) -> None:
        super()._obey(switch)
        Stream.to_obey -= 1
        if Stream.to_obey == 0:
            Stream.have_obeyed.set()


@asynccontextmanager
async def open_streams(count: int) -> AsyncGenerator[list["asyncio.Task[None]"]]:
    """Read so many streams while the block runs, each in a task of its own; all are silent when it begins."""
    silences = asyncio.Semaphore(0)

    async def upstream() -> AsyncGenerator[bytes]:
        silences.release()
        async for chunk in silent():
            yield chunk

    async def read() -> None:
        async for _ in Stream(upstream(), endpoint=NAME):
            pass

    tasks = [asyncio.create_task(read()) for _ in range(count)]
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in tasks:
                await silences.acquire()
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cpu_percent(seconds: float) -> float:
    """Return what share of a core all threads of this process have had while this task slept."""
    started_at, spent = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - spent) / (time.perf_counter() - started_at) * 100


@asynccontextmanager
async def pulse() -> AsyncGenerator[list[float]]:
    """Tell, at the end of the block, for how many seconds the loop was held up at most."""
    longest = [0.0]

    async def beat() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(PULSE)
            longest[0] = max(longest[0], time.perf_counter() - before - PULSE)

    task = asyncio.create_task(beat())
    await asyncio.sleep(10 * PULSE)
    try:
        yield longest
        await asyncio.sleep(10 * PULSE)
    finally:
        task.cancel()


@contextmanager
def counted() -> Iterator[Load]:
    """Count what SQLite is asked, in whatever thread, on connections that are made while the block runs."""
    load = Load()

    def count(_statement: str) -> None:
        load.queries += 1

    def trace(connection: Any, **_kwargs: Any) -> None:
        load.connections += 1
        connection.connection.set_trace_callback(count)

    connection_created.connect(trace)
    try:
        yield load
    finally:
        connection_created.disconnect(trace)


def save(state: str) -> None:
    """Switch, in a thread."""
    try:
        if not Endpoint.objects.filter(name=NAME).set_state(state):
            raise RuntimeError("Nothing was switched.")
    finally:
        connections.close_all()


def spread(values: Sequence[float]) -> Spread:
    """Return what is printed of several figures."""
    return Spread(statistics.median(values), min(values), max(values))
