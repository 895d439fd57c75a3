"""
What an operator has decided about each endpoint, as a snapshot in memory.

Whoever asks for a switch looks into a dictionary. If the last look at the table was too long ago, he also starts a
thread that reads the whole of it anew, and does not wait for that. So nobody waits for the database, it is asked once
in ``SSE_KEEPALIVE_REFRESH`` seconds at most, and never while nobody asks. A decision that is saved in this process
is read as soon as it is committed. Rows for new endpoints are made in a thread of their own, for an insert can be held
up by whoever else writes, and must not hold up the reading. Whatever goes wrong leaves the last snapshot in force.

Without the app in ``INSTALLED_APPS`` every switch is as the code says. In a process that runs tests no thread is
started: it would see what a test has not committed, or not see it, and keep the test database from being dropped.
"""

import asyncio
import concurrent.futures
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.db import connections, router, transaction

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

#: Seconds between two times that rows are made.
BETWEEN_ROWS: Final = 1.0

#: Seconds that a request waits at most for a snapshot that is on its way, if the last is older than ``RECENT`` or
#: there is none.
PATIENCE: Final = 0.5
RECENT: Final = 5.0

#: Seconds after which a thread that still waits for the database is given up, and another may try.
LOST_AFTER: Final = 30.0

UNREADABLE: Final = "The switches of event streams cannot be read, so they stay as they are: %r"
UNLISTED: Final = "Event streams cannot be listed in the admin: %r"


class Switch(NamedTuple):
    """What an operator has decided about an endpoint; empty values leave it to the code."""

    keep_alive: bool = True
    #: Seconds.
    interval: float | None = None
    #: The name of a ready-made frame.
    frame: str = ""
    is_open: bool = True


AS_IN_CODE: Final = Switch()


class Override:
    """A switch that is in force until it is cancelled, whatever else is."""

    def __init__(self, name: str, switch: Switch) -> None:
        self.name = name
        self.switch = switch


