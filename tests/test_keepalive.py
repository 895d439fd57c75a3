"""What each clause about time, closing and errors says by itself; in virtual time. See also the oracle."""

import asyncio
import contextlib
import math
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any

import pytest

from sse_keepalive.frames import COMMENT, EVENT, LINE
from sse_keepalive.keepalive import KeepAliveStream, with_sse_keep_alive
from tests.clock import VirtualTimeLoop, run

Timed = list[tuple[float, Any]]


def now() -> float:
    return asyncio.get_running_loop().time()


async def script(*steps: float | str | bytes) -> AsyncIterator[Any]:
    """Sleep for each number, yield everything else."""
    for step in steps:
        if isinstance(step, float | int):
            await asyncio.sleep(step)
        else:
            yield step


async def timed(stream: Any) -> Timed:
    return [(now(), chunk) async for chunk in stream]


def times_of(upstream: Callable[[], Any], interval: float = 1, **options: Any) -> Timed:
    async def main() -> Timed:
        return await timed(with_sse_keep_alive(upstream(), interval, **options))

    return run(main)


def keep_alive(upstream: Any, interval: float | None = 1, **options: Any) -> Any:
    return KeepAliveStream(upstream, interval, **options)


@pytest.mark.parametrize("interval", [None, 0, 0.0, -1, -math.inf, math.inf, math.nan, False, Decimal(0)])
async def test_c1_off_returns_the_very_object(interval: Any) -> None:
    upstream = script("data: 1\n\n")
    assert with_sse_keep_alive(upstream, interval) is upstream
    assert [chunk async for chunk in upstream] == ["data: 1\n\n"]


def test_c2_an_interval_may_be_any_number() -> None:
    assert times_of(lambda: script(2.5, "data: 1\n\n"), Decimal("1.25")) == [  # type: ignore[arg-type]
        (1.25, COMMENT),
        (2.5, "data: 1\n\n"),
    ]


def test_c1_the_stream_itself_takes_an_interval_that_is_off_and_sends_no_frame() -> None:
    async def main() -> Timed:
        return await timed(keep_alive(script(1000, "data: 1\n\n", 1000), None))

    assert run(main) == [(1000, "data: 1\n\n")]


def test_what_is_no_asynchronous_iterable_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="list is not an asynchronous iterable"):
        with_sse_keep_alive([], 1)  # type: ignore[type-var]


@pytest.mark.parametrize(("frame", "error"), [("data: 1", ValueError), ("id: 1\n\n", ValueError), (1, TypeError)])
async def test_f6_a_frame_that_would_damage_the_stream_is_refused_at_once(frame: Any, error: type) -> None:
    upstream = script()
    with pytest.raises(error):
        with_sse_keep_alive(upstream, 1, frame=frame)


def test_c2_a_frame_each_interval_of_silence() -> None:
    assert times_of(lambda: script(3.5, "data: 1\n\n", 2.5)) == [
        (1, COMMENT),
        (2, COMMENT),
        (3, COMMENT),
        (3.5, "data: 1\n\n"),
        (4.5, COMMENT),
        (5.5, COMMENT),
    ]


def test_c2_no_frame_while_chunks_come() -> None:
    assert [chunk for _, chunk in times_of(lambda: script(*(0.9, "data: 1\n\n") * 20))] == ["data: 1\n\n"] * 20


def test_c2_a_chunk_starts_the_count_anew() -> None:
    assert times_of(lambda: script(0.75, "data: 1\n\n", 0.75, "data: 2\n\n", 1.75)) == [
        (0.75, "data: 1\n\n"),
        (1.5, "data: 2\n\n"),
        (2.5, COMMENT),
    ]


def test_c2_a_short_chunk_starts_the_count_anew() -> None:
    assert [when for when, _ in times_of(lambda: script("data: 1\n\n", 0.75, "\n", 1.75))] == [0, 0.75, 1.75]


def test_c2_empty_chunks_do_not_start_it_anew() -> None:
    chunks = times_of(lambda: script(*(0.4, "") * 8))
    assert [when for when, chunk in chunks if chunk] == [1, 2, 3]


def test_c2_endless_empty_chunks_that_are_ready_at_once_get_frames() -> None:
    async def upstream() -> AsyncIterator[str]:
        while now() < 3.5:
            yield ""

    async def main() -> Timed:
        return [(when, chunk) for when, chunk in await timed(keep_alive(upstream())) if chunk]

    chunks = run(main, lambda: VirtualTimeLoop(per_pass=0.125))
    assert [chunk for _, chunk in chunks] == [COMMENT] * 3
    assert [when for when, _ in chunks] == pytest.approx([1, 2, 3], abs=0.51)


