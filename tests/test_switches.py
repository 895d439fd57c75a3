"""The snapshot of what operators have decided: how it is read, when, by whom, and what happens if it cannot be."""

import asyncio
import gc
import os
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.decorators import method_decorator
from django.views import View
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks

from sse_keepalive import streams
from sse_keepalive import switches as switches_module
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.http import EventStreamResponse
from sse_keepalive.models import Endpoint
from sse_keepalive.switches import AS_IN_CODE, LOST_AFTER, MOST_NAMES, RECENT, Switch, Switches, switches
from tests.asgi import TIME_LIMIT, answering, get
from tests.background import (
    READER,
    Clock,
    Database,
    answer,
    asked,
    eventually,
    in_the_background,
    logged,
    readers,
    until,
)

OFF = Switch(keep_alive=False)
STOPPED = Switch(is_open=False)

#: The request of a browser's event source.
BROWSER = {"Accept": "text/event-stream"}


# Views, and what becomes of them.


async def one_event() -> AsyncIterator[str]:
    yield "data: 1\n\n"


@sse_keepalive
async def unnamed(request: HttpRequest) -> AsyncIterator[str]:
    yield "data: 1\n\n"


@sse_keepalive(endpoint="named")
async def named(request: HttpRequest) -> AsyncIterator[str]:
    yield "data: 1\n\n"


class OfAClass(View):
    @method_decorator(sse_keepalive)
    async def get(self, request: HttpRequest) -> AsyncIterator[str]:
        return one_event()


@method_decorator(sse_keepalive(endpoint="named"), name="dispatch")
class NamedClass(View):
    async def get(self, request: HttpRequest) -> AsyncIterator[str]:
        return one_event()


@sse_keepalive(endpoint="named")
def synchronous(request: HttpRequest) -> AsyncIterator[str]:
    return one_event()


