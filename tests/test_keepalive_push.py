"""Events from elsewhere: pushed between two of the upstream's, and an error that ends the stream as its own would."""

import asyncio
import contextlib
import gc
import random
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_keepalive.frames import COMMENT, LINE, ServerSentEvent
from sse_keepalive.keepalive import KeepAliveStream
from sse_keepalive.silence import EVENT_PATIENCE
from tests import oracle
from tests.clock import VirtualTimeLoop, run
from tests.oracle import Behaviour, Script, Seen, observe
from tests.test_keepalive import Timed, keep_alive, now, script, timed
from tests.test_keepalive_closing import Upstream, parked
from tests.test_keepalive_oracle import ALL, OF_GENERATORS, SCRIPTS, _applies
from tests.whatwg import decode

PUSHED = ServerSentEvent("pushed")
ONE, TWO, THREE = (ServerSentEvent(text) for text in ("one", "two", "three"))

#: When a push returned, and what.
Outcome = tuple[float, bool]


async def push(stream: Any, event: ServerSentEvent = PUSHED, when: float = 0) -> Outcome:
    await asyncio.sleep(when)
    went_out = await stream.push(event)
    return now(), went_out


def pushing(stream: Any, event: ServerSentEvent = PUSHED, when: float = 0) -> "asyncio.Task[Outcome]":
    return asyncio.create_task(push(stream, event, when))


def pushed(*pushes: tuple[float, ServerSentEvent], upstream: Any, **options: Any) -> tuple[Timed, list[Outcome]]:
    """Push these events at their times; return what came out, and the outcome of each push."""

    async def main() -> tuple[Timed, list[Outcome]]:
        stream = keep_alive(upstream(), **options)
        tasks = [pushing(stream, event, when) for when, event in pushes]
        seen = await timed(stream)
        return seen, [await task for task in tasks]

    return run(main)


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class CountingLoop(VirtualTimeLoop):
    """A loop in virtual time that counts its passes."""

    passes = 0

    def _run_once(self) -> None:
        self.passes += 1
        super()._run_once()  # type: ignore[misc]


def passes() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    return loop.passes


# Where a pushed event goes out.


@pytest.mark.parametrize("interval", [30, None])
def test_h1_a_push_wakes_a_parked_stream_at_once(interval: float | None) -> None:
    seen, outcomes = pushed(
        (1.25, PUSHED), upstream=lambda: script("data: 1\n\n", 3, "data: 2\n\n"), interval=interval
    )
    assert seen == [(0, "data: 1\n\n"), (1.25, PUSHED), (3, "data: 2\n\n")]
    assert outcomes == [(1.25, True)]


def test_h1_a_push_before_the_first_chunk_goes_out_at_once() -> None:
    seen, outcomes = pushed((0.5, PUSHED), upstream=lambda: script(1, "data: 1\n\n"), interval=30)
    assert seen == [(0.5, PUSHED), (1, "data: 1\n\n")]
    assert outcomes == [(0.5, True)]


@pytest.mark.parametrize("parts", [["event: x\n", "data: 1\n\n"], ["data: 1", "2\n\n"], ["data: 1\r", "\n\r\n"]])
@pytest.mark.parametrize("interval", [30, None])
def test_f2_a_push_inside_an_event_waits_until_it_is_complete(parts: list[str], interval: float | None) -> None:
    seen, outcomes = pushed(
        (0.5, PUSHED), upstream=lambda: script(parts[0], 1.5, parts[1], 1, "data: 3\n\n"), interval=interval
    )
    assert seen == [(0, parts[0]), (1.5, parts[1]), (1.5, PUSHED), (2.5, "data: 3\n\n")]
    assert outcomes == [(1.5, True)]


def test_f2_frames_fall_due_inside_an_event_while_a_push_waits_for_its_end() -> None:
    seen, outcomes = pushed((0.5, PUSHED), upstream=lambda: script("event: x\n", 2.5, "data: 1\n\n", 0.5), interval=1)
    assert seen == [(0, "event: x\n"), (1, LINE), (2, LINE), (2.5, "data: 1\n\n"), (2.5, PUSHED)]
    assert outcomes == [(2.5, True)]


