"""``manage.py demo``: the demo site, ready to be looked at."""

import asyncio
import errno
import socket
from argparse import ArgumentParser
from ipaddress import IPv4Address
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import BaseCommand, CommandError, call_command
from django.utils.crypto import get_random_string
from twisted.internet import reactor
from twisted.internet.defer import Deferred

USERNAME = "admin"


class Command(BaseCommand):
    help = "Prepares the demo site's database and administrator, and serves it with Daphne."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--address", type=IPv4Address, default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000, help="or the next free one; 0 for any")

    def handle(self, *_args: Any, **options: Any) -> None:
        address: IPv4Address = options["address"]
        call_command("migrate", interactive=False, verbosity=options["verbosity"] - 1)
        port = free_port(str(address), options["port"])
        if options["port"] not in (0, port):
            self.stdout.write(self.style.WARNING(f"Port {options['port']} is taken; {port} is used instead."))
        self.introduce(f"http://{address}:{port}/", administrator=self.administrator(address))
        # Twisted's interfaces have no self, which mypy takes for a missing argument.
        reactor.addSystemEventTrigger("before", "shutdown", end_streams)  # type: ignore[arg-type]
        # Without the reloader: it would run this command again in a child process.
        call_command("runserver", f"{address}:{port}", use_reloader=False)

    def administrator(self, address: IPv4Address) -> str:
        """Give the administrator a new password and return how to log in, where nobody else can see it."""
        if not settings.DEBUG:
            return "no password is set: DEBUG is off (use `manage.py createsuperuser`)"
        if not address.is_loopback:
            return f"no password is set: {address} can be reached from outside"
        password = get_random_string(16)
        user, _created = User.objects.get_or_create(username=USERNAME)
        user.is_active = user.is_staff = user.is_superuser = True
        user.set_password(password)
        user.save()
        return f"user {USERNAME}, password {password}"

    def introduce(self, url: str, administrator: str) -> None:
        layer = "Redis" if settings.REDIS_URL else "memory: set REDIS_URL for several processes"
        self.stdout.write(
            "\n"
            f"  Open      {self.style.SUCCESS(url)}\n"
            f"  Admin     {url}admin/ ({administrator})\n"
            f"  Orders    {url}orders/ in two windows (messages go through {layer})\n"
            f"  Terminal  curl -N {url}report/    (keep-alives for 30 seconds, then the report)\n\n"
        )
        self.stdout.flush()


def free_port(address: str, first: int) -> int:
    """Return the first port from ``first`` on that nobody listens at; any for 0."""
    for port in range(first, 65536):
        try:
            with socket.create_server((address, port)) as probe:
                return int(probe.getsockname()[1])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CommandError(f"{address}:{port}: {error.strerror}") from error
        except OverflowError as error:
            raise CommandError(f"{port} is no port.") from error
    raise CommandError(f"No port is free from {first} on.")


def end_streams() -> Deferred[Any] | None:
    """End the streams that are still open when Daphne is told to stop, before it closes their connections."""
    # On Django 5.2 and 6.0 a stream runs in a task of its own, which Daphne does not know and would leave behind.
    # Python 3.11 may crash as it exits with such tasks.
    tasks = asyncio.all_tasks()
    for task in tasks:
        task.cancel()
    return Deferred.fromFuture(asyncio.ensure_future(asyncio.wait(tasks, timeout=2))) if tasks else None