async def by_hand(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(one_event(), request=request, endpoint="named")


def names() -> list[str]:
    """Return the endpoints that have a row."""
    return sorted(asked(lambda: list(Endpoint.objects.values_list("name", flat=True))))


async def names_become(expected: list[str]) -> None:
    """Wait until there are these rows and nobody is about to make any more."""
    async with asyncio.timeout(TIME_LIMIT):
        while readers() or (found := await answer(names)) != expected:
            assert len(found := await answer(names)) <= len(expected), found
            await asyncio.sleep(0.002)


def decide(name: str, **values: Any) -> None:
    """Decide something as another process would: this one is not told of it."""
    rows = [Endpoint(name=name, **values)]
    conflicts: Any = {"update_conflicts": True, "unique_fields": ["name"], "update_fields": list(values)}
    asked(lambda: Endpoint.objects.bulk_create(rows, **conflicts))


def read_again(clock: Clock) -> None:
    """Ask for something when it is time to read again, and wait until nothing is done any more."""
    clock.advance(2)
    switches.get("anything")
    until(lambda: len(readers()) <= clock.sleepers)


async def silence() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


class Stream:
    """An open stream that has nothing to say; in the meantime its reader waits for the next chunk."""

    def __init__(self, endpoint: str) -> None:
        self._chunks = aiter(EventStreamResponse(silence(), endpoint=endpoint, interval=None))
        self._pull: asyncio.Task[Any] | None = None

    async def open(self) -> "Stream":
        assert await anext(self._chunks) == b""
        self._pull = asyncio.create_task(self._next())
        # From the moment on at which the silence has begun, after what can make it wait.
        await asyncio.sleep(0)
        return self

    async def _next(self) -> bytes | None:
        return await anext(self._chunks, None)

    async def ends(self) -> bool:
        """Return whether its end comes, for which it waits."""
        assert self._pull is not None
        async with asyncio.timeout(TIME_LIMIT):
            return await self._pull is None

    async def leave(self) -> None:
        assert self._pull is not None
        self._pull.cancel()
        await asyncio.wait([self._pull])
        await self._chunks.aclose()


def timers() -> list[asyncio.TimerHandle]:
    """Return the timers that the switches have on the running loop."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [
        handle
        for handle in scheduled
        if not handle.cancelled() and isinstance(getattr(handle._callback, "__self__", None), streams.LoopStreams)  # type: ignore[attr-defined]
    ]


# S1: where the rows come from.


@in_the_background()
async def test_s1_an_endpoint_gets_its_row_by_itself_at_its_first_stream() -> None:
    """Under the name that is said in code, else under that of the URL pattern, whatever a method may be called."""
    switches_module.BETWEEN_ROWS = 0.0  # type: ignore[misc]
    assert (await get(named)).body == b"data: 1\n\n"
    await names_become(["named"])
    assert (await get(OfAClass.as_view())).body == b"data: 1\n\n"
    await names_become(["named", "the-view"])
    for view in (unnamed, named, NamedClass.as_view(), synchronous, by_hand):
        assert (await get(view)).body == b"data: 1\n\n"
    await names_become(["named", "the-view"])
    row = await answer(Endpoint.objects.filter(name="named").get)
    assert (row.keep_alive, row.interval, row.frame, row.is_open) == AS_IN_CODE


@in_the_background()
async def test_s1_what_never_streams_gets_no_row() -> None:
    assert (await get(named, method="HEAD")).status == 200
    EventStreamResponse(one_event(), endpoint="closed").close()
    EventStreamResponse(one_event(), endpoint="dropped")
    nameless = EventStreamResponse(one_event())
    assert b"".join([chunk async for chunk in nameless]) == b"data: 1\n\n"

    @sse_keepalive(endpoint="no stream")
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("no stream")

    assert (await get(view)).body == b"no stream"
    await get(unnamed)
    await names_become(["the-view"])


@in_the_background()
async def test_s1_a_row_that_was_deleted_comes_back_at_the_next_request() -> None:
    await get(named)
    await names_become(["named"])
    clock = Clock(switches_module)
    read_again_later = asyncio.get_running_loop().run_in_executor(None, read_again, clock)  # sees it
    await read_again_later
    await answer(Endpoint.objects.all().delete)
    assert await answer(names) == []
    await get(named)
    await names_become(["named"])


@in_the_background()
async def test_s1_a_row_that_was_deleted_right_after_it_was_made_comes_back_at_the_next_request() -> None:
    switches_module.BETWEEN_ROWS = 0.0  # type: ignore[misc]
    await get(named)
    await names_become(["named"])
    await answer(Endpoint.objects.all().delete)
    assert await answer(names) == []
    await get(named)
    await names_become(["named"])


@in_the_background()
async def test_s1_a_row_that_another_process_has_deleted_comes_back_when_that_was_seen() -> None:
    clock = Clock(switches_module)
    loop = asyncio.get_running_loop()
    await get(named)
    await names_become(["named"])
    await loop.run_in_executor(None, read_again, clock)
    await answer(lambda: Endpoint.objects.all()._raw_delete("default"))
    await loop.run_in_executor(None, read_again, clock)
    await get(named)
    await names_become(["named"])


@in_the_background()
def test_s1_names_that_differ_in_case_only_have_a_row_each() -> None:
    switches_module.BETWEEN_ROWS = 0.0  # type: ignore[misc]
    for name in ("orders", "Orders", "ORDERS"):
        switches.note(name)
    until(lambda: not readers())
    assert names() == ["ORDERS", "Orders", "orders"]


@in_the_background()
def test_s1_a_name_that_the_database_takes_for_another_is_not_tried_again_and_again() -> None:
    """As many databases take names for the same that differ in case only."""
    clock = Clock(switches_module)
    asked(lambda: connection.cursor().execute("CREATE UNIQUE INDEX x ON sse_keepalive_endpoint (lower(name))").close())
    database = Database()
    with logged() as records:
        for _ in range(3):
            for name in ("orders", "Orders", "ORDERS"):
                switches.note(name)
                read_again(clock)
    assert database.count("INSERT") == 3
    assert [record.getMessage() for record in records] == []
    assert names() == ["orders"]
    asked(Endpoint.objects.all().delete)
    switches.note("orders")
    read_again(clock)
    assert names() == ["orders"]
    # Which is the one that has a row is the operators' business.
    asked(Endpoint.objects.all().delete)
    decide("Orders", keep_alive=True)
    read_again(clock)
    asked(Endpoint.objects.all().delete)
    switches.note("Orders")
    read_again(clock)
    assert names() == ["Orders"]


@in_the_background()
def test_s1_rows_are_made_at_once_and_then_many_together() -> None:
    """A site that has just begun gets a few endpoints at its first requests; it need not read the table for each."""
    clock = Clock(switches_module)
    database = Database()
    switches.note("first")
    until(lambda: not readers())
    assert names() == ["first"]
    for number in range(50):
        switches.note(f"name {number:02}")
        switches.get(f"name {number:02}")
    read_again(clock)
    assert len(names()) == 51
    assert database.count("INSERT") == 2
    assert database.count("SELECT") <= 5


@in_the_background()
def test_s1_a_thousand_names_are_made_and_then_there_is_one_warning() -> None:
    clock = Clock(switches_module)
    with logged() as records:
        for number in range(MOST_NAMES):
            switches.note(f"name {number}")
            if number % 100 == 99:
                read_again(clock)
        assert len(names()) == MOST_NAMES == 1_000
        assert records == []
        for number in range(10):
            switches.note(f"one too many {number}")
            read_again(clock)
        [record] = records
        assert "1000" in record.getMessage()
        assert "one too many 0" in record.getMessage()
        assert "endpoint=" in record.getMessage()
        switches.note("name 1")
    assert len(names()) == MOST_NAMES
    assert switches.get("one too many 0") == AS_IN_CODE


@in_the_background()
def test_s1_names_that_were_made_a_moment_ago_count_once() -> None:
    """Many are made at once where that was not possible for a while."""
    clock = Clock(switches_module)
    database = Database()
    database.is_read_only = True
    with logged() as records:
        for number in range(600):
            switches.note(f"name {number}")
        read_again(clock)
        database.is_read_only = False
        read_again(clock)
        read_again(clock)
        assert len(names()) == 600
        records.clear()
        for number in range(600, MOST_NAMES):
            switches.note(f"name {number}")
        read_again(clock)
        assert [record.getMessage() for record in records] == []
    assert len(names()) == MOST_NAMES


# S3: the first request.


@in_the_background(SSE_KEEPALIVE_REFRESH=0.001)
async def test_s3_the_first_request_of_a_process_waits_for_the_first_look_at_the_table() -> None:
    switches_module.PATIENCE = TIME_LIMIT  # type: ignore[misc]
    await answer(lambda: decide("named", is_open=False))
    database = Database()
    for view in (named, NamedClass.as_view(), synchronous):
        await eventually(lambda: not readers())
        switches.forget()
        database.hold()
        async with answering(view, headers=BROWSER) as exchange:
            await eventually(database.reached.is_set)
            done, _ = await asyncio.wait([exchange.task], timeout=0.05)
            assert not done
            database.release()
            await exchange.finish()
        assert exchange.status == 204


@in_the_background(SSE_KEEPALIVE_REFRESH=0.001)
async def test_s3_a_stream_made_by_hand_does_not_start_before_the_first_look_at_the_table() -> None:
    """Its status is said before anything can wait; it ends before its first event."""
    switches_module.PATIENCE = TIME_LIMIT  # type: ignore[misc]
    await answer(lambda: decide("named", is_open=False))
    exchange = await get(by_hand, headers=BROWSER)
    assert exchange.is_complete
    assert exchange.body == b""
    assert (await get(by_hand, headers=BROWSER)).status == 204


@in_the_background(SSE_KEEPALIVE_REFRESH=0.001)
async def test_s3_nobody_waits_for_longer_than_half_a_second_for_a_database_that_hangs() -> None:
    database = Database()
    for view in (named, synchronous, by_hand):
        await eventually(lambda: not readers())
        switches.forget()
        database.hold()
        began_at = time.monotonic()
        assert (await get(view)).body == b"data: 1\n\n"
        assert 0.45 <= time.monotonic() - began_at <= 5.0
        # Later requests do not wait at all.
        with pytest.raises(StopIteration):
            switches.until_recent().send(None)
        assert (await get(view)).body == b"data: 1\n\n"
        assert database.reached.is_set()
        database.release()


@in_the_background()
async def test_s3_a_process_that_has_not_looked_for_long_waits_as_if_it_were_fresh() -> None:
    switches_module.PATIENCE = TIME_LIMIT  # type: ignore[misc]
    clock = Clock(switches_module)
    database = Database()
    assert (await get(named)).status == 200
    await names_become(["named"])
    # What it knows is recent enough, though it is time to look again.
    await answer(lambda: decide("named", is_open=False))
    clock.advance(RECENT - 1)
    database.hold()
    assert (await get(named, headers=BROWSER)).status == 200
    database.release()
    await eventually(lambda: len(readers()) <= clock.sleepers)
    assert (await get(named, headers=BROWSER)).status == 204
    # Or it is not, and says nothing about what is so now.
    await answer(lambda: decide("named", is_open=True))
    clock.advance(RECENT + 1)
    database.hold()
    async with answering(named, headers=BROWSER) as exchange:
        await eventually(database.reached.is_set)
        database.release()
        await exchange.finish()
    assert exchange.status == 200


@in_the_background()
def test_s3_a_loop_that_is_closed_while_a_request_waits_leaves_no_complaint() -> None:
    database = Database()
    database.hold()

    async def main() -> None:
        request = asyncio.create_task(switches.until_recent())
        await eventually(database.reached.is_set)
        request.cancel()
        await asyncio.wait([request])

    with logged() as records:
        asyncio.run(main())
        database.release()
        until(lambda: not readers())
    assert [record.getMessage() for record in records] == []


@in_the_background()
def test_s1_a_name_that_is_noted_when_rows_have_just_been_made_gets_its_row_as_well() -> None:
    """Also if nobody asks for anything afterwards."""
    switches_module.BETWEEN_ROWS = 0  # type: ignore[misc]
    for number in range(100):
        switches.note(f"first {number}")
        time.sleep(number % 20 / 10_000)
        switches.note(f"second {number}")
        until(lambda: {f"first {number}", f"second {number}"} <= set(switches._rows))  # noqa: B023


# S5: what it costs.


@in_the_background()
async def test_s5_a_request_asks_the_database_for_nothing() -> None:
    database = Database()
    for view in (named, unnamed, OfAClass.as_view(), NamedClass.as_view(), synchronous, by_hand):
        for method in ("GET", "HEAD"):
            assert (await get(view, method=method)).status == 200
    await eventually(lambda: not readers())
    assert {thread for thread, _ in database.queries} == {READER}


@in_the_background()
async def test_s5_a_thousand_first_requests_are_one_query() -> None:
    await answer(lambda: decide("named", keep_alive=False))
    database = Database()

    async def ask() -> Switch:
        await switches.until_recent()
        return switches.get("named")

    def ask_from_a_thread(_: int) -> Switch:
        switches.block_until_recent()
        return switches.get("named")

    def ask_from_threads() -> list[Switch]:
        with ThreadPoolExecutor(20) as threads:
            return list(threads.map(ask_from_a_thread, range(100)))

    from_threads = asyncio.get_running_loop().run_in_executor(None, ask_from_threads)
    assert set(await asyncio.gather(*(ask() for _ in range(1_000)))) == {OFF}
    assert set(await from_threads) == {OFF}
    assert len(database.queries) == 1


@in_the_background()
async def test_s5_a_thousand_first_streams_are_one_query_and_one_timer() -> None:
    await answer(lambda: decide("named", keep_alive=False))
    database = Database()
    opened = await asyncio.gather(*(Stream("named").open() for _ in range(1_000)))
    await eventually(lambda: len(timers()) == 1)
    assert len(database.queries) == 1
    for stream in opened:
        await stream.leave()
    assert timers() == []


@in_the_background()
def test_s5_the_table_is_read_once_in_a_while_however_many_ask_and_never_while_nobody_asks() -> None:
    database = Database()
    clock = Clock(switches_module)

    def ask(_: int) -> None:
        for _ in range(100):
            switches.get("anything")

    def ask_a_lot() -> None:
        with ThreadPoolExecutor(10) as threads:
            list(threads.map(ask, range(10)))
        until(lambda: not readers())

    ask_a_lot()
    assert len(database.queries) == 1
    clock.advance(1.99)
    ask_a_lot()
    assert len(database.queries) == 1
    clock.advance(0.02)
    assert len(database.queries) == 1
    ask_a_lot()
    assert len(database.queries) == 2
    clock.advance(3600)
    assert readers() == []
    assert len(database.queries) == 2


@in_the_background(SSE_KEEPALIVE_REFRESH=0.1)
async def test_s5_a_stream_lets_the_table_be_read_until_it_ends() -> None:
    await answer(lambda: decide("named", keep_alive=False))
    database = Database()
    began_at = time.monotonic()
    opened = [await Stream("named").open() for _ in range(10)]
    await eventually(lambda: database.count("SELECT") >= 4)
    assert database.count("SELECT") <= (time.monotonic() - began_at) / 0.1 + 1
    for stream in opened:
        await stream.leave()
    await eventually(lambda: not readers())
    reads = database.count("SELECT")
    await asyncio.sleep(0.3)
    assert database.count("SELECT") == reads
    assert timers() == []


@in_the_background()
def test_s5_a_decision_that_is_saved_while_the_table_is_read_is_not_lost() -> None:
    """The read that was under way has seen less, and must not have the last word."""
    decide("named", keep_alive=True)
    database = Database()
    database.hold()
    switches.get("named")
    assert database.reached.wait(TIME_LIMIT)
    row = Endpoint.objects.get(name="named")
    row.keep_alive = False
    row.save()
    assert switches.get("named") == OFF
    database.release()
    until(lambda: not readers())
    assert switches.get("named") == OFF


@in_the_background()
def test_s1_a_name_that_is_noted_while_the_table_is_read_gets_its_row_as_well() -> None:
    switches_module.BETWEEN_ROWS = 0.0  # type: ignore[misc]
    database = Database()
    for kind, name in (("SELECT", "one"), ("INSERT", "two")):
        database.hold(kind)
        switches.note(f"before {name}")
        assert database.reached.wait(TIME_LIMIT)
        switches.note(name)
        database.release()
        until(lambda: not readers())
    assert names() == ["before one", "before two", "one", "two"]


@in_the_background()
def test_s4_after_a_read_that_took_longer_than_until_the_next_there_is_another_at_once() -> None:
    """It has seen what was so at its beginning."""
    clock = Clock(switches_module)
    database = Database()
    decide("named", keep_alive=True)
    database.hold()
    switches.get("named")
    assert database.reached.wait(TIME_LIMIT)
    decide("named", keep_alive=False)
    clock.advance(2)
    assert switches.get("named") == AS_IN_CODE
    assert len(readers()) == 1
    database.release()
    until(lambda: switches.get("named") == OFF)


@in_the_background()
def test_s5_a_read_that_takes_too_long_is_given_up_and_does_not_undo_the_next() -> None:
    clock = Clock(switches_module)
    decide("named", keep_alive=False)
    database = Database()
    database.hold()
    switches.get("named")
    assert database.reached.wait(TIME_LIMIT)
    decide("named", is_open=False)
    clock.advance(LOST_AFTER - 1)
    switches.get("named")
    [lost] = readers()
    lost.name = "lost"
    assert switches.get("named") == AS_IN_CODE
    clock.advance(2)
    with logged() as records:
        switches.get("named")
        until(lambda: not readers())
    assert ["no answer" in record.getMessage() for record in records] == [True, False]
    assert switches.get("named") == Switch(keep_alive=False, is_open=False)
    database.release()
    lost.join(TIME_LIMIT)
    until(lambda: not readers())
    assert switches.get("named") == Switch(keep_alive=False, is_open=False)


@in_the_background()
def test_s4_a_read_that_hangs_holds_up_the_others_once_and_not_for_ever() -> None:
    """As with a connection of which nobody says that it is dead: that can last for a quarter of an hour."""
    clock = Clock(switches_module)
    database = Database()
    database.hold()
    switches.get("named")
    assert database.reached.wait(TIME_LIMIT)
    [lost] = readers()
    lost.name = "lost"
    clock.advance(LOST_AFTER + 1)
    with logged() as records:
        for keep_alive in (False, True, False):
            decide("named", keep_alive=keep_alive)
            read_again(clock)
            assert switches.get("named").keep_alive is keep_alive
    assert ["no answer" in record.getMessage() for record in records] == [True, False]
    assert lost.is_alive()
    database.release()
    lost.join(TIME_LIMIT)
    until(lambda: not readers())
    assert switches.get("named") == OFF


@in_the_background()
def test_s5_threads_that_hang_do_not_become_ever_more() -> None:
    clock = Clock(switches_module)
    database = Database()
    database.hold(all_of_them=True)
    with logged() as records:
        for _ in range(120):  # an hour
            switches.get("named")
            clock.advance(LOST_AFTER + 1)
        assert 1 < len(readers()) < 10
        assert ["no answer" in record.getMessage() for record in records] == [True]
        database.release()
        until(lambda: not readers())
    assert len(records) == 2


@in_the_background()
def test_s5_the_child_of_a_fork_reads_for_itself() -> None:
    """As a worker of a server that has loaded the site before, and where somebody has asked for a switch."""
    database = Database()
    database.hold()
    switches.note("named")
    assert database.reached.wait(TIME_LIMIT)
    switches._lock.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from 3.12 on Python warns of a fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            database.release()
            decide("another", keep_alive=False)
            switches.block_until_recent()
            code = 0 if switches.get("another") == OFF else 2
        finally:
            os._exit(code)
    switches._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    database.release()
    until(lambda: not readers())


@in_the_background()
def test_s5_what_another_database_says_is_not_in_force() -> None:
    """As that of a copy, or of another customer; the table is read where the router says."""
    usual = connections.databases["default"]
    connections.databases["other"] = {**usual, "NAME": f"{usual['NAME']}-other"}
    call_command("migrate", database="other", verbosity=0)
    Endpoint.objects.using("other").create(name="named", keep_alive=False)
    Endpoint.objects.using("other").all().set_state("stop")
    assert switches.get("named") == AS_IN_CODE
    Endpoint.objects.create(name="named", keep_alive=False)
    assert switches.get("named") == OFF


@in_the_background()
def test_s5_a_reader_gives_its_connection_back() -> None:
    database = Database()
    clock = Clock(switches_module)
    for name in ("one", "two"):
        switches.note(name)
        until(lambda: not readers())
        read_again(clock)
    assert len(database.connections) == 4
    assert [made.connection for made in database.connections] == [None] * 4


@in_the_background(SSE_KEEPALIVE_REFRESH=None)
async def test_s5_without_a_refresh_there_are_no_switches() -> None:
    await answer(lambda: decide("named", is_open=False))
    database = Database()
    assert (await get(named)).body == b"data: 1\n\n"
    stream = await Stream("other").open()
    await eventually(lambda: streams._loops)
    assert timers() == []
    await answer(Endpoint(name="by hand", is_open=False).save)
    assert switches.get("by hand") == AS_IN_CODE
    await stream.leave()
    assert readers() == []
    assert {thread for thread, _ in database.queries}.isdisjoint({READER})
    assert await answer(names) == ["by hand", "named"]


@in_the_background()
def test_s5_where_no_thread_can_be_started_requests_go_on() -> None:
    """As at the end of a process, or in one that has too many."""
    clock = Clock(switches_module)
    decide("named", keep_alive=False)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with logged() as records:
        threading.Thread.start = refuse  # type: ignore[assignment, method-assign]
        for _ in range(3):
            assert switches.get("named") == AS_IN_CODE
            switches.block_until_recent()
            switches.note("other")
            clock.advance(2)
        threading.Thread.start = start  # type: ignore[method-assign]
        assert ["new thread" in record.getMessage() for record in records] == [True]
        read_again(clock)
        read_again(clock)
        assert ["again" in record.getMessage() for record in records] == [False, True]
    assert switches.get("named") == OFF
    assert names() == ["named", "other"]


@in_the_background()
def test_s5_a_site_whose_mails_stay_in_memory_is_no_test() -> None:
    """As on a developer's machine: that backend makes the very outbox that a test has."""
    clock = Clock(switches_module)
    EmailBackend()
    assert hasattr(mail, "outbox")
    decide("named", keep_alive=False)
    read_again(clock)
    assert switches.get("named") == OFF


# Open streams, of whatever loop.


@in_the_background(SSE_KEEPALIVE_REFRESH=0.05)
def test_s3_the_streams_of_every_loop_end() -> None:
    async def follow() -> bool:
        stream = await Stream("named").open()
        return await stream.ends()

    def is_open() -> bool:
        return len(streams._loops) == 3 and all(loop._by_endpoint for loop in list(streams._loops.values()))

    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(asyncio.run, follow()) for _ in range(3)]
        until(is_open)
        decide("named", is_open=False)
        assert [end.result(TIME_LIMIT) for end in ends] == [True] * 3
    assert streams._loops == {}


