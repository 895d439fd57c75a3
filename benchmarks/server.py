"""
What keep-alives cost in a real server: CPU time of the server process per chunk.

``python -m benchmarks.server`` compares Django's bare stream, the same with this package, the same
with a task per step, and sse-starlette. README.md says how to read the table.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Final

import django

from benchmarks.processes import COMMANDS, Server, missing, serving
from benchmarks.sources import EVENTS, SOURCES
from benchmarks.tables import table, verdict

#: The modules of the sites, by the wrappers that they are asked for.
SITES: Final = {
    "bare": "benchmarks.django_site",
    "ours": "benchmarks.django_site",
    "task": "benchmarks.django_site",
    "peer": "benchmarks.starlette_site",
}

#: What the package may cost at most, in multiples of Django's bare stream of text: what views yield.
BARS: Final = {
    ("uvicorn", "ready"): 1.10,
    ("uvicorn", "awaited"): 1.20,
    ("daphne", "ready"): 1.25,
    ("daphne", "awaited"): 1.20,
}


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU of the server process per chunk, by wrapper, with the ratios."""

    server: str
    chunk: str
    type: str
    cpu: dict[str, float]
    over_bare: float
    bar: float | None
    over_peer: float | None
    kept: bool


def per_chunk(server: Server, wrapper: str, chunk: str, type_name: str, chunks: int) -> float:
    """Return the microseconds of CPU that one response takes, divided by its chunks."""
    started = server.cpu_time()
    length = server.read(f"/{wrapper}/{chunk}?chunks={chunks}&type={type_name}")
    spent = server.cpu_time() - started
    if length < chunks * len(EVENTS[type_name]):
        raise RuntimeError(f"{wrapper}/{chunk}: {length} bytes are not {chunks} chunks.")
    return spent / chunks * 1e6


def cost(name: str, chunk: str, type_name: str, servers: Mapping[str, Server], *, rounds: int, chunks: int) -> Cost:
    """Measure one row of the table: medians over rounds in which all wrappers take their turn."""
    times: dict[str, list[float]] = {wrapper: [] for wrapper in servers}
    for wrapper, server in servers.items():
        per_chunk(server, wrapper, chunk, type_name, min(chunks, 1_000))  # what happens only once
    for number in range(rounds):
        # There and back, so that none always runs in the wake of the same other one.
        for wrapper in list(servers) if number % 2 == 0 else reversed(list(servers)):
            times[wrapper].append(per_chunk(servers[wrapper], wrapper, chunk, type_name, chunks))
    cpu = {wrapper: statistics.median(values) for wrapper, values in times.items()}
    over_bare = cpu["ours"] / cpu["bare"]
    over_peer = cpu["ours"] / cpu["peer"] if "peer" in cpu else None
    bar = BARS[name, chunk] if type_name == "str" else None
    kept = (bar is None or over_bare <= bar) and (over_peer is None or over_peer < 1)
    return Cost(name, chunk, type_name, cpu, over_bare, bar, over_peer, kept)


def measure(name: str, *, rounds: int, chunks: int, with_peer: bool) -> list[Cost]:
    """Measure all rows of one server."""
    wrappers = [wrapper for wrapper in SITES if wrapper != "peer" or with_peer]
    with ExitStack() as stack:
        processes = {
            site: stack.enter_context(serving(name, site))
            for site in dict.fromkeys(SITES[wrapper] for wrapper in wrappers)
        }
        servers = {wrapper: processes[SITES[wrapper]] for wrapper in wrappers}
        return [
            cost(name, chunk, type_name, servers, rounds=rounds, chunks=chunks)
            for type_name in EVENTS
            for chunk in SOURCES
        ]


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--server", choices=[*COMMANDS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--chunks", type=int, default=10_000, help="a round; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    has_peer = find_spec("sse_starlette") is not None
    absent = [] if has_peer else ["sse_starlette"]
    costs: list[Cost] = []
    for name in COMMANDS if options.server == "all" else [options.server]:
        if lacking := missing(name):
            absent += lacking
            continue
        costs += measure(
            name,
            rounds=options.rounds,
            chunks=options.chunks,
            # Starlette on Daphne is nobody's combination.
            with_peer=has_peer and name == "uvicorn",
        )
    if options.json:
        figures = {
            "python": platform.python_version(),
            "django": django.get_version(),
            "rounds": options.rounds,
            "chunks": options.chunks,
            "missing": absent,
            "cost": [asdict(row) for row in costs],
        }
        print(json.dumps(figures, indent=2))
    else:
        print_table(costs, absent)


def print_table(costs: list[Cost], absent: list[str]) -> None:
    """Print the figures for people."""
    versions = f"Python {platform.python_version()}, Django {django.get_version()}"
    print(f"{versions}: microseconds of the server's CPU per chunk\n")
    head = ["server", "chunk", "type", "bare", "ours", "task", "sse-starlette"]
    rows = [
        [
            row.server, row.chunk, row.type,
            row.cpu["bare"], row.cpu["ours"], row.cpu["task"], row.cpu.get("peer"),
            row.over_bare, f"<= {row.bar:.2f}" if row.bar else "",
            row.over_peer, "< 1" if row.over_peer else "",
            verdict(kept=row.kept),
        ]
        for row in costs
    ]  # fmt: skip
    print(table([*head, "ours/bare", "bar", "ours/sse-starlette", "bar", ""], rows))
    for package in absent:
        print(f"\n{package} is not installed: what needs it is left out.")


if __name__ == "__main__":
    main()
