"""
Tests in processes of their own: in one that runs tests, nothing is read in the background.

A test that is decorated with :func:`in_the_background` is called by pytest as usual, but its body runs elsewhere: in a
process that no other test has used, with the app, a database in a file (or what ``SWITCHES_DATABASE`` names, as JSON),
and warnings as errors. These processes are forked from one that has loaded Django already, which saves half a second
each. There the rest of this module watches, holds up and breaks what goes on between the switches and their database.
"""

import asyncio
import importlib
import inspect
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import django
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tests.asgi import TIME_LIMIT

ROOT: Final = Path(__file__).resolve().parent.parent

#: The environment variable that carries a database, as in ``DATABASES``.
DATABASE: Final = "SWITCHES_DATABASE"

#: What takes its time to load, and can be loaded without settings.
LOADED_BEFORE: Final = ("django.db.models", "django.test", "django.views")

#: The name of the threads that read the switches.
READER: Final = "sse_keepalive.switches"


# In the process that runs the tests.


def in_the_background(*, migrated: bool = True, **options: Any) -> Callable[[Callable[[], Any]], Callable[..., None]]:
    """
    Let a test, a function or a coroutine function, run in a process that is no test process.

    :param migrated: whether its database has the table.
    :param options: further settings, as far as JSON can carry them.
    """

    def decorate(test: Callable[[], Any]) -> Callable[..., None]:
        def run_elsewhere(tmp_path: Path, pytestconfig: pytest.Config) -> None:
            global _parent
            if _parent is None:
                _parent = Parent()
                pytestconfig.add_cleanup(_parent.close)
            database = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(tmp_path / "db.sqlite3"),
                # As in other databases, who reads for long does not keep others from writing; and nothing waits for
                # the disk.
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"},
            }
            databases = {"default": json.loads(os.environ.get(DATABASE, "null")) or database}
            output = tmp_path / "output"
            code = _parent.run(
                module=test.__module__,
                name=test.__name__,
                migrated=migrated,
                options={"DATABASES": databases, **options},
                output=str(output),
            )
            assert (code, output.read_text()) == (0, ""), output.read_text()

        # Not functools.wraps: pytest would look through it for the arguments.
        run_elsewhere.__name__ = run_elsewhere.__qualname__ = test.__name__
        run_elsewhere.__module__ = test.__module__
        run_elsewhere.__doc__ = test.__doc__
        run_elsewhere.test = test  # type: ignore[attr-defined]
        return run_elsewhere

    return decorate


class Parent:
    """The process from which those of the tests are forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, **order: Any) -> int:
        """Let a test run, and return the exit code of its process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], 2 * TIME_LIMIT)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
        answer = self._process.stdout.readline()
        assert answer, "The test has hung, or its process has taken its parent along."
        return int(answer)

    def close(self) -> None:
        self._process.communicate()


_parent: Parent | None = None


def run_python(*arguments: str, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter, with warnings as errors, to its end."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * TIME_LIMIT,
    )


# In the other ones.


