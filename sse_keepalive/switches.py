"""
What an operator has decided about each endpoint, as a snapshot in memory.

Whoever asks for a switch looks into a dictionary. If the last look at the table was too long ago, he also starts a
thread that reads the whole of it anew, and does not wait for that. So nobody waits for the database, it is asked once
in ``SSE_KEEPALIVE_REFRESH`` seconds at most, and never while nobody asks. A decision that is saved in this process
is read as soon as it is committed. Whatever goes wrong leaves the last snapshot in force.

Without the app in ``INSTALLED_APPS`` every switch is as the code says. In a process that runs tests no thread is
started: it would see what a test has not committed, or not see it, and keep the test database from being dropped.
"""

import asyncio
import concurrent.futures
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from sse_keepalive.conf import conf

logger = logging.getLogger(__name__)

APP: Final = "sse_keepalive"

#: Seconds. No proxy needs more than one keep-alive in a second, and no connection lives on less than one in a day.
SHORTEST_INTERVAL: Final = 1
LONGEST_INTERVAL: Final = 86_400

#: Characters of an endpoint's name.
LONGEST_NAME: Final = 255

#: So many rows are made by themselves. No site has as many endpoints; one that makes names of its users' data would.
MOST_NAMES: Final = 1_000

#: Seconds that a request waits at most for a snapshot that is on its way, if the last is older than ``RECENT`` or
#: there is none.
PATIENCE: Final = 0.5
RECENT: Final = 5.0

#: Seconds after which a thread that still waits for the database is given up, and another may try.
LOST_AFTER: Final = 30.0


class Switch(NamedTuple):
    """What an operator has decided about an endpoint; empty values leave it to the code."""

    keep_alive: bool = True
    #: Seconds.
    interval: float | None = None
    #: The name of a ready-made frame.
    frame: str = ""
    is_open: bool = True


AS_IN_CODE: Final = Switch()