@in_the_background()
def test_s3_a_loop_that_was_closed_with_open_streams_is_forgotten() -> None:
    clock = Clock(switches_module)
    told: list[Switch] = []

    async def open_one() -> streams.OpenStream:
        return streams.OpenStream("named", told.append)

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(open_one())
    loop.close()
    until(lambda: not readers())
    assert list(streams._loops) == [loop]
    with logged() as records:
        decide("named", is_open=False)
        read_again(clock)
        left.close()
    assert [record.getMessage() for record in records] == []
    assert STOPPED not in told

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(open_one())
    loop.close()

    async def another() -> None:
        stream = await open_one()
        assert list(streams._loops) == [asyncio.get_running_loop()]
        stream.close()

    asyncio.run(another())
    assert streams._loops == {}
    assert told[-2:] == [STOPPED, STOPPED]
    del left


async def eventually_open() -> None:
    """Wait until a stream of this loop is known."""
    await eventually(lambda: asyncio.get_running_loop() in streams._loops)


@in_the_background(SSE_KEEPALIVE_REFRESH=0.05)
async def test_c12_nothing_of_a_stream_is_left_behind() -> None:
    stream = await Stream("named").open()
    await eventually_open()
    assert len(timers()) == 1
    another = await Stream("another").open()
    await eventually(lambda: len(streams._loops[asyncio.get_running_loop()]._by_endpoint) == 2)
    await stream.leave()
    assert len(timers()) == 1
    await another.leave()
    assert timers() == []
    assert streams._loops == {}


