"""``manage.py sse_endpoints``: the switches, for those without the admin."""

import json
from argparse import ArgumentParser
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management import BaseCommand, CommandError
from django.db import DatabaseError

from sse_keepalive.models import Endpoint

EXPLANATIONS: Final = {
    "on": "turn its keep-alives on",
    "off": "turn its keep-alives off",
    "open": "open it again",
    "stop": "end its streams and refuse new ones",
}


class Command(BaseCommand):
    help = "Lists the endpoints of event streams, and switches them. Every process obeys within seconds."

    def add_arguments(self, parser: ArgumentParser) -> None:
        for state, explanation in EXPLANATIONS.items():
            parser.add_argument(f"--{state}", metavar="NAME", action="append", default=[], help=explanation)
        parser.add_argument("--json", action="store_true", help="list them as JSON")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            self.switch({state: options[state] for state in EXPLANATIONS})
            endpoints = list(Endpoint.objects.all())
        except (DatabaseError, ImproperlyConfigured) as error:
            raise CommandError(f"{error} (is the database there, and has `manage.py migrate` been run?)") from error
        self.stdout.write(as_json(endpoints) if options["json"] else as_table(endpoints))

    def switch(self, names_by_state: dict[str, list[str]]) -> None:
        """Set what is asked for, or nothing if anything in it cannot be."""
        for one, other in (("on", "off"), ("open", "stop")):
            if both := set(names_by_state[one]) & set(names_by_state[other]):
                raise CommandError(f"--{one} and --{other} contradict each other for {', '.join(sorted(both))}.")
        asked_for = {name for names in names_by_state.values() for name in names}
        known = set(Endpoint.objects.filter(name__in=asked_for).values_list("name", flat=True))
        if unknown := asked_for - known:
            raise CommandError(
                f"There is no endpoint {', '.join(map(repr, sorted(unknown)))}. An endpoint appears at its first "
                "request; without an option this command lists them."
            )
        for state, names in names_by_state.items():
            if names:
                Endpoint.objects.filter(name__in=names).set_state(state)


def as_json(endpoints: list[Endpoint]) -> str:
    return json.dumps(
        [
            {
                "name": endpoint.name,
                "keep_alive": endpoint.keep_alive,
                "interval": endpoint.interval,
                "frame": endpoint.frame or None,
                "is_open": endpoint.is_open,
                "updated_at": endpoint.updated_at.isoformat(),
            }
            for endpoint in endpoints
        ],
        indent=2,
    )


def as_table(endpoints: list[Endpoint]) -> str:
    if not endpoints:
        return "No endpoint has been asked for yet."
    rows = [
        ("endpoint", "keep-alives", "interval", "frame", "state"),
        *(
            (
                endpoint.name,
                "on" if endpoint.keep_alive else "off",
                "as in code" if endpoint.interval is None else f"{endpoint.interval:g} s",
                endpoint.frame or "as in code",
                "open" if endpoint.is_open else "stopped",
            )
            for endpoint in endpoints
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