def test_c2_a_slow_consumer_is_no_silence() -> None:
    async def main() -> Timed:
        seen = []
        async for chunk in keep_alive(script(*(0.5, "data: 1\n\n") * 3, 1.5)):
            seen.append((now(), chunk))
            await asyncio.sleep(10)
        return seen

    assert [chunk for _, chunk in run(main)] == ["data: 1\n\n"] * 3 + [COMMENT]


def test_c2_a_slow_consumer_of_a_frame_gets_the_chunk_that_came_meanwhile_and_no_second_frame() -> None:
    async def main() -> Timed:
        seen = []
        async for chunk in keep_alive(script(1.5, "data: 1\n\n", 0.5, "data: 2\n\n")):
            seen.append((now(), chunk))
            await asyncio.sleep(5)
        return seen

    assert run(main) == [(1, COMMENT), (6, "data: 1\n\n"), (11.5, "data: 2\n\n")]


def test_c2_the_count_begins_anew_when_the_consumer_of_a_frame_asks_for_more() -> None:
    async def main() -> Timed:
        seen = []
        async for chunk in keep_alive(script(9.9)):
            seen.append((now(), chunk))
            await asyncio.sleep(2)
        return seen

    assert [when for when, _ in run(main)] == [1, 4, 7]


@pytest.mark.parametrize(
    ("first_interval", "times"),
    [(0.25, [0.25, 1.25, 2.25]), (0, [0, 1, 2]), (2, [2]), (None, [1, 2]), (-1, [1, 2]), (math.nan, [1, 2])],
)
def test_c2_the_first_interval_counts_until_something_was_sent(first_interval: float, times: list[float]) -> None:
    assert [when for when, _ in times_of(lambda: script(2.75), first_interval=first_interval)] == times


@pytest.mark.parametrize("first_interval", [0.5, 30])
@pytest.mark.parametrize("chunk", ["data: 1\n\n", "\n"])
def test_c2_the_first_interval_is_over_with_the_first_chunk(first_interval: float, chunk: str) -> None:
    seen = times_of(lambda: script(0.25, chunk, 1.5), first_interval=first_interval)
    assert seen == [(0.25, chunk), (1.25, COMMENT)]


def test_c2_an_empty_chunk_does_not_end_the_first_interval() -> None:
    assert [when for when, chunk in times_of(lambda: script(0.25, "", 2), first_interval=0.5) if chunk] == [0.5, 1.5]


def test_c2_a_first_interval_of_0_yields_to_a_chunk_that_is_ready() -> None:
    assert times_of(lambda: script("data: 1\n\n", 0.5), first_interval=0) == [(0, "data: 1\n\n")]


def test_c3_a_step_outlives_any_number_of_frames() -> None:
    begun = []

    async def upstream() -> AsyncIterator[str]:
        begun.append(now())
        await asyncio.sleep(100.5)
        yield "data: 1\n\n"

    seen = times_of(upstream)
    assert (len(seen), seen[-1], begun) == (101, (100.5, "data: 1\n\n"), [0])


def test_c5_no_step_begins_before_it_is_asked_for() -> None:
    steps = []

    async def upstream() -> AsyncIterator[str]:
        for number in range(30):
            steps.append(number)
            yield "data: 1\n\n"

    async def main() -> None:
        count = 0
        async for _ in keep_alive(upstream()):
            count += 1
            await asyncio.sleep(3)
            assert len(steps) == count

    run(main)


def test_c6_no_frame_follows_a_cancellation_that_was_accepted() -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)

    async def upstream() -> AsyncIterator[str]:
        await asyncio.create_task(child())
        yield ""

    async def main() -> None:
        frames = []

        async def consume() -> None:
            async for _ in keep_alive(upstream()):
                frames.append(now())  # noqa: PERF401 - a cancellation must not take them along

        task = asyncio.create_task(consume())
        await asyncio.sleep(1.5)
        task.cancel("message")
        with pytest.raises(asyncio.CancelledError, match="message"):
            await task
        assert (frames, now()) == ([1], 6.5)

    run(main)