class Switches:
    """The switches of all endpoints, for any thread to ask."""

    def __init__(self) -> None:
        #: Called with the names whose switches have changed, in whatever thread has found out.
        self.listeners: list[Callable[[Iterable[str]], None]] = []
        self._overrides: dict[str, tuple[Override, ...]] = {}
        self._troubles: set[str] = set()
        self._hooks: dict[str, Callable[[], None]] = {}
        self._loads = 0
        self._rest()
        self.forget()

    def _rest(self) -> None:
        """Be without threads, as in the child of a fork."""
        self._lock = threading.Lock()
        self._loading: concurrent.futures.Future[None] | None = None
        self._readers = 0
        self._must_load_again = False
        self._is_making_rows = False
        self._started_at = self._heard_at = self._due_at = self._made_at = -math.inf

    def forget(self) -> None:
        """Start anew, as in a process that has not read the table; for tests, whose data are gone."""
        with self._lock:
            self._rows: Mapping[str, Switch] = {}
            self._due_at = self._read_at = -math.inf
            self._shown = self._loads
            #: Names that are to get a row, and those that did not get one, although nothing was wrong.
            self._missing: set[str] = set()
            self._unmakeable: set[str] = set()

    # For requests and streams.

    def is_on(self) -> bool:
        """Whether there are switches in a database."""
        return conf.refresh is not None and APP in apps.app_configs

    def get(self, name: str) -> Switch:
        """Return the switch of an endpoint as far as it is known, and see to it that this stays recent."""
        if self._overrides and (overrides := self._overrides.get(name)):
            return overrides[-1].switch
        if time.monotonic() >= self._due_at:  # else it is on: what is to be refreshed has been
            if not self.is_on():
                return AS_IN_CODE
            self.refresh()
        return self._rows.get(name, AS_IN_CODE)

    def note(self, name: str) -> None:
        """Take note that this endpoint exists: a row is made for it, in the background, if it has none."""
        if name in self._rows or name in self._missing or name in self._unmakeable or not self._has_background():
            return
        with self._lock:
            is_full = len(self._rows.keys() | self._missing | self._unmakeable) >= MOST_NAMES
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
            self._start_making_rows()

    def refresh(self, *, at_once: bool = False) -> float | None:
        """
        Start to read the table if that is due and nobody does; return in how many seconds to ask again.

        What is being read already does not count if it is due. It is read again behind that.

        :param at_once: whether it is due although it was read a moment ago.
        """
        now = time.monotonic()
        if now < self._due_at and not at_once:
            return self._due_at - now
        if not self._has_background():
            return None
        period = conf.refresh or math.inf
        error: Exception | None = None
        with self._lock:
            if now < self._due_at and not at_once:  # another thread was faster
                return period
            # The more threads hang already, the later another one tries.
            is_lost = now >= self._heard_at + LOST_AFTER * 2 ** (self._readers - 1)
            if self._loading is None:
                error = self._start_loading(now)
            elif is_lost:
                error = self._start_loading(now) or TimeoutError(f"no answer in {LOST_AFTER:g} s")
            else:
                self._must_load_again = True
            self._due_at = now + period  # the last, because who finds nothing due looks for what is loading
        if error is not None:
            self._complain("read", UNREADABLE, error)
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
        return self.is_on() and not runs_tests()

    # For those who change the table.

    def reload_on_commit(self, using: str) -> None:
        """Read the table in this thread as soon as the transaction is committed that has changed it."""
        connection = connections[using]
        hook = self._hooks.setdefault(using, partial(self._reload, using))
        if not self.is_on() or any(other is hook for _, other, *_ in connection.run_on_commit):
            return  # once for a transaction, however many rows it changes
        if connection.in_atomic_block or connection.get_autocommit():
            transaction.on_commit(hook, using=using, robust=True)

    def _reload(self, using: str) -> None:
        # Another database says nothing. Inside of a transaction nothing is committed: it is a test's, which will roll
        # it back.
        if using == router.db_for_write(_model()) and not connections[using].in_atomic_block:
            self._load()

    def override(self, name: str, switch: Switch) -> "Override":
        """Let a switch be in force in this process, whatever the table says, until the result is cancelled."""
        override = Override(name, switch)
        with self._lock:
            self._overrides[name] = (*self._overrides.get(name, ()), override)
        self._tell([name])
        return override

    def cancel(self, override: "Override") -> None:
        """Let what was in force before or has been put into force since be in force again."""
        with self._lock:
            others = tuple(other for other in self._overrides[override.name] if other is not override)
            if others:
                self._overrides[override.name] = others
            else:
                del self._overrides[override.name]
        self._tell([override.name])

    # In threads in the background.

    def _start_loading(self, now: float) -> Exception | None:
        self._started_at = self._heard_at = now
        self._must_load_again = False
        loading: concurrent.futures.Future[None] = concurrent.futures.Future()
        loading.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        self._loading = loading
        self._readers += 1
        error = _start(partial(self._run, loading))
        if error is not None:
            self._loading = None
            self._readers -= 1
            loading.set_result(None)
        return error

    def _run(self, loading: "concurrent.futures.Future[None]") -> None:
        try:
            self._load()
            if self._missing:  # still, because they could not be made so far
                self._start_making_rows()
        finally:
            with self._lock:
                self._readers -= 1
                self._heard_at = time.monotonic()
                if self._loading is loading:
                    self._loading = None
                is_outdated = self._must_load_again
            loading.set_result(None)
            connections.close_all()  # this thread's
            if is_outdated:
                self.refresh(at_once=True)

    def _load(self) -> None:
        with self._lock:
            self._loads += 1
            number = self._loads
        rows = None
        try:
            rows = self._read()
        except Exception as error:
            self._complain("read", UNREADABLE, error)
        else:
            self._relent("read", "The switches of event streams can be read again.")
        changed: set[str] = set()
        with self._lock:
            if number > self._shown:  # else one that began later, and has seen more, was faster
                self._read_at = time.monotonic()
                if rows is None:
                    return
                self._shown = number
                before = self._rows
                differing = {name for name, _ in rows.items() ^ before.items()}
                changed = {name for name in differing if rows.get(name, AS_IN_CODE) != before.get(name, AS_IN_CODE)}
                self._rows = rows
                self._missing -= rows.keys()
                self._unmakeable -= rows.keys()
        self._tell(changed)

    def _read(self) -> dict[str, Switch]:
        # From where they are written: a replica would know nothing yet of what this process does already.
        model = _model()
        using = router.db_for_write(model)
        if not _is_database(using):
            return {}
        return {name: Switch(*row) for name, *row in model.objects.using(using).values_list("name", *Switch._fields)}

    def _start_making_rows(self) -> None:
        error: Exception | None = None
        with self._lock:
            if not self._is_making_rows:
                error = _start(self._run_making_rows)
                self._is_making_rows = error is None
        if error is not None:
            self._complain("read", UNREADABLE, error)  # for want of threads, of which reading needs one too

    def _run_making_rows(self) -> None:
        is_well = goes_on = False
        try:
            # The first at once, and those that come in the next moment all together behind it.
            time.sleep(max(0.0, self._made_at + BETWEEN_ROWS - time.monotonic()))
            self._made_at = time.monotonic()
            is_well = self._make_rows()
        finally:
            connections.close_all()  # this thread's
            with self._lock:
                self._is_making_rows = False
                goes_on = is_well and bool(self._missing)
            if goes_on:
                self._start_making_rows()

    def _make_rows(self) -> bool:
        """Make the rows that are missing, and return whether more can be made."""
        with self._lock:
            names = self._missing.copy()
        if not names:  # another process has made them
            return True
        if "read" in self._troubles:  # then there is no use, and one line in the log is enough
            return False
        model = _model()
        try:
            using = router.db_for_write(model)
            if _is_database(using):
                model.objects.using(using).bulk_create(
                    [model(name=name) for name in sorted(names)],
                    ignore_conflicts=connections[using].features.supports_ignore_conflicts,
                )
        except Exception as error:
            self._complain("make", UNLISTED, error)
            return False
        self._relent("make", "Event streams can be listed in the admin again.")
        self._load()
        with self._lock:
            # Where the database takes names that differ in case for the same, say, they must not be tried for ever.
            self._unmakeable |= names & self._missing
            self._missing -= names
        return True

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


def runs_tests() -> bool:
    """Whether this process runs tests, of unittest or pytest-django: what setup_test_environment() leaves behind."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")


def _start(target: Callable[[], None]) -> Exception | None:
    """Start a thread, or return why it cannot be started: there are too many, or the process ends."""
    # A daemon: a database that does not answer must not hold up the end of the process.
    thread = threading.Thread(target=target, name="sse_keepalive.switches", daemon=True)
    try:
        thread.start()
    except Exception as error:
        return error
    return None


def _is_database(using: str) -> bool:
    """Whether there is one; a site may have none and be without switches."""
    return str(connections.settings[using]["ENGINE"]) != "django.db.backends.dummy"


def _model() -> Any:
    return apps.get_model(APP, "Endpoint")


#: Those of this process.
switches: Final = Switches()

if hasattr(os, "register_at_fork"):
    # A server that loads the site before it forks: the child has neither the threads nor those who hold the lock.
    os.register_at_fork(after_in_child=switches._rest)