class Switches:
    """The switches of all endpoints, for any thread to ask."""

    def __init__(self) -> None:
        #: Called with the names whose switches have changed, in whatever thread has found out.
        self.listeners: list[Callable[[Iterable[str]], None]] = []
        self._lock = threading.Lock()
        self._overrides: dict[str, Switch] = {}
        self._troubles: set[str] = set()
        self._loads = 0
        self._loading: concurrent.futures.Future[None] | None = None
        self._started_at = -math.inf
        self._must_load_again = False
        self._forget()

    def _forget(self) -> None:
        self._rows: Mapping[str, Switch] = {}
        self._due_at = -math.inf
        self._read_at = -math.inf
        self._shown = self._loads
        #: Names that are to get a row, and those that have got one which was not seen yet.
        self._missing: set[str] = set()
        self._made: set[str] = set()

    # For requests and streams.

    def is_on(self) -> bool:
        """Whether there are switches in a database."""
        return conf.refresh is not None and APP in apps.app_configs

    def get(self, name: str) -> Switch:
        """Return the switch of an endpoint as far as it is known, and see to it that this stays recent."""
        if self._overrides and name in self._overrides:
            return self._overrides[name]
        if time.monotonic() >= self._due_at:  # else it is on: what is to be refreshed has been
            if not self.is_on():
                return AS_IN_CODE
            self.refresh()
        return self._rows.get(name, AS_IN_CODE)

    def note(self, name: str) -> None:
        """Take note that this endpoint exists: a row is made for it, in the background, if it has none."""
        if name in self._rows or name in self._missing or name in self._made or not self._has_background():
            return
        with self._lock:
            is_full = len(self._rows.keys() | self._missing | self._made) >= MOST_NAMES
            if not is_full:
                self._missing.add(name)
        if is_full:
            self._complain(
                "limit",
                "%s event streams have names of their own, so no more appear in the admin (%r, for one). Are names "
                "built from users' data? Give these streams one name, with endpoint=.",
                MOST_NAMES,
                name,
            )
        else:
            self.refresh(at_once=True)

    def refresh(self, *, at_once: bool = False) -> float | None:
        """
        Start to read the table if that is due and nobody does; return in how many seconds to ask again.

        :param at_once: whether it is due although it was read a moment ago; then what is being read does not count.
        """
        now = time.monotonic()
        if now < self._due_at and not at_once:
            return self._due_at - now
        if not self._has_background():
            return None
        period = conf.refresh or math.inf
        with self._lock:
            if now < self._due_at and not at_once:  # another thread was faster
                return period
            self._due_at = now + period
            if self._loading is not None and now < self._started_at + LOST_AFTER:
                self._must_load_again |= at_once
            else:
                self._start_loading(now)
        return period

    async def until_recent(self) -> None:
        """Wait, where there is no recent snapshot but one is on its way, for :data:`PATIENCE` seconds at most."""
        loading, patience = self._awaited()
        if loading is not None:
            await asyncio.wait([asyncio.wrap_future(loading)], timeout=patience)

    def block_until_recent(self) -> None:
        """Wait in the same way in a thread that has no event loop."""
        loading, patience = self._awaited()
        if loading is not None:
            concurrent.futures.wait([loading], timeout=patience)

    def _awaited(self) -> tuple["concurrent.futures.Future[None] | None", float]:
        if time.monotonic() < self._read_at + RECENT or not self._has_background():
            return None, 0.0
        self.refresh()
        patience = self._started_at + PATIENCE - time.monotonic()
        return (self._loading if patience > 0 else None), patience

    def _has_background(self) -> bool:
        # What setup_test_environment() leaves behind, for unittest and pytest-django alike.
        state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
        return self.is_on() and not hasattr(state, "saved_data")

    # For those who change the table.

    def reload_on_commit(self, using: str) -> None:
        """Read the table in this thread as soon as the transaction is committed that has changed it."""
        transaction.on_commit(partial(self._reload, using), using=using, robust=True)

    def _reload(self, using: str) -> None:
        # Inside of a transaction nothing is committed: it is a test's, which will roll it back.
        if self.is_on() and not connections[using].in_atomic_block:
            self._load(using)

    def forget(self) -> None:
        """Start anew, as in a process that has not read the table."""
        with self._lock:
            names = set(self._rows)
            self._forget()
        self._tell(names)

    def override(self, name: str, switch: Switch | None) -> Switch | None:
        """Let a switch be in force in this process, whatever the table says, and return the one that was."""
        before = self._overrides.pop(name, None)
        if switch is not None:
            self._overrides[name] = switch
        self._tell([name])
        return before

    # In the thread that reads.

    def _start_loading(self, now: float) -> None:
        self._started_at = now
        self._must_load_again = False
        loading = self._loading = concurrent.futures.Future()
        loading.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        # A daemon: a database that does not answer must not hold up the end of the process.
        thread = threading.Thread(target=self._run, args=(loading,), name="sse_keepalive.switches", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the process ends
            self._loading = None
            loading.set_result(None)

    def _run(self, loading: "concurrent.futures.Future[None]") -> None:
        try:
            try:
                self._load(makes_rows=True)
            finally:
                connections.close_all()  # this thread's
        finally:
            with self._lock:
                if self._loading is loading:
                    self._loading = None
                is_outdated = self._must_load_again
            loading.set_result(None)
            if is_outdated:
                self.refresh(at_once=True)

    def _load(self, using: str | None = None, *, makes_rows: bool = False) -> None:
        with self._lock:
            self._loads += 1
            number = self._loads
        began_at = time.monotonic()
        rows = None
        try:
            rows = self._read(using)
            if makes_rows:
                self._make_rows(rows)
        except ImproperlyConfigured:  # a site without a database
            rows = rows or {}
        except Exception as error:
            self._complain("read", "The switches of event streams cannot be read, so they stay as they are: %r", error)
        else:
            self._relent("read", "The switches of event streams can be read again.")
        changed: set[str] = set()
        with self._lock:
            self._read_at = max(self._read_at, began_at)
            # One that began later has seen more, and may have been faster.
            if rows is not None and number > self._shown:
                self._shown = number
                changed = {name for name, _ in rows.items() ^ self._rows.items()}
                self._rows = rows
        self._tell(changed)

    def _read(self, using: str | None) -> dict[str, Switch]:
        table = _model().objects.using(using)
        return {name: Switch(*row) for name, *row in table.values_list("name", *Switch._fields)}

    def _make_rows(self, rows: dict[str, Switch]) -> None:
        with self._lock:
            # What was made and has not come into sight (names that differ in case only, where the database does not
            # tell these apart) is not made again and again; what has, can be made again when it was deleted.
            self._made -= rows.keys()
            self._missing -= rows.keys()
            names = sorted(self._missing)
        if not names:
            return
        model = _model()
        ignores_conflicts = connections[model.objects.all().db].features.supports_ignore_conflicts
        try:
            model.objects.bulk_create([model(name=name) for name in names], ignore_conflicts=ignores_conflicts)
        except Exception as error:
            self._complain("make", "Event streams cannot be listed in the admin: %r", error)
            return
        self._relent("make", "Event streams can be listed in the admin again.")
        with self._lock:
            self._missing.difference_update(names)
            self._made.update(names)
        rows.update(dict.fromkeys(names, AS_IN_CODE))

    def _tell(self, names: Iterable[str]) -> None:
        if names:
            for listener in self.listeners:
                listener(names)

    # One line in the log for each change of fortune.

    def _complain(self, what: str, message: str, *arguments: Any) -> None:
        if what not in self._troubles:
            self._troubles.add(what)
            logger.warning(message, *arguments)

    def _relent(self, what: str, message: str) -> None:
        if what in self._troubles:
            self._troubles.discard(what)
            logger.warning(message)


def _model() -> Any:
    return apps.get_model(APP, "Endpoint")


#: Those of this process.
switches: Final = Switches()