def fork_for_each_order() -> None:
    """Run each test that is asked for in a process of its own."""
    for module in LOADED_BEFORE:
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(**json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(*, module: str, name: str, migrated: bool, options: dict[str, Any], output: str) -> None:
    """Set up Django and run the body of a test."""
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    settings.configure(SECRET_KEY="not a secret", INSTALLED_APPS=["sse_keepalive"], USE_TZ=True, **options)
    django.setup()
    if migrated:
        asked(partial(call_command, "migrate", verbosity=0))
    test = getattr(importlib.import_module(module), name).test
    if inspect.iscoroutinefunction(test):
        asyncio.run(test())
    else:
        test()
    until(lambda: len(readers()) <= sum(clock.sleepers for clock in _clocks))
    connections.close_all()


class Database:
    """What is asked of the database from now on, by whom, and by way of which connections; it can be held up."""

    def __init__(self) -> None:
        #: The name of a thread, and what it has asked.
        self.queries: list[tuple[str, str]] = []
        self.connections: list[BaseDatabaseWrapper] = []
        #: Where a reader has come to be held up, and where it may go on.
        self.reached = threading.Event()
        self.released = threading.Event()
        self.released.set()
        self._held = ""
        self._holds_all = False
        #: Whether the database refuses to be changed, or to be asked.
        self.is_read_only = False
        self.is_gone = False
        connection_created.connect(self._watch)

    def hold(self, kind: str = "SELECT", *, all_of_them: bool = False) -> None:
        """Let the next query of that kind get its answer, but keep that from the reader until it is released."""
        self._held = kind
        self._holds_all = all_of_them
        self.reached.clear()
        self.released.clear()

    def release(self) -> None:
        self.released.set()

    def count(self, kind: str) -> int:
        """Return how many queries of that kind readers have asked."""
        return sum(sql.startswith(kind) for thread, sql in list(self.queries) if thread == READER)

    def _watch(self, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
        self.connections.append(connection)
        if self._ask not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._ask)

    def _ask(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        thread = threading.current_thread().name
        self.queries.append((thread, sql))
        if self.is_gone:
            raise OperationalError("the database is gone")
        if self.is_read_only and not sql.startswith("SELECT"):
            raise DatabaseError("attempt to write a readonly database")
        result = execute(sql, params, many, context)
        is_held = sql.startswith(self._held) and not self.released.is_set()
        if thread == READER and is_held and (self._holds_all or not self.reached.is_set()):
            self.reached.set()
            assert self.released.wait(TIME_LIMIT)
        return result


def readers() -> list[threading.Thread]:
    """Return the threads that are reading."""
    return [thread for thread in threading.enumerate() if thread.name == READER]


def until(is_so: Callable[[], object]) -> None:
    """Wait in a thread until something is so."""
    deadline = time.monotonic() + TIME_LIMIT
    while not is_so():
        assert time.monotonic() < deadline, "That took too long."
        time.sleep(0.002)


async def eventually(is_so: Callable[[], object]) -> None:
    """Wait on a loop until something is so."""
    async with asyncio.timeout(TIME_LIMIT):
        while not is_so():
            await asyncio.sleep(0.002)


def asked(question: Callable[[], Any]) -> Any:
    """Return what the database answers, and leave no connection behind in this thread."""
    try:
        return question()
    finally:
        connections.close_all()


async def answer(question: Callable[[], Any]) -> Any:
    """Return the same on a loop."""
    return await sync_to_async(asked)(question)


class Clock:
    """Time for one module, which passes only when it is told to."""

    def __init__(self, module: Any) -> None:
        self._now = time.monotonic()
        self._deadlines: list[float] = []
        self._news = threading.Condition()
        _clocks.append(self)
        module.time = self

    def monotonic(self) -> float:
        return self._now

    @property
    def sleepers(self) -> int:
        """How many threads wait for it to pass."""
        return sum(deadline > self._now for deadline in list(self._deadlines))

    def sleep(self, seconds: float) -> None:
        deadline = self._now + seconds
        with self._news:
            self._deadlines.append(deadline)
            self._news.wait_for(lambda: self._now >= deadline, TIME_LIMIT)
            self._deadlines.remove(deadline)

    def advance(self, seconds: float) -> None:
        with self._news:
            self._now += seconds
            self._news.notify_all()


_clocks: list[Clock] = []


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """Take whatever is logged in the meantime."""
    records: list[logging.LogRecord] = []

    class Taker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    taker = Taker(logging.WARNING)
    logging.getLogger().addHandler(taker)
    try:
        yield records
    finally:
        logging.getLogger().removeHandler(taker)


if __name__ == "__main__":
    # Not this very module, which is another to those that import it by its name.
    importlib.import_module("tests.background").fork_for_each_order()
