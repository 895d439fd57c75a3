"""
How fast messages get to many clients, over several server processes and Redis.

``python -m benchmarks.fanout`` compares views and consumers of this package, on both layers of channels_redis, with a
plain loop over a channel, and with django-eventstream. README.md says how to read the tables.
"""

import argparse
import asyncio
import json
import platform
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Final

import django

from benchmarks.fanout.fleet import PROCESSES, TITLES, running
from benchmarks.fanout.measure import LIGHT, Comparison, Load, Row, comparisons, measure, rows, variants
from benchmarks.processes import missing
from benchmarks.tables import table, verdict

#: Bytes of address space that a process may take: this one, and each server.
MEMORY: Final = 8 << 30

#: What there is nothing to measure without, besides the server's own packages.
PACKAGES: Final = ("channels", "channels_redis")
PROGRAM: Final = "redis-server"

#: What is left out where it is not installed.
PEER: Final = "django_eventstream"


def give_up(number: int, _frame: object) -> None:
    """End in order, and with that all servers."""
    raise SystemExit(f"Given up: {signal.strsignal(number)}")


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fanout", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100], help="default: 20 100")
    parser.add_argument("--who", choices=TITLES, nargs="+", default=list(TITLES), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--singles", type=int, default=2_000, help="deliveries a round; default: %(default)s")
    parser.add_argument("--deliveries", type=int, default=8_000, help="the same, more at a time; default: %(default)s")
    parser.add_argument("--window", type=int, default=10, help="messages on their way; default: %(default)s")
    parser.add_argument("--light", type=int, default=10, help="messages now and then; default: %(default)s")
    parser.add_argument("--heavy", type=int, default=200, help="messages in a flood; default: %(default)s")
    parser.add_argument("--heavy-window", type=int, default=50, help="on their way in it; default: %(default)s")
    parser.add_argument("--deadline", type=int, default=600, help="seconds for all of it; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    if lacking := [
        *([] if shutil.which(PROGRAM) else [PROGRAM]),
        *missing("uvicorn"),
        *(package for package in PACKAGES if find_spec(package) is None),
    ]:
        raise SystemExit(f"Needed, but not installed: {', '.join(lacking)}.")
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, give_up)
    signal.alarm(options.deadline)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min((MEMORY, *(limit for limit in limits if limit >= 0))), limits[1]))
    absent = [] if find_spec(PEER) else [PEER]
    names = [who for who in options.who if who != "eventstream" or not absent]
    load = Load(
        options.singles, options.deliveries, options.window, options.light, options.heavy, options.heavy_window
    )
    with running(names) as fleet, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runs = runner.run(measure(fleet, variants(names, options.clients), load, rounds=options.rounds))
    if options.json:
        figures = {
            **versions(),
            **vars(options),
            "missing": absent,
            "fanout": [asdict(row) for row in rows(runs)],
            "comparisons": [asdict(row) for row in comparisons(runs)],
        }
        print(json.dumps(figures, indent=2))
    else:
        print_tables(rows(runs), comparisons(runs), options, absent)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the clients' loop: a fast one, for they share the cores with the servers."""
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def versions() -> dict[str, Any]:
    """Return what runs here."""
    return {"python": platform.python_version(), "django": django.get_version()}


def print_tables(
    measured: list[Row], compared: list[Comparison], options: argparse.Namespace, absent: list[str]
) -> None:
    """Print the figures for people."""
    print("Python {python}, Django {django}".format(**versions()))

    print(f"\nMessages to all clients of a room, over {PROCESSES} server processes and Redis:")
    print(f"with {options.window} on their way; one at a time; one each {LIGHT:g} s (ms); ", end="")
    print(f"with {options.heavy_window} on their way (a flood)\n")
    figures: list[list[str | float | None]] = [
        [
            str(row.clients), TITLES[row.who], row.layer, row.rate, row.cpu, row.single_cpu,
            str(row.lost), str(row.messages), row.latency, row.highest_latency, str(row.heavy_lost), str(row.heavy),
        ]
        for row in measured
    ]  # fmt: skip
    head = ["clients", "who streams", "layer", "deliveries/s", "CPU µs each", "one at a time", "lost", "of"]
    print(table([*head, "median ms", "highest", "lost in a flood", "of"], figures))
    for row in measured:
        if row.out_of_order:
            who = " ".join(filter(None, [TITLES[row.who], row.layer]))
            print(f"\n{who}, {row.clients} clients: {row.out_of_order} came twice, or after a later one.")

    if compared:
        print("\nThis package beside each peer: the ratios within a round\n")
        ratios: list[list[str | float | None]] = [
            [
                str(row.clients), TITLES[row.who], row.layer, TITLES[row.peer], row.rate, ">= 1", row.cpu, "<= 1",
                row.single_cpu, "<= 1", str(row.lost), "0", verdict(kept=row.kept),
            ]
            for row in compared
        ]  # fmt: skip
        head = ["clients", "who streams", "layer", "beside", "deliveries/s", "bar", "CPU", "bar"]
        print(table([*head, "one at a time", "bar", "lost", "bar", ""], ratios))
    for package in absent:
        print(f"\n{package} is not installed: what needs it is left out.")


if __name__ == "__main__":
    main()