@pytest.mark.parametrize("rest", [(100,), ("data: 2\n\n", 100)])
def test_h1_a_push_in_the_turn_of_the_consumer_is_the_next_that_it_gets(rest: Any) -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n", *rest), 30)
        await anext(stream)
        task = pushing(stream)
        await asyncio.sleep(3)
        assert not task.done()
        assert await anext(stream) == PUSHED
        assert now() == 3
        await stream.aclose()
        assert (await task)[1] is False  # it never asked for more

    run(main)


def test_h1_a_push_in_the_turn_of_the_consumer_in_the_middle_of_a_step() -> None:
    async def main() -> None:
        stream = await parked(script("data: 1\n\n", 100))
        task = pushing(stream)
        await asyncio.sleep(0.5)
        assert await anext(stream) == PUSHED
        assert now() == 1.5
        assert (await anext(stream), now()) == (COMMENT, 2.5)
        assert await task == (1.5, True)
        await stream.aclose()

    run(main)


def test_h1_a_push_goes_out_between_chunks_that_are_all_ready() -> None:
    async def hot() -> AsyncIterator[str]:
        for _ in range(200):
            yield "data: 1\n\n"

    async def main() -> None:
        stream = keep_alive(hot(), 30)
        task = pushing(stream)
        seen = [chunk async for chunk in stream]
        assert seen.index(PUSHED) <= 34  # a turn to begin to push in, and one to be felt in
        assert seen.count("data: 1\n\n") == 200
        assert (await task)[1] is True

    run(main)


def test_h1_a_push_goes_out_beside_an_upstream_that_spins() -> None:
    async def spinner() -> AsyncIterator[str]:
        while now() < 2:
            await asyncio.sleep(0)
        yield "data: 1\n\n"

    async def main() -> None:
        stream = keep_alive(spinner(), 30)
        tasks = [pushing(stream, ONE, 0.5), pushing(stream, TWO, 0.5), pushing(stream, THREE, 1)]
        seen = await timed(stream)
        assert [chunk for _, chunk in seen] == [ONE, TWO, THREE, "data: 1\n\n"]
        assert all(at <= wanted + 0.05 for (at, _), wanted in zip(seen, (0.5, 0.5, 1, 2), strict=True)), seen
        assert [went_out for _, went_out in [await task for task in tasks]] == [True] * 3

    run(main, lambda: VirtualTimeLoop(per_pass=0.0078125))


@pytest.mark.parametrize(
    ("frame", "chunks", "sent"),
    [
        (COMMENT, ["\ufeffdata: 1\n\n"], ["data: 1\n\n"]),
        (COMMENT.encode(), [b"\xef\xbb\xbfdata: 1\n\n"], [b"data: 1\n\n"]),
        (COMMENT.encode(), [b"\xef", b"\xbb", b"\xbfdata: 1\n\n"], [b"", b"", b"data: 1\n\n"]),
        (COMMENT, ["data: 1\n\n"], ["data: 1\n\n"]),
    ],
)
def test_f3_a_byte_order_mark_that_comes_behind_a_pushed_event_is_removed(
    frame: Any, chunks: list[Any], sent: list[Any]
) -> None:
    seen, outcomes = pushed((0.5, PUSHED), upstream=lambda: script(1, *chunks), interval=30, frame=frame)
    expected = PUSHED.encode() if isinstance(frame, bytes) else PUSHED
    assert seen == [(0.5, expected), *((1, chunk) for chunk in sent)]
    assert [type(chunk) for _, chunk in seen] == [bytes if isinstance(frame, bytes) else type(PUSHED)] + [
        type(chunk) for chunk in sent
    ]
    assert outcomes == [(0.5, True)]


def test_f3_a_push_waits_while_what_went_out_may_still_become_a_byte_order_mark() -> None:
    seen, outcomes = pushed(
        (0.5, PUSHED), upstream=lambda: script(b"\xef\xbb", 1, b"\xbfdata: 1\n\n"), interval=30, frame=COMMENT.encode()
    )
    assert seen == [(0, b"\xef\xbb"), (1, b"\xbfdata: 1\n\n"), (1, PUSHED.encode())]
    assert outcomes == [(1, True)]