@in_the_background(SSE_KEEPALIVE_REFRESH=0.05)
async def test_c12_nothing_is_left_behind_of_a_stream_that_was_dropped() -> None:
    async def pulled() -> None:
        chunks = aiter(EventStreamResponse(one_event(), endpoint="named"))
        assert [await anext(chunks), await anext(chunks)] == [b"", b"data: 1\n\n"]
        assert len(timers()) == 1

    await pulled()
    await eventually(lambda: streams._loops == {})
    assert timers() == []

    streams.OpenStream("named", lambda switch: None)
    assert len(timers()) == 1
    await eventually(lambda: streams._loops == {})
    assert timers() == []


@in_the_background(SSE_KEEPALIVE_REFRESH=0.05)
async def test_c12_what_the_first_streams_context_holds_is_not_kept_for_the_others() -> None:
    class Held:
        pass

    async def first(stream: Stream) -> "weakref.ref[Held]":
        held = Held()
        variable.set(held)
        await stream.open()
        while not timers():  # no time limit: that would be a timer that holds the context, too
            await asyncio.sleep(0)
        return weakref.ref(held)

    variable: ContextVar[Held] = ContextVar("variable")
    stream = Stream("named")
    held = await asyncio.create_task(first(stream))
    another = await Stream("named").open()
    await stream.leave()
    del stream
    await eventually(lambda: gc.collect() >= 0 and held() is None)
    assert len(timers()) == 1
    await another.leave()


