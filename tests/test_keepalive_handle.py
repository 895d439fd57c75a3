"""The handle from outside (C16): a stream that is told to end, or to use another interval and frame."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sse_keepalive.frames import COMMENT, LINE
from sse_keepalive.keepalive import KeepAliveStream
from tests.clock import VirtualTimeLoop, run
from tests.test_keepalive import Timed, keep_alive, now, script, timed
from tests.test_keepalive_closing import Upstream


def told(*calls: tuple[float, Callable[[KeepAliveStream[Any]], None]], upstream: Any, **options: Any) -> Timed:
    async def main() -> Timed:
        stream = keep_alive(upstream(), **options)
        for when, call in calls:
            asyncio.get_running_loop().call_later(when, call, stream)
        return [*await timed(stream), (now(), "end")]

    return run(main)


def end(stream: KeepAliveStream[Any]) -> None:
    stream.end()


def use(interval: float | None, frame: str = COMMENT) -> Callable[[KeepAliveStream[Any]], None]:
    return lambda stream: stream.use(interval, frame)


def both(*calls: Callable[[KeepAliveStream[Any]], None]) -> Callable[[KeepAliveStream[Any]], None]:
    def call(stream: KeepAliveStream[Any]) -> None:
        for one in calls:
            one(stream)

    return call


@pytest.mark.parametrize("interval", [1, 30, None])
@pytest.mark.parametrize("when", [1.25, 1])
@pytest.mark.parametrize("call", [end, both(end, end), both(end, use(5)), both(use(5), end)])
def test_c16_end_wakes_a_parked_stream_at_once_and_closes_its_upstream(
    interval: float | None, when: float, call: Callable[[KeepAliveStream[Any]], None]
) -> None:
    upstream = Upstream(0.25)
    seen = told((when, call), upstream=lambda: upstream, interval=interval)
    assert [chunk for _, chunk in seen if chunk != COMMENT] == ["data: 1\n\n", "end"]
    assert seen[-1] == (when + 0.25, "end")
    assert upstream.events == [asyncio.CancelledError, when + 0.25]


@pytest.mark.parametrize("interval", [0.75, 30, None])
def test_c16_end_inside_an_event_waits_for_its_end(interval: float | None) -> None:
    seen = told(
        (1, end), upstream=lambda: script("event: x\n", 1.5, "data: 1\n\n", "data: 2\n\n", 99), interval=interval
    )
    chunks = [entry for entry in seen if entry[1] != LINE]
    assert chunks == [(0, "event: x\n"), (1.5, "data: 1\n\n"), (1.5, "end")]


@pytest.mark.parametrize("interval", [0.75, 30, None])
@pytest.mark.parametrize("part", ["event: x\n", "data: 1", "data: 1\r"])
def test_c16_end_inside_an_event_that_does_not_end_takes_two_seconds(interval: float | None, part: str) -> None:
    seen = told((1, end), upstream=lambda: script(part, 99), interval=interval)
    assert seen[-1] == (3, "end")


def test_c16_end_before_the_first_pull() -> None:
    async def main() -> None:
        closed = []

        class Closing(Upstream):
            def __aiter__(self) -> Any:
                return self

            async def __anext__(self) -> str:
                raise AssertionError

            async def aclose(self) -> None:
                closed.append(self)

        upstream = Closing()
        stream = keep_alive(upstream)
        stream.end()
        assert await timed(stream) == []
        await stream.aclose()
        assert closed == [upstream]

    run(main)


@pytest.mark.parametrize("interval", [1, 30])
@pytest.mark.parametrize("pause", [0, 5])
def test_c16_end_in_the_turn_of_the_consumer_is_felt_at_its_next_pull(interval: float, pause: float) -> None:
    async def main() -> None:
        for steps in (["data: 1\n\n", 100], [100], ["data: 1\n\n", 1.5, "data: 2\n\n", 100]):
            stream = keep_alive(script(*steps), interval, first_interval=1)
            await anext(stream)
            stream.end()
            await asyncio.sleep(pause)
            begin = now()
            assert await timed(stream) == []
            assert now() == begin

    run(main)


def test_c16_end_in_the_turn_of_the_consumer_inside_an_event_takes_two_seconds() -> None:
    async def main() -> None:
        stream = keep_alive(script(0.25, "data: 1\n\n", 0.25, "event: x\n", 100), 30)
        await anext(stream)
        await anext(stream)
        stream.end()
        assert await timed(stream) == []
        assert now() == 2.5

    run(main)


def test_c16_an_upstream_that_ends_its_own_stream_in_the_middle_of_a_step() -> None:
    streams: list[KeepAliveStream[Any]] = []

    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        for pause in pauses:
            await asyncio.sleep(pause)
        streams[0].end()
        await asyncio.sleep(100)

    async def main() -> None:
        streams[:] = [keep_alive(upstream(), 30)]
        assert [chunk for _, chunk in await timed(streams[0])] == ["data: 1\n\n"]
        assert now() == sum(pauses)

    for pauses in ([], [1]):  # noqa: B007 - the upstream reads it
        run(main)


def test_c16_end_stops_an_upstream_that_never_suspends() -> None:
    async def hot() -> AsyncIterator[str]:
        while True:
            yield "data: 1\n\n"

    async def main() -> int:
        stream = keep_alive(hot())
        asyncio.get_running_loop().call_soon(stream.end)
        return len(await timed(stream))

    assert run(main) <= 17


def test_c16_end_in_the_turn_of_fairness_is_felt_before_the_next_step_is_waited_for() -> None:
    async def main() -> None:
        stream = keep_alive(script(*["data: 1\n\n"] * 16, 100), 30)
        asyncio.get_running_loop().call_soon(stream.end)
        assert len(await timed(stream)) == 16
        assert now() == 0

    run(main)


@pytest.mark.parametrize("interval", [0.5, 1, 30])
def test_c16_a_stream_falls_silent_and_starts_again(interval: float) -> None:
    seen = told((1.75, use(None)), (5.75, use(1, LINE)), upstream=lambda: script("data: 1\n\n", 8), interval=interval)
    frames = [entry for entry in seen if entry[1] in (COMMENT, LINE)]
    assert [when for when, frame in frames if frame == COMMENT and when > 1.75] == []
    # How long it has been silent already counts.
    first = 5.75
    assert [when for when, frame in frames if frame == LINE] == [first, first + 1, first + 2]


def test_c16_a_silent_stream_whose_interval_was_off_starts() -> None:
    seen = told((3, use(2)), upstream=lambda: script("data: 1\n\n", 8), interval=None)
    assert [when for when, chunk in seen if chunk == COMMENT] == [3, 5, 7]


def test_c16_a_shorter_interval_counts_from_the_next_frame_on() -> None:
    seen = told((3, use(5)), upstream=lambda: script("data: 1\n\n", 16), interval=30)
    assert [when for when, chunk in seen if chunk == COMMENT] == [5, 10, 15]


def test_c16_a_shorter_interval_told_in_the_turn_of_the_consumer_counts_from_the_next_frame_on() -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n", 0.5, "data: 2\n\n", 9), 30)
        await anext(stream)
        await anext(stream)
        stream.use(2, LINE)
        assert await timed(stream) == [(2.5, LINE), (4.5, LINE), (6.5, LINE), (8.5, LINE)]

    run(main)


def test_c16_a_longer_interval_too() -> None:
    seen = told((1.5, use(4)), upstream=lambda: script("data: 1\n\n", 10), interval=1)
    assert [when for when, chunk in seen if chunk == COMMENT] == [1, 5, 9]


def test_c16_a_spinner_that_changes_its_own_interval_still_gets_frames() -> None:
    streams: list[KeepAliveStream[Any]] = []

    async def upstream() -> AsyncIterator[str]:
        await asyncio.sleep(0.5)
        streams[0].use(1, LINE)
        while now() < 6:
            await asyncio.sleep(0)
        yield "data: 1\n\n"

    async def main() -> Timed:
        streams[:] = [keep_alive(upstream(), 30)]
        return await timed(streams[0])

    seen = run(main, lambda: VirtualTimeLoop(per_pass=0.03125))
    assert [chunk for _, chunk in seen] == [LINE] * 5 + ["data: 1\n\n"]


def test_c16_end_again_or_during_a_close_leaves_the_clean_up_alone() -> None:
    async def upstream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.25)
            await asyncio.sleep(0.25)
            cleaned_up.append(now())

    async def main() -> None:
        stream = keep_alive(upstream())
        assert [await anext(stream), await anext(stream)] == ["data: 1\n\n", COMMENT]
        asyncio.get_running_loop().call_later(0.125, stream.end)
        await stream.aclose()

    cleaned_up: list[float] = []
    for second in (1.125, 1.375):
        told((1, end), (second, end), upstream=upstream, interval=30)
    run(main)
    assert cleaned_up == [1.5, 1.5, 1.5]


def test_c16_a_stream_that_is_to_end_sends_no_frame_before_its_time() -> None:
    async def hot() -> AsyncIterator[str]:
        yield "event: x\n"
        while True:
            yield "data: 1\n"

    async def main() -> list[str]:
        stream = keep_alive(hot(), 1000)
        asyncio.get_running_loop().call_later(0.01, stream.end)
        return [chunk async for chunk in stream]

    assert LINE not in run(main, lambda: VirtualTimeLoop(per_pass=0.0002))


def test_c16_a_stream_within_another_can_be_ended_in_the_same_moment() -> None:
    async def main() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        inner = keep_alive(script(100), 30)
        outer = keep_alive(inner, 30)
        reader = asyncio.create_task(timed(outer))
        await asyncio.sleep(1)
        inner.end()
        outer.end()
        await asyncio.wait([reader])
        await asyncio.sleep(1)
        assert reader.result() == []
        assert complaints == []  # of a task that is woken again when it is done

    run(main)


def test_c16_a_stream_within_another_that_is_ended_inside_an_event_takes_two_seconds_too() -> None:
    async def main() -> None:
        inner = keep_alive(script("event: x\n", 100), 30)
        outer = keep_alive(inner, 1)
        assert [await anext(outer), await anext(outer)] == ["event: x\n", LINE]
        outer.use(None, COMMENT)
        inner.end()  # while the consumer of the stream around it has the turn
        assert await timed(outer) == []
        assert now() == 3

    run(main)