def test_f1_a_pushed_event_has_the_type_of_the_chunks() -> None:
    for chunk, expected in (("data: 1\n\n", PUSHED), (b"data: 1\n\n", PUSHED.encode())):
        seen, _ = pushed((0.5, PUSHED), upstream=lambda chunk=chunk: script(chunk, 1), interval=30)
        assert seen[1] == (0.5, expected)


# In which order, and how long a push takes.


def test_h1_pushed_events_keep_their_order_and_each_waits_until_the_consumer_asks_for_more() -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n", 10), 30)
        tasks = [pushing(stream, event, 1) for event in (ONE, TWO, THREE)]
        seen: Timed = []
        async for chunk in stream:
            seen.append((now(), chunk))
            await asyncio.sleep(2)
        assert seen == [(0, "data: 1\n\n"), (2, ONE), (4, TWO), (6, THREE)]
        assert [await task for task in tasks] == [(4, True), (6, True), (8, True)]

    run(main)


def test_h1_one_who_pushes_one_event_after_another_gets_each_out_in_the_same_moment() -> None:
    async def main() -> None:
        async def push_all() -> float:
            for event in (ONE, TWO, THREE):
                assert await stream.push(event)
            return now()

        stream = keep_alive(script("data: 1\n\n", 1, "data: 2\n\n", 5), None)
        task = asyncio.create_task(push_all())
        assert await timed(stream) == [(0, "data: 1\n\n"), (0, ONE), (0, TWO), (0, THREE), (1, "data: 2\n\n")]
        assert await task == 0

    run(main)


# What becomes of a push when the stream is over.


async def _ends(stream: Any) -> None:
    await timed(stream)


async def _is_closed_parked(stream: Any) -> None:
    while await anext(stream) != LINE:
        pass
    await stream.aclose()


async def _is_closed_at_a_yield(stream: Any) -> None:
    await anext(stream)
    await asyncio.sleep(1)
    await stream.aclose()


async def _is_told_to_end(stream: Any) -> None:
    asyncio.get_running_loop().call_later(0.5, stream.end)
    await timed(stream)


async def _fails(stream: Any) -> None:
    asyncio.get_running_loop().call_later(0.5, stream.fail, KeyError())
    with contextlib.suppress(KeyError):
        await timed(stream)


async def _is_cancelled(stream: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.5):
            await timed(stream)


@pytest.mark.parametrize(
    "leave", [_ends, _is_closed_parked, _is_closed_at_a_yield, _is_told_to_end, _fails, _is_cancelled]
)
def test_h1_a_push_is_told_that_the_stream_is_over(leave: Callable[[Any], Any]) -> None:
    async def main() -> None:
        stream = keep_alive(script("event: x\n", 2), 1)  # in which there is no place for an event
        tasks = [pushing(stream, event) for event in (ONE, TWO)]
        await leave(stream)
        async with asyncio.timeout(0.5):
            assert [(await task)[1] for task in tasks] == [False, False]
            assert await stream.push(THREE) is False

    run(main)