# S6: what goes wrong.


@in_the_background(migrated=False)
async def test_s6_without_a_table_streams_go_on_and_with_one_there_are_switches() -> None:
    clock = Clock(switches_module)
    loop = asyncio.get_running_loop()
    with logged() as records:
        stream = await Stream("other").open()
        for _ in range(3):
            assert (await get(named)).body == b"data: 1\n\n"
            await loop.run_in_executor(None, read_again, clock)
        [record] = records
        assert "cannot be read" in record.getMessage()
        assert "no such table" in record.getMessage() or connection.vendor != "sqlite"
        await answer(lambda: call_command("migrate", verbosity=0))
        for _ in range(3):
            await loop.run_in_executor(None, read_again, clock)
            assert (await get(named)).body == b"data: 1\n\n"
        assert len(records) == 2
        assert "again" in records[1].getMessage()
    await names_become(["named", "other"] if "other" in await answer(names) else ["named"])
    await stream.leave()


@in_the_background()
async def test_s6_while_the_database_is_gone_the_last_known_state_is_in_force() -> None:
    clock = Clock(switches_module)
    loop = asyncio.get_running_loop()
    path = Path(str(django_settings.DATABASES["default"]["NAME"]))
    aside = path.with_name("aside")

    def take_away() -> None:
        until(lambda: not readers())
        path.rename(aside)
        path.mkdir()

    def bring_back(is_open: bool) -> None:
        until(lambda: not readers())
        path.rmdir()
        aside.rename(path)
        asked(lambda: decide("named", is_open=is_open))

    async def look() -> Switch:
        await loop.run_in_executor(None, read_again, clock)
        return switches.get("named")

    await answer(lambda: decide("named", is_open=False, keep_alive=False))
    await look()
    database = Database()
    with logged() as records:
        stream = await Stream("other").open()
        for lines, is_open in ((1, True), (3, False)):
            await loop.run_in_executor(None, take_away)
            for _ in range(3):
                assert (await look()).is_open is not is_open
                assert (await get(unnamed)).body == b"data: 1\n\n"
            assert [record.getMessage().partition(":")[0] for record in records][lines - 1 :] == [
                "The switches of event streams cannot be read, so they stay as they are"
            ]
            await loop.run_in_executor(None, bring_back, is_open)
            for _ in range(3):
                assert (await look()).is_open is is_open
            assert [record.getMessage() for record in records][lines:] == [
                "The switches of event streams can be read again."
            ]
    assert {record.name for record in records} == {"sse_keepalive.switches"}
    assert not stream._pull.done()  # type: ignore[union-attr]
    await stream.leave()
    await eventually(lambda: not readers())
    assert {made.connection for made in database.connections} == {None}


