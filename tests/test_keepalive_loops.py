"""Tasks, fairness and cost (C4, C11, C13), and the core on every kind of loop (C14)."""

import asyncio
import contextvars
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests import oracle
from tests.clock import VirtualTimeLoop, run
from tests.oracle import Behaviour, Script, observe
from tests.test_keepalive import keep_alive, now, script, timed
from tests.upstreams import GENERATORS
from tests.upstreams_shaped import SHAPES

try:
    import uvloop
except ImportError:
    HAS_UVLOOP = False
else:
    HAS_UVLOOP = True


async def hot(count: int | None = None, chunk: str = "data: 1\n\n") -> AsyncIterator[str]:
    """Yield without ever suspending."""
    while count is None or count > 0:
        yield chunk
        count = None if count is None else count - 1


def test_c4_one_task_and_one_context_and_no_other_task() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    own: contextvars.ContextVar[str] = contextvars.ContextVar("own")
    tasks = set()
    all_tasks: set[Any] = set()

    async def upstream() -> AsyncIterator[str]:
        token = variable.set("set")
        try:
            for _ in range(3):
                tasks.add(asyncio.current_task())
                await asyncio.sleep(2.5)
                all_tasks.update(asyncio.all_tasks())
                assert variable.get() == "set"
                yield "data: 1\n\n"
        finally:
            await asyncio.sleep(2.5)
            tasks.add(asyncio.current_task())
            variable.reset(token)

    async def main() -> None:
        own.set("the consumer's")
        async for _ in keep_alive(upstream()):
            # Frames included: the upstream has begun by then, in this very context.
            assert (own.get(), variable.get()) == ("the consumer's", "set")
        assert variable.get() == "unset"
        assert tasks == {asyncio.current_task()} == all_tasks

    threads = threading.active_count()
    run(main)
    assert threading.active_count() == threads


@pytest.mark.parametrize("chunk", ["data: 1\n\n", ""])
def test_c11_others_get_a_turn_after_sixteen_chunks_at_most(chunk: str) -> None:
    turns: list[int] = []
    taken = 0

    async def count() -> None:
        while True:
            turns.append(taken)
            await asyncio.sleep(0)

    async def main() -> None:
        nonlocal taken
        counter = asyncio.create_task(count())
        async for _ in keep_alive(hot(1000, chunk)):
            taken += 1
        counter.cancel()

    run(main)
    assert len(turns) >= 1000 // 16
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 16


def test_c11_an_awaited_chunk_is_a_turn_too() -> None:
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async def upstream() -> AsyncIterator[str]:
        for number in range(160):
            if number % 10 == 0:
                await asyncio.sleep(0)
            yield "data: 1\n\n"

    async def main() -> None:
        counter = asyncio.create_task(count())
        await timed(keep_alive(upstream()))
        counter.cancel()

    run(main)
    assert passes <= 17


def test_c11_a_timeout_around_an_endless_hot_loop_turns_into_its_error() -> None:
    events = []

    async def upstream() -> AsyncIterator[str]:
        try:
            async with asyncio.timeout(1):
                async for chunk in hot():
                    yield chunk
        except TimeoutError:
            events.append(now())
            raise

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await timed(keep_alive(upstream()))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main, lambda: VirtualTimeLoop(per_pass=0.125))
    assert events == [pytest.approx(1, abs=0.25)]


def test_c11_a_timeout_of_the_consumer_ends_a_hot_stream() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await timed(keep_alive(hot()))

    run(main, lambda: VirtualTimeLoop(per_pass=0.125))


@pytest.mark.parametrize("wraps", [1, 2])
def test_c11_a_cancellation_from_within_is_thrown_in_at_the_yield_at_once(wraps: int) -> None:
    met: list[object] = []

    async def upstream() -> AsyncIterator[str]:
        try:
            while True:
                yield "data: 1\n\n"
        except BaseException as error:
            met.append(repr(error))
            raise

    async def main() -> None:
        count = 0

        async def consume() -> None:
            nonlocal count
            stream: Any = upstream()
            for _ in range(wraps):
                stream = keep_alive(stream)
            try:
                async for _ in stream:
                    count += 1
                    if count == 3:
                        asyncio.current_task().cancel("self")  # type: ignore[union-attr]
            finally:
                await stream.aclose()

        task = asyncio.create_task(consume())
        with pytest.raises(asyncio.CancelledError, match="self"):
            await task
        assert count <= 5
        assert met == ["CancelledError('self')"]

    run(main)