def test_h1_a_push_into_a_stream_that_never_starts_is_told_so_when_it_is_closed() -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n"), 1)
        tasks = [pushing(stream, event) for event in (ONE, TWO)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
        await stream.aclose()
        assert [await task for task in tasks] == [(1, False), (1, False)]
        assert await stream.push(THREE) is False

    run(main)


def test_h1_a_push_into_a_stream_that_has_not_started_goes_out_first() -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n"), 1)
        task = pushing(stream)
        await asyncio.sleep(1)
        assert await timed(stream) == [(1, PUSHED), (1, "data: 1\n\n")]
        assert await task == (1, True)

    run(main)


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("steps", [("data: 1\n\n", 100), ("event: x\n", 100), ("event: x\n", "data: 1\n\n")])
def test_c12_a_push_does_not_keep_alive_a_stream_that_was_dropped_and_is_told_so(steps: Any) -> None:
    async def main() -> None:
        streams = [keep_alive(script(*steps), 1)]
        await anext(streams[0])
        died = weakref.ref(streams[0])
        task = pushing(streams[0])
        await asyncio.sleep(0.25)  # until it waits; the task has no argument in its hands any more
        streams.clear()
        await asyncio.wait([task], timeout=1)
        assert died() is None
        assert task.done()
        assert (await task)[1] is False

    async def push(*streams: Any) -> Outcome:
        # Holds nothing of the stream but what the push itself does.
        waiting = streams[0].push(PUSHED)
        del streams
        went_out = await waiting
        return now(), went_out

    def pushing(stream: Any) -> "asyncio.Task[Outcome]":
        return asyncio.create_task(push(stream))

    run(main)


def test_h1_whoever_is_cancelled_while_he_pushes_takes_his_event_back() -> None:
    async def main() -> None:
        stream = keep_alive(script("event: x\n", 2, "data: 1\n\n", 1, "data: 2\n\n"), 30)
        tasks = [pushing(stream, event) for event in (ONE, TWO, THREE)]
        asyncio.get_running_loop().call_later(1, tasks[0].cancel)
        asyncio.get_running_loop().call_later(1, tasks[2].cancel)
        assert [chunk for _, chunk in await timed(stream)] == ["event: x\n", "data: 1\n\n", TWO, "data: 2\n\n"]
        assert await tasks[1] == (2, True)
        assert tasks[0].cancelled()
        assert tasks[2].cancelled()

    run(main)


@pytest.mark.parametrize("interval", [30, None])
def test_h1_an_event_that_is_taken_back_in_the_very_moment_sends_nothing_in_its_place(interval: float | None) -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n", 5), interval)
        reader = asyncio.create_task(timed(stream))
        await asyncio.sleep(1)
        task = asyncio.create_task(stream.push(PUSHED))
        await asyncio.sleep(0)  # now the stream is being woken for it
        task.cancel()
        assert await reader == [(0, "data: 1\n\n")]
        assert task.cancelled()

    run(main)


def test_h1_whoever_is_cancelled_while_his_event_is_on_its_way_harms_nothing() -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n", 100), 1)
        task = pushing(stream)
        await anext(stream)
        await asyncio.sleep(0)
        assert await anext(stream) == PUSHED
        task.cancel()
        await asyncio.wait([task])
        assert await anext(stream) == COMMENT
        await stream.aclose()

    run(main)


# Beside the clock.


@pytest.mark.parametrize("steps", [("data: 1\n\n", 3), (3,)])
@pytest.mark.parametrize("first_interval", [None, 10, 0.9])
def test_c2_a_pushed_event_starts_the_interval_anew(steps: Any, first_interval: float | None) -> None:
    seen, _ = pushed((0.75, PUSHED), upstream=lambda: script(*steps), interval=1, first_interval=first_interval)
    assert [entry for entry in seen if entry[1] != "data: 1\n\n"] == [(0.75, PUSHED), (1.75, COMMENT), (2.75, COMMENT)]


def test_c2_a_pushed_event_at_the_moment_of_a_frame_goes_out_and_starts_the_interval_anew() -> None:
    for order in (0.9999999, 1, 1.0000001):
        seen, _ = pushed((order, PUSHED), upstream=lambda: script("data: 1\n\n", 2.5), interval=1)
        assert [chunk for _, chunk in seen] in (
            ["data: 1\n\n", COMMENT, PUSHED, COMMENT],
            ["data: 1\n\n", PUSHED, COMMENT],
        )


def test_c3_a_push_leaves_the_step_that_is_pending_alone() -> None:
    events: list[Any] = []

    async def upstream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            task = asyncio.current_task()
            async with asyncio.timeout(4), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(2))
                await asyncio.sleep(3)
            events.append((now(), asyncio.current_task() is task, task and task.cancelling()))
            yield "data: 2\n\n"
        except BaseException as error:
            events.append(error)
            raise

    seen, outcomes = pushed(*((at / 4, PUSHED) for at in range(1, 12)), upstream=upstream, interval=None)
    assert [chunk for _, chunk in seen] == ["data: 1\n\n", *[PUSHED] * 11, "data: 2\n\n"]
    assert events == [(3, True, 0)]
    assert all(went_out for _, went_out in outcomes)