@in_the_background()
async def test_s6_what_failed_a_moment_ago_is_not_waited_for_by_the_next_request() -> None:
    """Or each would wait where a database takes its time to say that it is not there."""
    clock = Clock(switches_module)
    database = Database()
    database.is_gone = True
    with logged() as records:
        await switches.until_recent()
        await eventually(lambda: not readers())
        assert len(records) == 1
        database.is_gone = False
        database.hold()
        clock.advance(2)
        with pytest.raises(StopIteration):
            switches.until_recent().send(None)
        assert (await get(named)).body == b"data: 1\n\n"
        await eventually(database.reached.is_set)
        database.release()
        await eventually(lambda: len(readers()) <= clock.sleepers)
        clock.advance(2)
        await names_become(["named"])


@in_the_background()
def test_s6_where_rows_cannot_be_made_they_are_read_all_the_same() -> None:
    """As by a user of the database who may only read."""
    clock = Clock(switches_module)
    decide("named", keep_alive=False)
    database = Database()
    database.is_read_only = True
    with logged() as records:
        switches.note("other")
        until(lambda: not readers())
        for _ in range(3):
            read_again(clock)
        [record] = records
        assert "cannot be listed" in record.getMessage()
        assert switches.get("named") == OFF
        database.is_read_only = False
        read_again(clock)
        read_again(clock)
        assert len(records) == 2
        assert "again" in records[1].getMessage()
    assert names() == ["named", "other"]


