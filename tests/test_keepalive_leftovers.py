"""Nothing is left behind (C12), even where the known limit strikes (C15)."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from sse_keepalive.frames import COMMENT
from tests.clock import run
from tests.test_keepalive import keep_alive, now, script
from tests.upstreams_failing import settle


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def armed() -> list[Any]:
    """Return the timers of the package that have not been cancelled."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    owners = [getattr(handle._callback, "__self__", None) for handle in scheduled if not handle.cancelled()]
    return [owner for owner in owners if type(owner).__module__.startswith("sse_keepalive")]


# How consumers leave. They hold the stream in a list, not in a variable: a traceback keeps the variables.


async def _to_the_end(streams: list[Any]) -> None:
    async for _ in streams[0]:
        pass


async def _closed_parked(streams: list[Any]) -> None:
    while await anext(streams[0]) != COMMENT:
        pass
    await streams[0].aclose()


async def _closed_at_a_yield(streams: list[Any]) -> None:
    await anext(streams[0])
    await streams[0].aclose()


async def _cancelled(streams: list[Any]) -> None:
    asyncio.get_running_loop().call_later(2.5, asyncio.current_task().cancel)  # type: ignore[union-attr]
    await _to_the_end(streams)


async def _cancelled_in_close(streams: list[Any]) -> None:
    await anext(streams[0])
    await anext(streams[0])
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
    await streams[0].aclose()


async def _dropped(streams: list[Any]) -> None:
    await anext(streams[0])


async def _dropped_parked(streams: list[Any]) -> None:
    while await anext(streams[0]) != COMMENT:
        pass


async def _ended(streams: list[Any]) -> None:
    asyncio.get_running_loop().call_later(1.5, streams[0].end)
    await _to_the_end(streams)


async def _timed_out(streams: list[Any]) -> None:
    async with asyncio.timeout(2.5):
        await _to_the_end(streams)


FUTURES: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()


def failing_future() -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1.5, settle, future, ValueError("future"))
    FUTURES.add(future)
    return future


async def _fails_through_a_future() -> AsyncIterator[str]:
    yield "data: 1\n\n"
    await failing_future()


async def _fails_in_its_cleanup() -> AsyncIterator[str]:
    try:
        yield "data: 1\n\n"
        await asyncio.sleep(2.5)
    finally:
        await asyncio.sleep(0.25)
        raise OSError


async def _hot() -> AsyncIterator[str]:
    yield "data: 1\n\n"
    await asyncio.sleep(1.5)
    for _ in range(100):
        yield "data: 1\n\n"
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    for _ in range(100):
        yield "data: 1\n\n"


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize(
    "leave",
    [
        _to_the_end,
        _closed_parked,
        _closed_at_a_yield,
        _cancelled,
        _cancelled_in_close,
        _dropped,
        _dropped_parked,
        _ended,
        _timed_out,
    ],
)
@pytest.mark.parametrize(
    "make", [lambda: script("data: 1\n\n", 2.5), _fails_through_a_future, _fails_in_its_cleanup, _hot]
)
@pytest.mark.parametrize("keep_error", [True, False])
def test_c12_nothing_is_left_behind(make: Callable[[], Any], leave: Callable[[Any], Any], keep_error: bool) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the errors of what is dropped
        FUTURES.clear()
        upstream = make()
        died = weakref.ref(upstream)
        errors: list[BaseException] = []

        async def consume(streams: list[Any]) -> None:
            try:
                await leave(streams)
            except BaseException as error:
                if keep_error:
                    errors.append(error)
            streams.clear()

        stream = keep_alive(upstream)
        died_too = weakref.ref(stream)
        del upstream
        task = asyncio.create_task(consume([stream]))
        del stream
        await asyncio.wait([task])
        task.result()
        del task
        await asyncio.sleep(0.3)  # a stream that was dropped is finalised by the loop; no interval is that short
        assert armed() == []
        await asyncio.sleep(10)  # now what the upstreams and consumers have armed themselves is over too
        assert died() is None
        assert died_too() is None
        assert keep_error or not FUTURES
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_c15_a_scope_that_fires_while_a_frame_is_sent_ends_the_request_and_leaks_nothing() -> None:
    events: list[Any] = []

    async def upstream() -> AsyncIterator[str]:
        try:
            async with asyncio.timeout(1.5):
                yield "data: 1\n\n"
                await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.25)
            events.append(("clean-up", now()))

    async def send() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            events.append(("send was cancelled", now()))
            raise

    async def request() -> None:
        stream = keep_alive(upstream())
        try:
            async for chunk in stream:
                if chunk == COMMENT:
                    await send()
        finally:
            await stream.aclose()

    async def main() -> None:
        task = asyncio.create_task(request())
        await asyncio.wait([task])
        assert isinstance(task.exception() if not task.cancelled() else asyncio.CancelledError(), BaseException)
        assert (armed(), asyncio.all_tasks()) == ([], {asyncio.current_task()})

    run(main)
    assert events == [("send was cancelled", 1.5), ("clean-up", 1.75)]


@pytest.mark.usefixtures("without_gc")
def test_c12_a_timer_keeps_nothing_of_the_streams_context() -> None:
    class Held:
        pass

    variable: contextvars.ContextVar[Held] = contextvars.ContextVar("variable")

    async def request() -> weakref.ref[Held]:
        held = Held()
        variable.set(held)
        async for _ in keep_alive(script("data: 1\n\n", 0.5), 30):
            pass
        return weakref.ref(held)

    async def main() -> None:
        # In front of the stream's timer, which is cancelled, and stays in the loop's heap behind it.
        other = asyncio.get_running_loop().call_later(10, lambda: None)
        task = asyncio.create_task(request())
        died = await task
        del task
        await asyncio.sleep(1)
        assert died() is None
        other.cancel()

    run(main)