@pytest.mark.parametrize("is_pushed_first", [True, False])
def test_c6_a_cancellation_that_comes_with_a_push_wins(is_pushed_first: bool) -> None:
    async def main() -> None:
        upstream = Upstream()
        stream = keep_alive(upstream, 30)
        seen: list[Any] = []

        async def consume() -> None:
            while True:
                seen.append(await anext(stream))

        reader = asyncio.create_task(consume())
        await asyncio.sleep(1)
        silence = stream._silence
        sent = silence.push(PUSHED) if is_pushed_first else None
        reader.cancel("away")
        sent = sent or silence.push(PUSHED)
        await asyncio.wait([reader])
        assert reader.cancelled()
        assert seen == ["data: 1\n\n"]
        assert upstream.events == [asyncio.CancelledError, 1.25]
        assert sent.result() is False

    run(main)


def test_c6_a_push_goes_out_when_the_step_has_taken_its_cancellation_back() -> None:
    async def upstream() -> AsyncIterator[str]:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(100)
        except TimeoutError:
            await asyncio.sleep(1)
        yield "data: 1\n\n"

    seen, outcomes = pushed((1, ONE), (1.5, TWO), upstream=upstream, interval=30)
    assert [chunk for _, chunk in seen] == [ONE, TWO, "data: 1\n\n"]
    assert [went_out for _, went_out in outcomes] == [True, True]


def test_c2_an_event_that_a_clean_up_has_put_off_starts_the_interval_anew() -> None:
    async def upstream() -> AsyncIterator[str]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                try:
                    await asyncio.sleep(100)
                finally:
                    await asyncio.sleep(1)
        await asyncio.sleep(2.5)
        yield "data: 1\n\n"

    seen, outcomes = pushed((1.5, PUSHED), upstream=upstream, interval=1, first_interval=20)
    assert seen == [(2, PUSHED), (3, COMMENT), (4, COMMENT), (4.5, "data: 1\n\n")]
    assert outcomes == [(2, True)]


# While the upstream cleans up after a cancellation.


async def _end(stream: Any) -> None:
    stream.end()


async def _fail(stream: Any) -> None:
    stream.fail(KeyError("told"))


async def _push(stream: Any) -> None:
    await stream.push(PUSHED)