@in_the_background(migrated=False, DATABASES={})
async def test_s6_a_site_without_a_database_has_nothing_to_complain_about() -> None:
    clock = Clock(switches_module)
    for _ in range(3):
        assert (await get(named)).body == b"data: 1\n\n"
        await asyncio.get_running_loop().run_in_executor(None, read_again, clock)
    assert switches.get("named") == AS_IN_CODE


# In a process that runs tests: nothing happens in the background, and what is committed is in force at once.


@pytest.mark.django_db(transaction=True)
def test_s5_in_a_test_a_decision_that_is_committed_is_in_force_at_once() -> None:
    row = Endpoint.objects.create(name="named", keep_alive=False)
    assert switches.get("named") == OFF
    row.is_open = False
    row.save()
    assert switches.get("named") == Switch(keep_alive=False, is_open=False)
    Endpoint.objects.filter(name="named").set_state("open")
    assert switches.get("named") == OFF
    row.delete()
    assert switches.get("named") == AS_IN_CODE


@pytest.mark.django_db(transaction=True)
def test_s5_a_decision_counts_from_its_commit_on() -> None:
    with transaction.atomic():
        row = Endpoint.objects.create(name="named", keep_alive=False)
        Endpoint.objects.filter(name="named").set_state("stop")
        assert switches.get("named") == AS_IN_CODE
    assert switches.get("named") == Switch(keep_alive=False, is_open=False)
    with transaction.atomic():
        row.delete()
        transaction.set_rollback(True)
    assert switches.get("named") == Switch(keep_alive=False, is_open=False)