def test_c6_a_cancellation_in_the_very_moment_of_a_frame_comes_first() -> None:
    async def main(cancel_first: bool) -> None:
        frames: list[float] = []

        async def consume() -> None:
            async for _ in keep_alive(script(10)):
                frames.append(now())  # noqa: PERF401

        task = asyncio.create_task(consume())
        if cancel_first:
            asyncio.get_running_loop().call_at(2 - 1e-10, task.cancel)
            await asyncio.sleep(1.5)
        else:
            asyncio.get_running_loop().call_at(2 + 1e-10, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert frames == [1]

    run(lambda: main(True))
    run(lambda: main(False))


def test_c6_of_two_cancellations_in_the_very_moment_of_a_frame_the_first_gives_the_message() -> None:
    async def main(wrap: Callable[[Any], Any]) -> list[object]:
        task = asyncio.create_task(timed(wrap(script(10))))
        await asyncio.sleep(0)

        def cancel_twice() -> None:
            task.cancel("first")
            task.cancel("second")

        asyncio.get_running_loop().call_at(1 + 1e-10, cancel_twice)  # behind the stream's timer, in the same pass
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return [caught.value.args, task.cancelling()]

    assert run(lambda: main(keep_alive)) == run(lambda: main(lambda upstream: upstream)) == [("first",), 2]


def test_c8_the_error_is_the_upstreams_own_object_with_its_frames() -> None:
    error = ValueError("own")

    async def where_it_fails() -> None:
        await asyncio.sleep(1.5)
        raise error

    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        await where_it_fails()

    async def main() -> None:
        with pytest.raises(ValueError, match="own") as caught:
            await timed(keep_alive(upstream()))
        assert caught.value is error
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[-2:] == ["upstream", "where_it_fails"]
        assert error.__context__ is None

    run(main)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_c8_exits_pass_the_closing_of_a_step(kind: type[BaseException]) -> None:
    async def upstream() -> AsyncIterator[str]:
        try:
            await asyncio.sleep(10)
            yield ""
        except asyncio.CancelledError:
            raise kind from None

    async def main() -> None:
        stream = keep_alive(upstream())
        await anext(stream)
        with pytest.raises(kind):
            await stream.aclose()

    run(main)


def test_c9_what_cannot_be_awaited_is_a_type_error() -> None:
    class Upstream:
        def __aiter__(self) -> "Upstream":
            return self

        def __anext__(self) -> Any:
            return "text"

    async def main() -> None:
        with pytest.raises(TypeError, match="__anext__"):
            await timed(keep_alive(Upstream()))

    run(main)


@pytest.mark.parametrize("length", [0.125, 0])
def test_c10_a_step_of_many_awaits_gets_its_frames_on_time(length: float) -> None:
    async def upstream() -> AsyncIterator[str]:
        while now() < 5.5:
            await asyncio.sleep(length)
        yield "data: 1\n\n"

    async def main() -> Timed:
        return await timed(keep_alive(upstream()))

    seen = run(main, lambda: VirtualTimeLoop(per_pass=0 if length else 0.03125))
    assert [when for when, _ in seen[:-1]] == pytest.approx([1, 2, 3, 4, 5], abs=5 * 2 * 0.03125)


def test_f1_frames_have_the_type_of_the_chunks() -> None:
    def frames(*steps: Any, frame: str | bytes = COMMENT) -> list[Any]:
        return [chunk for _, chunk in times_of(lambda: script(*steps), frame=frame)]

    assert frames(1.5, "data: 1\n\n", 1.5) == [COMMENT, "data: 1\n\n", COMMENT]
    assert frames(1.5, b"data: 1\n\n", 1.5) == [COMMENT, b"data: 1\n\n", COMMENT.encode()]
    assert frames(1.5, "data: 1\n\n", 1.5, frame=EVENT.encode()) == [EVENT.encode(), "data: 1\n\n", EVENT]
    assert frames(b"", 1.5, frame="LINE") == [b"", LINE]
    assert frames(b"data: 1\n\n", "", 1.5) == [b"data: 1\n\n", "", COMMENT.encode()]


def test_f2_frames_wait_where_they_would_damage_an_event() -> None:
    def chunks(frame: str) -> list[Any]:
        steps = (1.5, "event: x\n", 1.5, "data: ", 1.5, "1\n", 1.5, "\n", 1.5)
        return [chunk for _, chunk in times_of(lambda: script(*steps), frame=frame)]

    assert chunks(COMMENT) == [COMMENT, "event: x\n", LINE, "data: ", "1\n", LINE, "\n", COMMENT]
    assert chunks(EVENT) == [EVENT, "event: x\n", "data: ", "1\n", "\n", EVENT]


def test_f3_a_byte_order_mark_behind_a_frame_is_removed() -> None:
    mark = "\ufeff".encode()

    def wire(*steps: Any, frame: str | bytes = b": keep-alive\n\n") -> Any:
        chunks = [chunk for _, chunk in times_of(lambda: script(*steps), frame=frame)]
        return chunks[0][:0].join(chunks)

    assert wire(1.5, mark + b"data: 1\n\n") == COMMENT.encode() + b"data: 1\n\n"
    assert wire(1.5, mark[:1], mark[1:2], b"", mark[2:], b"data: 1\n\n") == COMMENT.encode() + b"data: 1\n\n"
    assert wire(1.5, "\ufeffdata: 1\n\n", frame=COMMENT) == COMMENT + "data: 1\n\n"
    assert wire(mark + b"data: 1\n\n", 1.5) == mark + b"data: 1\n\n" + COMMENT.encode()
    assert wire(1.5, mark[:2]) == COMMENT.encode() + mark[:2]


def test_c14_nothing_of_asyncio_and_no_django_at_import() -> None:
    code = """
import sys
import asyncio
from unittest import mock

with mock.patch.object(asyncio.events.BaseDefaultEventLoopPolicy, "new_event_loop", side_effect=AssertionError), \\
     mock.patch("asyncio.events.get_event_loop_policy", side_effect=AssertionError):
    import sse_keepalive.frames, sse_keepalive.keepalive
assert asyncio.events._event_loop_policy is None
assert asyncio.events._get_running_loop() is None
print(sorted(name for name in sys.modules if name.split(".")[0] in ("django", "asgiref", "anyio")))
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (result.stderr, result.stdout) == ("", "[]\n")


def test_c7_is_kept_by_aclosing() -> None:
    closed = []

    async def upstream() -> AsyncIterator[str]:
        try:
            await asyncio.sleep(10)
            yield ""
        finally:
            await asyncio.sleep(0.25)
            closed.append(now())

    async def main() -> None:
        async with contextlib.aclosing(keep_alive(upstream())) as stream:
            async for _ in stream:
                break
        assert closed == [1.25]

    run(main)


def test_c3_two_streams_around_each_other_wake_their_task_once_for_each_frame() -> None:
    async def main() -> None:
        cut_short = 0

        async def consume() -> None:
            nonlocal cut_short
            async for _ in keep_alive(keep_alive(script(3.5, "data: 1\n\n"))):
                future = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_later(0.125, future.set_result, None)
                future._asyncio_future_blocking = True
                await Yielded(future)
                cut_short += not future.done()  # the task was woken by something else

        await consume()
        assert cut_short == 0

    run(main)


class Yielded:
    """Awaits what it was made with as a future does, but takes any wake-up for its own."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Any:
        yield self._future


def test_c6_a_cancellation_that_the_step_asks_for_comes_before_a_frame_that_is_due() -> None:
    journal: list[object] = []

    async def upstream() -> AsyncIterator[str]:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_at(1, future.set_result, None)  # in the same pass as the frame falls due
        await future
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            journal.append(("upstream", now()))
            task.uncancel()
        yield "data: 1\n\n"

    async def main() -> None:
        async for chunk in keep_alive(upstream()):
            journal.append(chunk)
            await asyncio.sleep(0.25)

    run(main)
    assert journal == [("upstream", 1), "data: 1\n\n"]


def test_c2_a_stream_within_another_goes_on_with_its_frames_after_the_consumers_turn() -> None:
    async def main() -> list[tuple[float, str]]:
        inner = keep_alive(script(9.25, "data: 1\n\n"), 1.5, frame=LINE)
        seen = []
        async for chunk in keep_alive(inner, 1.25):
            seen.append((now(), chunk))
            if len(seen) == 1:
                await asyncio.sleep(1)  # the timer of the stream within fires while its task is here
        return seen

    frames = run(main)
    assert next(when for when, frame in frames if frame == COMMENT) == 1.25
    assert next(when for when, frame in frames if frame == LINE) == 2.25


@pytest.mark.parametrize("wrap", [keep_alive, lambda upstream: upstream])
async def test_c9_an_iterator_that_only_its_iterable_knows_is_closed_when_it_fails(wrap: Callable[[Any], Any]) -> None:
    closed = []

    class Iterator:
        async def __anext__(self) -> str:
            raise OSError

        def __aiter__(self) -> "Iterator":
            return self

        async def aclose(self) -> None:
            closed.append(self)

    class Iterable:
        def __aiter__(self) -> Iterator:
            return Iterator()

    stream = wrap(Iterable())
    with pytest.raises(OSError):  # noqa: PT011
        await timed(stream)
    assert len(closed) == (1 if wrap is keep_alive else 0)


async def test_c7_an_iterable_that_can_be_closed_is_closed_with_its_iterator() -> None:
    journal = []

    class Feed:
        async def __aiter__(self) -> AsyncIterator[str]:
            try:
                yield "data: 1\n\n"
            finally:
                journal.append("iterator")

        async def aclose(self) -> None:
            journal.append("iterable")

    stream = keep_alive(Feed())
    assert await anext(stream) == "data: 1\n\n"
    await stream.aclose()
    await stream.aclose()
    assert journal == ["iterator", "iterable"]
