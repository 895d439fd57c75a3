"""
What keep-alives cost in the process: CPU time added per chunk, memory added per silent stream.

``python -m benchmarks.overhead`` compares this package with the two usual ways (``wrappers``),
each over the bare ``async for`` of the same upstream. README.md says how to read the table.
"""

import argparse
import asyncio
import gc
import json
import platform
import statistics
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.sources import EVENTS, SOURCES, Chunk
from benchmarks.tables import table, verdict
from benchmarks.wrappers import pump, task_per_step
from sse_keepalive.keepalive import with_sse_keep_alive

#: Never falls due while chunks come, as in real life.
INTERVAL: Final = 15.0

Wrap = Callable[[AsyncGenerator[Chunk]], AsyncIterable[Chunk]]

#: In the order in which each round runs them; the first is what the others are compared with.
WRAPS: Final[dict[str, Wrap]] = {
    "bare": lambda upstream: upstream,
    "ours": lambda upstream: with_sse_keep_alive(upstream, INTERVAL),
    "task": lambda upstream: task_per_step(upstream, INTERVAL),
    "pump": lambda upstream: pump(upstream, INTERVAL),
}

#: How many times cheaper than a task per step the package is to be, by loop and kind of chunk.
RATIO_BARS: Final = {
    ("stock", "ready"): 10.0,
    ("stock", "awaited"): 6.0,
    ("uvloop", "ready"): 7.0,
    ("uvloop", "awaited"): 4.5,
}

#: Bytes that the package may add to a stream that is open and silent.
MEMORY_BAR: Final = 3072


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU per chunk: of the bare loop, and added to it by each wrapper."""

    loop: str
    chunk: str
    type: str
    bare: float
    added: dict[str, float]
    ratio: float | None
    bar: float
    kept: bool


@dataclass(frozen=True)
class Memory:
    """Bytes per open, silent stream: of the bare stream, and added to it by each wrapper."""

    loop: str
    bare: int
    added: dict[str, int]
    bar: int
    kept: bool


async def cpu_time(stream: AsyncIterable[Chunk]) -> float:
    """Return the CPU seconds that it takes to read a stream to its end."""
    # Not the wall clock: what else runs on the machine must not count, and the loop never sleeps.
    started = time.process_time()
    async for _ in stream:
        pass
    return time.process_time() - started


async def cost(loop: str, chunk: str, type_name: str, *, rounds: int, chunks: int) -> Cost:
    """Measure one row of the table: medians over rounds in which all wrappers take their turn."""
    source, event = SOURCES[chunk], EVENTS[type_name]
    times: dict[str, list[float]] = {name: [] for name in WRAPS}
    for number in range(rounds):
        # There and back, so that none always runs in the wake of the same other one.
        for name in list(WRAPS) if number % 2 == 0 else reversed(WRAPS):
            with no_gc():
                seconds = await cpu_time(WRAPS[name](source(event, chunks)))
            times[name].append(seconds / chunks * 1e6)
    added = {
        name: statistics.median(map(float.__sub__, times[name], times["bare"])) for name in WRAPS if name != "bare"
    }
    ratio = added["task"] / added["ours"] if added["ours"] > 0 else None
    bar = RATIO_BARS[loop, chunk]
    bare = statistics.median(times["bare"])
    return Cost(loop, chunk, type_name, bare, added, ratio, bar, ratio is None or ratio >= bar)


async def memory(loop: str, *, streams: int) -> Memory:
    """Measure the memory of streams that have sent one chunk and wait for the next."""
    tracemalloc.start()
    try:
        for wrap in WRAPS.values():  # fills caches and free lists
            await parked_bytes(wrap, streams)
        sizes = {name: await parked_bytes(wrap, streams) for name, wrap in WRAPS.items()}
    finally:
        tracemalloc.stop()
    added = {name: size - sizes["bare"] for name, size in sizes.items() if name != "bare"}
    return Memory(loop, sizes["bare"], added, MEMORY_BAR, added["ours"] <= MEMORY_BAR)


async def parked_bytes(wrap: Wrap, streams: int) -> int:
    """Return the bytes that an open stream takes, its task and its upstream included."""
    parked = asyncio.Semaphore(0)

    async def upstream() -> AsyncGenerator[Chunk]:
        yield EVENTS["bytes"]
        parked.release()
        await asyncio.get_running_loop().create_future()

    async def consume() -> None:
        async for _ in wrap(upstream()):
            pass

    await asyncio.sleep(0)  # until then the loop holds the tasks that ended last
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    tasks = [asyncio.create_task(consume()) for _ in range(streams)]
    for _ in tasks:
        await parked.acquire()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return round((after - before) / streams)


@contextmanager
def no_gc() -> Iterator[None]:
    """Keep the garbage collector out of a measurement, as ``timeit`` does."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def loop_factories(wanted: str) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops to measure on, without uvloop where it is not installed."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {}
    if wanted != "uvloop":
        factories["stock"] = asyncio.new_event_loop
    if wanted != "stock":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            factories["uvloop"] = uvloop.new_event_loop
    return factories


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--loop", choices=["stock", "uvloop", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=31, help="default: %(default)s")
    parser.add_argument("--chunks", type=int, default=5_000, help="a round; default: %(default)s")
    parser.add_argument("--streams", type=int, default=2_000, help="silent; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    costs: list[Cost] = []
    memories: list[Memory] = []
    loops = loop_factories(options.loop)
    for loop, factory in loops.items():
        with asyncio.Runner(loop_factory=factory) as runner:
            for chunk in SOURCES:
                for type_name in EVENTS:
                    row = cost(loop, chunk, type_name, rounds=options.rounds, chunks=options.chunks)
                    costs.append(runner.run(row))
            memories.append(runner.run(memory(loop, streams=options.streams)))
    missing = [] if options.loop == "stock" or "uvloop" in loops else ["uvloop"]
    if options.json:
        figures = {
            "python": platform.python_version(),
            "rounds": options.rounds,
            "chunks": options.chunks,
            "streams": options.streams,
            "missing": missing,
            "cost": [asdict(row) for row in costs],
            "memory": [asdict(row) for row in memories],
        }
        print(json.dumps(figures, indent=2))
    else:
        print_tables(costs, memories, missing)


def print_tables(costs: list[Cost], memories: list[Memory], missing: list[str]) -> None:
    """Print the figures for people."""
    print(f"Python {platform.python_version()}: microseconds of CPU per chunk\n")
    head = ["loop", "chunk", "type", "bare", "+ours", "+task", "+pump", "task/ours", "bar", ""]
    rows = [
        [
            row.loop, row.chunk, row.type,
            row.bare, row.added["ours"], row.added["task"], row.added["pump"],
            row.ratio, f">= {row.bar:g}", verdict(kept=row.kept),
        ]
        for row in costs
    ]  # fmt: skip
    print(table(head, rows))
    print("\nBytes per open, silent stream\n")
    print(
        table(
            ["loop", "bare", "+ours", "+task", "+pump", "bar", ""],
            [
                [
                    row.loop, f"{row.bare}",
                    *(f"{row.added[name]}" for name in ("ours", "task", "pump")),
                    f"<= {row.bar}", verdict(kept=row.kept),
                ]
                for row in memories
            ],
        )
    )  # fmt: skip
    for name in missing:
        print(f"\n{name} is not installed: its rows are left out.")


if __name__ == "__main__":
    main()