@pytest.mark.django_db(transaction=True)
def test_s5_a_transaction_is_read_once_however_much_it_has_changed() -> None:
    rows = Endpoint.objects.bulk_create([Endpoint(name=f"name {number}") for number in range(10)])
    with CaptureQueriesContext(connection) as captured:
        with transaction.atomic():
            for row in rows[1:]:
                row.keep_alive = False
                row.save()
        assert switches.get("name 9") == OFF
    assert sum(query["sql"].startswith("SELECT") for query in captured) == 1
    # A part of it that was taken back has changed nothing, and is in nobody's way.
    with transaction.atomic():
        with transaction.atomic():
            rows[0].save()
            transaction.set_rollback(True)
        rows[1].delete()
    assert switches.get("name 1") == AS_IN_CODE


@pytest.mark.django_db(transaction=True)
def test_s5_a_decision_can_be_saved_where_transactions_are_managed_by_hand() -> None:
    connection.set_autocommit(False)
    try:
        row = Endpoint.objects.create(name="named", keep_alive=False)
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert switches.get("named") == AS_IN_CODE
    row.save()
    assert switches.get("named") == OFF


@pytest.mark.django_db
def test_s5_in_a_test_that_is_rolled_back_nothing_is_in_force(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks, caplog: pytest.LogCaptureFixture
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        Endpoint.objects.create(name="named", keep_alive=False)
    assert switches.get("named") == AS_IN_CODE
    assert caplog.records == []


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.django_db(transaction=True)
def test_s5_the_decisions_of_a_test_end_with_it(number: int) -> None:
    assert switches.get("named") == AS_IN_CODE
    Endpoint.objects.create(name="named", keep_alive=False)
    assert switches.get("named") == OFF


def test_s5_in_a_test_nothing_is_asked_of_the_database_and_no_thread_is_started(
    rf: RequestFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor may a database be used here at all: pytest-django would raise an error, which would be logged."""
    before = threading.enumerate()

    async def main() -> bytes:
        await switches.until_recent()
        assert timers() == []
        stream = await Stream("open").open()
        response = await named(rf.get("/"))
        body = b"".join([chunk async for chunk in response])
        assert timers() == []
        await stream.leave()
        return body

    assert asyncio.run(main()) == b"data: 1\n\n"
    assert streams._loops == {}
    switches.block_until_recent()
    switches.note("named")
    assert switches.refresh() is None
    assert switches.refresh(at_once=True) is None
    assert [thread for thread in threading.enumerate() if thread not in before and thread.name == READER] == []
    assert caplog.records == []


@pytest.mark.django_db
def test_s5_in_a_test_a_request_costs_no_query(
    rf: RequestFactory, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    async def main() -> None:
        views: list[Callable[..., Any]] = [named, by_hand, NamedClass.as_view()]
        for view in views:
            response = await view(rf.get("/"))
            assert b"".join([chunk async for chunk in response]) == b"data: 1\n\n"

    with django_assert_num_queries(0):
        asyncio.run(main())


@pytest.mark.django_db(transaction=True)
def test_s5_without_a_refresh_a_decision_is_not_read(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with override_settings(SSE_KEEPALIVE_REFRESH=None):
        with django_assert_num_queries(1):
            row = Endpoint.objects.create(name="named", keep_alive=False)
        assert switches.get("named") == AS_IN_CODE
        assert not switches.is_on()
    row.save()
    assert switches.get("named") == OFF
    with override_settings(SSE_KEEPALIVE_REFRESH=None):
        assert switches.get("named") == AS_IN_CODE


@pytest.mark.django_db(transaction=True)
def test_s4_who_listens_is_told_of_those_that_have_changed() -> None:
    told: list[set[str]] = []

    def listen(names: Iterable[str]) -> None:
        told.append(set(names))

    own = Switches()
    own.listeners.append(listen)
    own.reload_on_commit("default")
    assert told == []
    Endpoint.objects.bulk_create([Endpoint(name="one"), Endpoint(name="two", interval=20)])
    own.reload_on_commit("default")
    own.reload_on_commit("default")
    Endpoint.objects.filter(name="one").update(is_open=False)
    own.reload_on_commit("default")
    Endpoint.objects.filter(name="two").delete()
    own.reload_on_commit("default")
    own.cancel(own.override("three", OFF))
    # Of the one that is as in code nobody needs to know.
    assert told == [{"two"}, {"one"}, {"two"}, {"three"}, {"three"}]


@pytest.mark.django_db(transaction=True)
def test_s6_a_decision_that_cannot_be_read_back_is_saved_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        if sql.startswith("SELECT"):
            raise connection.Database.OperationalError("gone")  # type: ignore[attr-defined]
        return execute(sql, *arguments)

    with connection.execute_wrapper(refuse):
        row = Endpoint.objects.create(name="named", keep_alive=False)
        row.save(force_update=True)
    assert switches.get("named") == AS_IN_CODE
    [record] = caplog.records
    assert "gone" in record.getMessage()
    row.save()
    assert switches.get("named") == OFF
    assert "again" in caplog.records[1].getMessage()
