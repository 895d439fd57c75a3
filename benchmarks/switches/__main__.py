"""
What the switches cost, and how fast they are.

``python -m benchmarks.switches`` measures what it costs a request to ask for its switch, what it costs a process to
watch the switches while its streams are idle, and how long a change takes. README.md says how to read the tables.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import django
from django.core.management import call_command
from django.db import connections

from benchmarks.processes import COMMANDS, missing
from benchmarks.tables import table, verdict

if TYPE_CHECKING:
    from benchmarks.switches.costs import Asking, Request
    from benchmarks.switches.delay import Delay
    from benchmarks.switches.idle import Change, Spread, Watching

#: Bytes of address space that a process may take: this one, and each server.
MEMORY: Final = 8 << 30

#: Who can be asked, as the table calls them.
TITLES: Final = {
    "nobody": "an empty function",
    "ours": "switches.get()",
    "cache": "cache.get(), in local memory",
    "waffle": "waffle.switch_is_active(), over the same cache",
    "database": "Endpoint.objects.get(), from SQLite",
}

#: The heads of columns.
SPREAD: Final = ("median", "lowest", "highest")


@dataclass(frozen=True)
class Figures:
    """All that is measured."""

    asking: "list[Asking]"
    request: "Request"
    watching: "Watching"
    changes: "list[Change]"
    delays: "list[Delay]"


def measure(options: argparse.Namespace, servers: list[str]) -> Figures:
    """Measure all of it on a site with an empty database."""
    django.setup()
    call_command("migrate", verbosity=0)

    # They need what has been set up.
    from benchmarks.switches.costs import askings, requests
    from benchmarks.switches.delay import delays
    from benchmarks.switches.idle import changes, make_endpoints, watching

    asking = askings(rounds=options.rounds)
    request = requests(rounds=options.rounds, count=options.requests)
    make_endpoints()
    connections.close_all()
    return Figures(
        asking,
        request,
        asyncio.run(watching(streams=options.streams, turns=options.turns, periods=options.periods)),
        asyncio.run(changes(streams=options.streams, turns=options.turns)),
        delays(servers, changes=options.changes),
    )


def give_up(number: int, _frame: object) -> None:
    """End in order, and with that all servers."""
    raise SystemExit(f"Given up: {signal.strsignal(number)}")


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.switches", description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="of asking; default: %(default)s")
    parser.add_argument("--requests", type=int, default=1_000, help="a round; default: %(default)s")
    parser.add_argument("--streams", type=int, default=10_000, help="idle; default: %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="of idle streams; default: %(default)s")
    parser.add_argument("--periods", type=int, default=2, help="of refresh, a turn; default: %(default)s")
    parser.add_argument("--changes", type=int, default=20, help="saved by a server; default: %(default)s")
    parser.add_argument("--deadline", type=int, default=600, help="seconds for all of it; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, give_up)
    signal.alarm(options.deadline)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min((MEMORY, *(limit for limit in limits if limit >= 0))), limits[1]))
    servers = [name for name in COMMANDS if not missing(name)]
    with tempfile.TemporaryDirectory() as folder:
        # For this process, and for the servers.
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.switches.settings"
        os.environ["BENCHMARK_DATABASE"] = str(Path(folder) / "db.sqlite3")
        figures = measure(options, servers)
    absent = [package for name in COMMANDS for package in missing(name)]
    if all(row.who != "waffle" for row in figures.asking):
        absent.append("waffle")
    if options.json:
        print(json.dumps({**versions(), **vars(options), "missing": absent, **asdict(figures)}, indent=2))
    else:
        print_tables(figures, options, absent)


def versions() -> dict[str, Any]:
    """Return what runs here."""
    return {"python": platform.python_version(), "django": django.get_version()}


def print_tables(figures: Figures, options: argparse.Namespace, absent: list[str]) -> None:
    """Print the figures for people."""
    print("Python {python}, Django {django}".format(**versions()))

    print("\nTo ask for a switch: nanoseconds of CPU\n")
    print(
        table(["who is asked", "CPU", "/ours"], [[TITLES[row.who], row.cpu, row.over_ours] for row in figures.asking])
    )

    request = figures.request
    print("\nA request, from the call of its view to the end of its stream: microseconds of CPU\n")
    print(table(["without switches", "with", "added"], [[request.without, request.with_switches, request.added]]))

    watching = figures.watching
    added = [f"< {watching.cpu_bar:g}", verdict(kept=watching.is_cheap)]
    print(f"\nA process with {options.streams} idle streams: % of one core\n")
    print(
        table(
            ["", *SPREAD, "bar", ""],
            [
                ["without switches", *cells(watching.without), "", ""],
                ["with", *cells(watching.with_switches), "", ""],
                ["added", *cells(watching.added), *added],
            ],
        )
    )
    asked = [f"<= {watching.queries_bar:g}", verdict(kept=watching.is_quiet)]
    print("\nThe same process, in a minute\n")
    print(table(["queries", "connections", "bar", ""], [[watching.queries, watching.connections, *asked]]))

    print(f"\nA change that {options.streams} idle streams of one loop obey: milliseconds\n")
    print(
        table(
            ["change", "loop held up:", *SPREAD, "all have obeyed:", *SPREAD],
            [[row.state, "", *cells(row.held_up), "", *cells(row.obeyed)] for row in figures.changes],
        )
    )

    if figures.delays:
        print(f"\nFrom a save to its effect on a stream: milliseconds, of {options.changes} changes each\n")
        print(
            table(
                ["saved in", "seen in", "median", "highest", "bar", ""],
                [
                    [row.saved_in, row.seen_in, row.median, row.highest, f"<= {row.bar:g}", verdict(kept=row.kept)]
                    for row in figures.delays
                ],
            )
        )
    for package in absent:
        print(f"\n{package} is not installed: what needs it is left out.")


def cells(spread: "Spread") -> list[float]:
    """Return the cells below :data:`SPREAD`."""
    return [spread.median, spread.lowest, spread.highest]


if __name__ == "__main__":
    main()