@pytest.mark.parametrize("told", [_end, _fail, _push])
@pytest.mark.parametrize("when", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("interval", [30, 1, None])
@pytest.mark.parametrize("spins", [False, True])
def test_c6_nothing_goes_out_during_a_clean_up_and_the_loop_has_its_rest(
    told: Callable[[Any], Any], when: float, interval: float | None, spins: bool
) -> None:
    counts: list[int] = []
    cleaned_up: list[float] = []

    async def upstream() -> AsyncIterator[str]:
        try:
            yield "event: x\n" if when < 1 else "data: 1\n\n"
            await asyncio.sleep(100)
        finally:
            if spins:
                await asyncio.sleep(0)
            counts.append(passes())
            await asyncio.sleep(10)
            counts.append(passes())
            cleaned_up.append(now())

    async def main() -> None:
        stream = keep_alive(upstream(), interval)
        reader = asyncio.create_task(timed(stream))
        asyncio.get_running_loop().call_later(1, reader.cancel)
        await asyncio.sleep(when)
        task = asyncio.create_task(told(stream))
        await asyncio.wait([reader])
        assert reader.cancelled() or isinstance(reader.exception(), KeyError)
        await asyncio.wait([task])

    run(main, CountingLoop)
    assert cleaned_up == [11]
    assert counts[1] - counts[0] < 40  # some for each frame that would have been due


# An error from elsewhere.


def failed(
    *calls: tuple[float, Callable[[Any], object]],
    upstream: Any,
    raised: type[BaseException] = KeyError,
    **options: Any,
) -> tuple[Timed, BaseException]:
    """Call these at their times; return what came out, and the error that it ended with, at its time."""

    async def main() -> tuple[Timed, BaseException]:
        stream = keep_alive(upstream(), **options)
        for when, call in calls:
            asyncio.get_running_loop().call_later(when, call, stream)
        seen: Timed = []
        try:
            async for chunk in stream:
                seen.append((now(), chunk))
        except raised as error:
            seen.append((now(), "failed"))
            assert await timed(stream) == []
            return seen, error
        raise AssertionError("Nothing was raised.")

    return run(main)


def fail(error: BaseException) -> Callable[[Any], object]:
    return lambda stream: stream.fail(error)


@pytest.mark.parametrize("interval", [30, None])
def test_c16_fail_wakes_a_parked_stream_which_raises_the_very_error_behind_the_clean_up(
    interval: float | None,
) -> None:
    error = KeyError("told")
    upstream = Upstream(0.25)
    seen, raised = failed((1.5, fail(error)), upstream=lambda: upstream, interval=interval)
    assert raised is error
    assert seen == [(0, "data: 1\n\n"), (1.75, "failed")]
    assert upstream.events == [asyncio.CancelledError, 1.75]
    assert error.__context__ is None


def test_c16_fail_inside_an_event_waits_for_its_end() -> None:
    seen, _ = failed(
        (1, fail(KeyError())),
        upstream=lambda: script("event: x\n", 1.5, "data: 1\n\n", "data: 2\n\n", 99),
        interval=30,
    )
    assert seen == [(0, "event: x\n"), (1.5, "data: 1\n\n"), (1.5, "failed")]


@pytest.mark.parametrize("interval", [30, None])
def test_c16_fail_inside_an_event_that_does_not_end_has_patience(interval: float | None) -> None:
    seen, _ = failed((1, fail(KeyError())), upstream=lambda: script("event: x\n", 99), interval=interval)
    assert seen == [(0, "event: x\n"), (1 + EVENT_PATIENCE, "failed")]


def test_c16_fail_stops_an_upstream_that_never_suspends() -> None:
    async def hot() -> AsyncIterator[str]:
        while True:
            yield "data: 1\n\n"

    seen, _ = failed((0, fail(KeyError())), upstream=hot, interval=30)
    assert len(seen) <= 34


def test_c16_fail_in_the_turn_of_the_consumer_is_raised_at_its_next_pull() -> None:
    async def main() -> None:
        upstream = Upstream()
        stream = keep_alive(upstream, 30)
        await anext(stream)
        stream.fail(KeyError("told"))
        await asyncio.sleep(1)
        with pytest.raises(KeyError, match="told"):
            await anext(stream)
        assert upstream.events == [GeneratorExit, 1.25]

    run(main)


def test_c16_fail_before_the_first_pull_is_raised_from_it_and_the_upstream_closed() -> None:
    async def main() -> None:
        resource = Closing()
        stream = keep_alive(resource, 30)
        stream.fail(error)
        with pytest.raises(KeyError) as raised:
            await anext(stream)
        assert raised.value is error
        assert resource.closed == 1
        await stream.aclose()
        assert resource.closed == 1
        assert await timed(stream) == []

    class Closing:
        closed = 0

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> str:
            raise AssertionError("It is not to be started.")

        async def aclose(self) -> None:
            self.closed += 1

    error = KeyError("told")
    run(main)


def test_c8_fail_and_an_error_in_the_clean_up_are_chained() -> None:
    error, in_clean_up = KeyError("told"), OSError("clean-up")
    seen, raised = failed((1, fail(error)), upstream=lambda: Upstream(0.25, in_clean_up), interval=30)
    assert raised is error
    assert raised.__context__ is in_clean_up
    assert seen[-1] == (1.25, "failed")


@pytest.mark.parametrize("steps", [("data: 1\n\n", 100), ("event: x\n", 100)])
def test_c16_fail_after_end_is_raised_all_the_same(steps: Any) -> None:
    def end(stream: KeepAliveStream[Any]) -> None:
        stream.end()

    error = KeyError("told")
    for first, second in ((end, fail(error)), (fail(error), end)):
        seen, raised = failed((1, first), (1, second), upstream=lambda: script(*steps), interval=30)
        assert raised is error
        assert seen[-1] == (1 if steps[0] == "data: 1\n\n" else 3, "failed")


def test_c16_the_first_of_two_errors_is_raised() -> None:
    error = KeyError("first")
    _, raised = failed((1, fail(error)), (1, fail(KeyError("second"))), upstream=Upstream, interval=30)
    assert raised is error


def test_c16_fail_when_the_stream_is_over_does_nothing() -> None:
    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n"), 30)
        await timed(stream)
        stream.fail(KeyError())
        assert await timed(stream) == []
        await stream.aclose()

    run(main)


def test_c16_events_that_were_pushed_before_are_told_that_they_did_not_go_out() -> None:
    async def main() -> None:
        stream = keep_alive(script("event: x\n", 100), 30)
        task = pushing(stream, when=0.5)
        asyncio.get_running_loop().call_later(1, stream.fail, KeyError())
        with pytest.raises(KeyError):
            await timed(stream)
        assert await task == (3, False)

    run(main)


def test_c8_a_keyboard_interrupt_of_the_upstream_passes_a_stream_that_was_told_to_fail() -> None:
    async def main() -> None:
        class Interrupted:
            def __aiter__(self) -> Any:
                return self

            async def __anext__(self) -> str:
                stream.fail(KeyError("told"))
                raise SystemExit(3)

        stream = keep_alive(Interrupted(), 30)
        with pytest.raises(SystemExit):
            await anext(stream)

    run(main)


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("keep_error", [True, False])
@pytest.mark.parametrize("steps", [("data: 1\n\n", 100), ("event: x\n", 100), ()])
@pytest.mark.parametrize("in_clean_up", [None, OSError])
def test_c12_fail_leaves_nothing_behind(keep_error: bool, steps: Any, in_clean_up: type[Exception] | None) -> None:
    async def upstream() -> AsyncIterator[Any]:
        try:
            async for step in script(*steps):
                yield step
        finally:
            if in_clean_up is not None:
                raise in_clean_up

    async def main() -> None:
        source = upstream()
        died = weakref.ref(source)
        errors: list[BaseException] = []
        streams = [keep_alive(source, 30)]
        died_too = weakref.ref(streams[0])
        del source

        async def consume() -> None:
            try:
                async for _ in streams[0]:
                    pass
            except (KeyError, OSError) as error:
                if keep_error:
                    errors.append(error)
            streams.clear()

        task = asyncio.create_task(consume())
        if steps:
            await asyncio.sleep(1)
        event = ServerSentEvent("held")
        pusher = asyncio.create_task(streams[0].push(event))
        streams[0].fail(KeyError("told"))
        await asyncio.wait([task, pusher])
        task.result()
        del task, pusher
        await asyncio.sleep(1)
        assert died() is None
        assert died_too() is None
        assert bool(errors) is keep_error
        assert asyncio.all_tasks() == {asyncio.current_task()}
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert [handle for handle in scheduled if not handle.cancelled() and "sse_keepalive" in repr(handle)] == []

    run(main)


@pytest.mark.usefixtures("without_gc")
def test_c12_the_error_that_a_stream_was_told_is_in_no_cycle() -> None:
    class ToldError(Exception):
        pass

    async def main() -> None:
        stream = keep_alive(script("data: 1\n\n", 100), 30)
        error = ToldError()
        died = weakref.ref(error)
        asyncio.get_running_loop().call_later(1, stream.fail, error)
        del error
        with contextlib.suppress(ToldError):
            async for _ in stream:
                pass
        await asyncio.sleep(1)
        assert died() is None

    run(main)


@pytest.mark.usefixtures("without_gc")
def test_c12_a_push_leaves_nothing_behind() -> None:
    async def main() -> None:
        source = script("data: 1\n\n", 1.5, "data: 2\n\n", 1)
        streams = [keep_alive(source, 1)]
        deaths = [weakref.ref(source), weakref.ref(streams[0])]
        del source
        pushers = [
            asyncio.create_task(push(streams[0], event, when)) for when, event in ((0, ONE), (0.5, TWO), (2, ONE))
        ]
        deaths += [weakref.ref(pusher) for pusher in pushers]
        async for _ in streams[0]:
            pass
        await asyncio.wait(pushers)
        pushers.clear()
        streams.clear()
        await asyncio.sleep(10)
        assert [death() for death in deaths] == [None] * 5

    run(main)


# At random.


class Play:
    """An upstream, a consumer and some pushes, all of whose pauses are given."""

    def __init__(self, steps: list[Any], pauses: list[float], pushes: list[float]) -> None:
        self.events = [ServerSentEvent(f"pushed {number}") for number in range(len(pushes))]
        self._steps = steps
        self._pauses = pauses
        self._pushes = pushes

    async def perform(self, interval: float | None) -> tuple[list[str], list[bool]]:
        stream = keep_alive(script(*self._steps), interval)
        tasks = [pushing(stream, event, when) for event, when in zip(self.events, self._pushes, strict=True)]
        seen: list[str] = []
        async for chunk in stream:
            seen.append(chunk)
            await asyncio.sleep(self._pauses[len(seen) % len(self._pauses)])
        return seen, [(await task)[1] for task in tasks]


PARTS = [
    "data: 1\n\n",
    "event: x\n",
    "data: 2\n",
    "\n",
    "data: 3",
    "\r",
    "\r\n\r\n",
    ": comment\n\n",
    "id: 4\n",
    "\n\n",
]
PAUSES = st.sampled_from([0, 0.25, 0.5, 1.0])


@given(
    steps=st.lists(st.one_of(st.sampled_from(PARTS), PAUSES), max_size=12),
    pauses=st.lists(PAUSES, min_size=1, max_size=4),
    pushes=st.lists(st.sampled_from([0, 0.25, 0.3, 0.5, 0.75, 1.1, 1.5, 2.0, 3.0, 9.0]), max_size=6, unique=True),
    interval=st.sampled_from([None, 0.5, 0.7, 30]),
)
def test_h1_the_upstreams_chunks_are_the_same_without_what_was_pushed(
    steps: list[Any], pauses: list[float], pushes: list[float], interval: float | None
) -> None:
    play = Play(steps, pauses, sorted(pushes))
    seen, outcomes = run(lambda: play.perform(interval))
    chunks = [step for step in steps if isinstance(step, str)]
    # By their very type, for a chunk of the upstream is never one.
    sent = [chunk for chunk in seen if isinstance(chunk, ServerSentEvent)]
    assert [
        chunk for chunk in seen if not isinstance(chunk, ServerSentEvent) and chunk not in (COMMENT, LINE)
    ] == chunks
    # Each goes out once, in order, if it is said to have gone out, and else not at all.
    assert sent == [event for event, went_out in zip(play.events, outcomes, strict=True) if went_out]
    # And neither breaks an event of the upstream, nor is broken by one.
    events = decode("".join(seen).encode()).events
    from_elsewhere = [event for event in events if event.data.startswith("pushed")]
    assert [event.data for event in from_elsewhere] == [event.removeprefix("data: ").strip() for event in sent]
    of_upstream = [(event.type, event.data) for event in events if not event.data.startswith("pushed")]
    assert of_upstream == [(event.type, event.data) for event in decode("".join(chunks).encode()).events]


PUSHED_BEHAVIOURS = {name: behaviour for name, behaviour in ALL.items() if name not in OF_GENERATORS}


def pushed_into(behaviour: Behaviour, times: list[float]) -> Behaviour:
    async def with_pushes(streams: list[Any], seen: Seen) -> None:
        if isinstance(streams[0], KeepAliveStream):
            for time in times:
                asyncio.get_running_loop().call_later(time, pushing, streams[0])
        await behaviour(streams, seen)

    return with_pushes


@pytest.mark.parametrize(
    ("script", "behaviour"),
    [
        pytest.param(script, behaviour, id=f"{script.__name__}-{behaviour}")
        for script in SCRIPTS
        for behaviour in PUSHED_BEHAVIOURS
        if _applies(script, behaviour)
    ],
)
def test_transparency_with_pushes(script: Script, behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "FRAMES", {*oracle.FRAMES, PUSHED, PUSHED.encode()})
    bare = observe(script, ALL[behaviour], None).comparable()
    for seed, interval in enumerate((0.3, 30)):
        # Never in the moment in which something else falls due.
        dice = random.Random(f"{script.__name__} {behaviour} {seed}")
        times = [round(dice.uniform(0, 1.5), 2) + 0.005 for _ in range(12)]
        wrapped = observe(script, pushed_into(ALL[behaviour], times), interval)
        assert wrapped.comparable() == bare, f"interval {interval}, pushes at {sorted(times)}"


def test_the_oracle_itself_sees_pushed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "FRAMES", {*oracle.FRAMES, PUSHED, PUSHED.encode()})
    times = [0.055, 0.125, 0.205, 0.315, 0.405]
    counts = {}
    for one in SCRIPTS:
        seen = observe(one, pushed_into(oracle.to_the_end, times), 30)
        counts[one.__name__] = sum(frame in (PUSHED, PUSHED.encode()) for _, frame in seen.frames)
    assert sum(count >= 3 for count in counts.values()) > 50, counts