def test_c11_a_cancellation_that_is_swallowed_costs_turns_but_no_chunk() -> None:
    async def upstream() -> AsyncIterator[str]:
        for number in range(40):
            try:
                yield f"data: {number}\n\n"
            except asyncio.CancelledError:
                yield "data: swallowed\n\n"

    async def consume(chunks: list[str]) -> None:
        async for chunk in keep_alive(upstream()):
            chunks.append(chunk)
            if len(chunks) == 3:
                asyncio.current_task().cancel()  # type: ignore[union-attr]

    async def main() -> None:
        chunks: list[str] = []
        await asyncio.create_task(consume(chunks))
        assert [chunk for chunk in chunks if "swallowed" not in chunk] == [f"data: {n}\n\n" for n in range(40)]
        assert len(chunks) == 41

    run(main)


class CountingLoop(VirtualTimeLoop):
    """A loop that counts what is asked of it."""

    counts: dict[str, int]

    def __init__(self) -> None:
        self.counts = {"time": 0, "call_at": 0}
        super().__init__()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, **options: Any
    ) -> asyncio.TimerHandle:
        self.counts["call_at"] += 1
        return super().call_at(when, callback, *args, **options)


def counted(main: Callable[[], Any]) -> dict[str, int]:
    """Return how often ``main`` asked the loop for the time and for a timer. The loop's own passes do not count."""

    async def counting() -> dict[str, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        real = loop.time
        counts = loop.counts

        def time() -> float:
            if sys._getframe(1).f_globals["__name__"].startswith("sse_keepalive"):
                counts["time"] += 1
            return real()

        loop.time = time  # type: ignore[method-assign]
        await main()
        del loop.time
        return counts

    return run(counting, CountingLoop)


def test_c13_a_chunk_that_is_ready_reads_no_clock_and_arms_no_timer() -> None:
    async def main() -> None:
        await timed(keep_alive(hot(1600)))

    counts = counted(main)
    assert counts["call_at"] == 0
    assert counts["time"] <= 2 * 1600 / 16


def test_c13_chunks_that_are_awaited_share_their_timer() -> None:
    async def upstream() -> AsyncIterator[str]:
        for _ in range(800):
            await asyncio.sleep(0)
            yield "data: 1\n\n"

    async def main() -> None:
        await timed(keep_alive(upstream()))

    # One for the first chunk, whose interval may be another.
    assert counted(main)["call_at"] <= 2


def test_c13_the_timer_is_armed_once_an_interval_however_many_chunks_come() -> None:
    async def main() -> None:
        await timed(keep_alive(script(*(0.01, "data: 1\n\n") * 1000)))

    # The sleeps of the upstream are timers too.
    assert counted(main)["call_at"] - 1000 <= 12


# C14


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = VirtualTimeLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    return loop


def loop_of_python_tasks() -> asyncio.AbstractEventLoop:
    loop = VirtualTimeLoop()
    python_task: Any = asyncio.tasks._PyTask  # type: ignore[attr-defined]
    loop.set_task_factory(lambda loop, coroutine, **options: python_task(coroutine, loop=loop, **options))
    return loop


def uvloop_loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


LOOPS: list[Any] = [
    pytest.param(VirtualTimeLoop, 1, True, id="debug"),
    pytest.param(
        eager_loop,
        1,
        False,
        id="eager tasks",
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 brought eager tasks."),
    ),
    pytest.param(loop_of_python_tasks, 1, False, id="tasks in Python"),
    pytest.param(asyncio.new_event_loop, 0.01, False, id="stock"),
    pytest.param(
        uvloop_loop,
        0.01,
        False,
        id="uvloop",
        marks=pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop cannot be imported."),
    ),
]

#: In real time what happens at nearly the same moment comes in any order, so these go by counts, not by the clock.
BEHAVIOURS: list[Behaviour] = [oracle.to_the_end, oracle.left_after(1), oracle.cancelled_after(1)]
CORE = [
    script
    for script in [*GENERATORS, *SHAPES]
    if script.__name__
    in {
        "awaits_between",
        "spinner",
        "anyio_scope_cancelled_inside",
        "anyio_task_group_across_yields",
        "variable_reset_by_token",
        "gather_in_a_step",
        "awaits_a_task",
        "fails_through_a_future",
        "cleans_up_with_awaits",
        "swallows_a_cancellation_and_goes_on",
        "uncancels_its_task",
        "awaits_a_future_of_another_loop",
        "wrapped_already",
        "anext_returns_a_task",
        "anext_returns_an_awaitable",
        "only_aiter",
    }
]


@pytest.mark.parametrize(("loop_factory", "scale", "debug"), LOOPS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=["to the end", "left", "cancelled"])
@pytest.mark.parametrize("script", CORE, ids=lambda script: script.__name__)
def test_c14_transparency_on_every_loop(
    script: Script,
    behaviour: Behaviour,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    scale: float,
    debug: bool,
) -> None:
    bare, *wrapped = [
        observe(script, behaviour, interval, loop_factory=loop_factory, scale=scale, debug=debug)
        for interval in (None, 0.07 * scale, 30)
    ]
    for seen in wrapped:
        assert seen.comparable() == bare.comparable()


@pytest.mark.parametrize("debug", [False, True])
def test_c14_several_loops_one_after_the_other(debug: bool) -> None:
    for factory in [VirtualTimeLoop, asyncio.new_event_loop, VirtualTimeLoop, *([uvloop_loop] if HAS_UVLOOP else [])]:
        seen = run(lambda: timed(keep_alive(script(0.05, "data: 1\n\n"), 0.02)), factory, debug=debug)
        assert seen[-1][1] == "data: 1\n\n"


def test_c14_loops_in_two_threads() -> None:
    results: list[list[Any]] = []

    def stream() -> None:
        for _ in range(5):
            seen = run(lambda: timed(keep_alive(script(2.5, "data: 1\n\n"))))
            results.append([chunk for _, chunk in seen])

    threads = [threading.Thread(target=stream) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [[": keep-alive\n\n"] * 2 + ["data: 1\n\n"]] * 10


def test_c14_an_upstream_that_waits_for_a_thread() -> None:
    may_go = threading.Event()

    async def upstream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        yield await asyncio.to_thread(lambda: "data: 2\n\n" if may_go.wait(60) else "")

    async def main() -> list[str]:
        chunks = []
        async for chunk in keep_alive(upstream(), 0.01):
            chunks.append(chunk)
            if len(chunks) == 3:
                may_go.set()
        return chunks

    chunks = run(main, asyncio.new_event_loop)
    assert (chunks[1], chunks[-1]) == (": keep-alive\n\n", "data: 2\n\n")


def test_c11_a_cancellation_that_cannot_be_thrown_in_is_raised_between_two_steps() -> None:
    class Hot:
        """An iterator that never suspends, and that has no ``athrow``."""

        def __aiter__(self) -> "Hot":
            return self

        async def __anext__(self) -> str:
            return "data: 1\n\n"

    seen: list[str] = []

    async def consume() -> None:
        async with asyncio.timeout(1):
            async for chunk in keep_alive(Hot()):
                seen.append(chunk)  # noqa: PERF401

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await consume()

    run(main, lambda: VirtualTimeLoop(per_pass=0.125))
    assert 16 <= len(seen) <= 16 * 10


def test_c8_a_consumer_that_is_closed_while_the_loop_has_its_turn_leaves_the_upstream_alone() -> None:
    events: list[object] = []

    async def upstream() -> AsyncIterator[str]:
        try:
            while True:
                yield "data: 1\n\n"
        finally:
            events.append("clean-up")
            await asyncio.sleep(1)  # which no coroutine may do while it is closed

    async def consume(stream: Any) -> None:
        async for _ in stream:
            pass

    async def main() -> None:
        stream = keep_alive(hot := upstream())
        consumer = consume(stream)
        assert consumer.send(None) is None
        consumer.close()
        assert events == []
        await hot.aclose()  # type: ignore[attr-defined]
        assert events == ["clean-up"]

    run(main)
