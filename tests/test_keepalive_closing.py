"""Closing (C7): in the middle of a step, at a yield, before the first pull, and what may come in between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sse_keepalive.frames import COMMENT
from tests.clock import VirtualTimeLoop, run
from tests.test_keepalive import keep_alive, now, script, timed


class Upstream:
    """An upstream that sleeps, and takes time to clean up; its events are written down."""

    def __init__(self, cleanup: float = 0.25, error: BaseException | None = None) -> None:
        self.events: list[Any] = []
        self._cleanup = cleanup
        self._error = error

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            await asyncio.sleep(100)
            yield "data: 2\n\n"
        except BaseException as error:
            self.events.append(type(error))
            raise
        finally:
            try:
                await asyncio.sleep(self._cleanup)
            except asyncio.CancelledError as error:
                self.events.append(str(error))
            self.events.append(now())
            if self._error is not None:
                raise self._error


async def parked(upstream: Any, **options: Any) -> Any:
    """Return the stream in the middle of its second step, a frame having been handed out."""
    stream = keep_alive(upstream, **options)
    assert [await anext(stream), await anext(stream)] == ["data: 1\n\n", COMMENT]
    return stream


def test_c7_close_while_parked_runs_the_cleanup_and_waits_for_it() -> None:
    async def main() -> None:
        upstream = Upstream()
        await (await parked(upstream)).aclose()
        assert (upstream.events, now()) == ([asyncio.CancelledError, 1.25], 1.25)

    run(main)


def test_c7_close_at_a_yield_is_a_generator_exit() -> None:
    async def main() -> None:
        upstream = Upstream()
        stream = keep_alive(upstream)
        await anext(stream)
        await stream.aclose()
        assert upstream.events == [GeneratorExit, 0.25]

    run(main)


def test_c7_closing_twice_is_harmless_where_the_cleanup_awaits_nothing() -> None:
    async def main() -> None:
        stream = await parked(script("data: 1\n\n", 100))
        await stream.aclose()
        await stream.aclose()
        assert await timed(stream) == []

    run(main)


@pytest.mark.parametrize("is_parked", [True, False])
def test_c7_closing_twice_is_harmless_and_the_stream_is_over(is_parked: bool) -> None:
    async def main() -> None:
        upstream = Upstream()
        stream = await parked(upstream) if is_parked else keep_alive(upstream)
        await stream.aclose()
        await stream.aclose()
        assert await timed(stream) == []
        assert len(upstream.events) == (2 if is_parked else 0)

    run(main)


def test_c7_close_before_the_first_pull_closes_the_upstream_too() -> None:
    class Closing(Upstream):
        async def aclose(self) -> None:
            self.events.append("aclose")

    async def main() -> None:
        upstream, generator = Closing(), script("data: 1\n\n")
        for source in upstream, generator:
            stream = keep_alive(source)
            await stream.aclose()
            await stream.aclose()
        assert upstream.events == ["aclose"]
        assert await timed(generator) == []

    run(main)


def test_c7_an_error_in_the_cleanup_is_raised() -> None:
    async def main() -> None:
        error = OSError("clean-up")
        stream = await parked(Upstream(error=error))
        with pytest.raises(OSError, match="clean-up") as caught:
            await stream.aclose()
        assert caught.value is error

    run(main)


@pytest.mark.parametrize("is_parked", [True, False])
def test_c7_a_cancellation_during_the_close_goes_into_the_cleanup_and_is_raised_behind_it(is_parked: bool) -> None:
    async def main() -> None:
        upstream = Upstream(cleanup=5)
        if is_parked:
            stream = await parked(upstream)
        else:
            stream = keep_alive(upstream)
            await anext(stream)
        begin = now()
        task = asyncio.create_task(stream.aclose())
        await asyncio.sleep(1.5)
        task.cancel("during the close")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert upstream.events[1:] == ["during the close", begin + 1.5]
        assert task.cancelling() == 1

    run(main)


def test_c7_a_cancellation_during_the_close_keeps_its_message() -> None:
    async def upstream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)

    async def main() -> None:
        stream = await parked(upstream())
        task = asyncio.create_task(stream.aclose())
        await asyncio.sleep(1)
        task.cancel("during the close")
        with pytest.raises(asyncio.CancelledError, match="during the close"):
            await task
        assert now() == 2

    run(main)


def test_c7_close_cancels_what_the_step_awaits() -> None:
    events: list[str] = []

    async def child(name: str) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(3)
            events.append(name)
            raise

    async def gathering() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        await asyncio.gather(child("first"), child("second"))

    async def awaiting() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        await asyncio.create_task(child("task"))

    async def main() -> None:
        for upstream in gathering, awaiting:
            await (await parked(upstream())).aclose()
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (events, now()) == (["first", "second", "task"], 8)

    run(main)


@pytest.mark.parametrize("call", ["end", "use", "use later"])
def test_c7_whatever_is_told_to_a_stream_that_is_being_closed_does_not_cut_its_cleanup_short(call: str) -> None:
    async def main() -> None:
        upstream = Upstream(cleanup=10)
        stream = await parked(upstream)
        calls: dict[str, Callable[[], None]] = {
            "end": stream.end,
            "use": lambda: stream.use(0.5, COMMENT),
            "use later": lambda: stream.use(5, COMMENT),
        }
        asyncio.get_running_loop().call_later(2, calls[call])
        await stream.aclose()
        assert upstream.events == [asyncio.CancelledError, 11]

    run(main)


def test_c7_a_chunk_that_is_yielded_at_the_close_is_dropped() -> None:
    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        try:
            yield "data: dropped\n\n"
        finally:
            events.append(now())

    async def main() -> None:
        stream = await parked(upstream())
        await stream.aclose()
        assert (events, await timed(stream)) == ([1], [])

    events: list[float] = []
    run(main)


def test_c7_an_upstream_that_yields_at_generator_exit_gets_the_error_of_python() -> None:
    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        with contextlib.suppress(GeneratorExit):
            yield "data: dropped\n\n"
        yield "data: still here\n\n"

    async def main() -> None:
        stream = await parked(upstream())
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            await stream.aclose()

    run(main)


def test_c7_another_task_that_closes_during_a_pull_is_told_so_as_bare() -> None:
    async def main() -> None:
        streams: list[Any] = [script(5, "data: 1\n\n"), keep_alive(script(5, "data: 1\n\n"), 30)]
        for stream in streams:
            task = asyncio.create_task(timed(stream))
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="already running"):
                await stream.aclose()
            assert len(await task) == 1

    run(main)


def test_c7_a_spinner_is_closed_too() -> None:
    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        try:
            while True:
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(2)
            events.append("closed")

    async def main() -> None:
        await (await parked(upstream())).aclose()

    events: list[str] = []
    run(main, lambda: VirtualTimeLoop(per_pass=0.125))
    assert events == ["closed"]


def test_a_consumer_whose_coroutine_is_closed_takes_the_upstream_along() -> None:
    events = []

    async def hot() -> AsyncIterator[str]:
        try:
            while True:
                yield "data: 1\n\n"
        finally:
            events.append("upstream")

    async def consume(upstream: Any) -> None:
        try:
            async for _ in keep_alive(upstream):
                pass
            events.append("end")
        except BaseException as error:
            events.append(type(error).__name__)
            raise

    async def main() -> None:
        for upstream in hot(), script(100):
            coroutine = consume(upstream)
            coroutine.send(None)
            coroutine.close()
        await asyncio.sleep(1)

    run(main)
    assert [event for event in events if event != "upstream"] == ["GeneratorExit", "GeneratorExit"]


def test_c7_a_spinner_that_answers_the_close_with_a_chunk_is_closed_behind_it() -> None:
    events: list[str] = []

    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        try:
            with contextlib.suppress(asyncio.CancelledError):
                while True:
                    await asyncio.sleep(0)
            yield "data: dropped\n\n"
        except GeneratorExit:
            events.append("closed at its yield")
            raise

    async def main() -> None:
        await (await parked(upstream())).aclose()

    run(main, lambda: VirtualTimeLoop(per_pass=0.125))
    assert events == ["closed at its yield"]


def test_c7_a_cancellation_that_the_clean_up_swallows_is_raised_behind_the_close() -> None:
    events: list[object] = []

    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        try:
            await asyncio.sleep(100)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            await asyncio.sleep(1)
            events.append(now())

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        stream = await parked(upstream())
        asyncio.get_running_loop().call_later(2, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await stream.aclose()
        assert events == [now()] == [4]

    run(main)
