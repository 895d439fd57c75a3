"""
The oracle: what can be seen of an upstream that is iterated, bare or wrapped.

An upstream writes into a :class:`Journal` whatever it can see; a behaviour is what the consumer does with the
stream; :func:`observe` brings them together and returns everything that came out, without the keep-alive frames.
"""

import asyncio
import contextlib
import contextvars
import re
import sys
import types
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sse_keepalive.frames import COMMENT, LINE
from sse_keepalive.keepalive import with_sse_keep_alive
from tests.clock import VirtualTimeLoop, run

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")

FRAMES = {COMMENT, LINE, COMMENT.encode(), LINE.encode()}


def readable(error: BaseException | None) -> str:
    """Return type and arguments, without what is different in every run: addresses and numbers of tasks."""
    return re.sub(r"\b(?:0x)?[0-9a-f]{12}\b|Task-\d+|Task \w+ name=.*>", "…", repr(error))


class Journal:
    """What an upstream sees: where it is, when, in which task and context, and which exceptions it meets."""

    def __init__(self, scale: float = 1.0) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.made: list[BaseException] = []
        self.consumer: asyncio.Task[Any] | None = None
        self._scale = scale

    def __call__(self, what: object) -> None:
        task = asyncio.current_task()
        self.entries.append(
            (
                what,
                asyncio.get_running_loop().time() if self._scale == 1 else None,
                "consumer" if task is self.consumer else "other task",
                VARIABLE.get(),
                f"cancelling {task.cancelling() if task else None}",
                f"handling {type(sys.exception()).__name__}",
            )
        )

    def __enter__(self) -> "Journal":
        self("enter")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self(f"exit {readable(error)}")

    def error(self, error: BaseException) -> BaseException:
        """Note that the upstream made this very exception."""
        self.made.append(error)
        return error

    def seconds(self, seconds: float) -> float:
        return seconds * self._scale

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._scale)

    def spend(self, seconds: float) -> None:
        """Let time pass without giving the loop a turn."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            loop.advance(seconds)


Script = Callable[[Journal], AsyncIterable[Any]]


@dataclass
class Seen:
    """Everything that came out of a run."""

    journal: Journal
    chunks: list[Any] = field(default_factory=list)
    frames: list[tuple[float, Any]] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    error: str | None = None
    cancelling: int | None = None
    reports: list[str] = field(default_factory=list)
    tasks_left: int | None = None
    closed_at: float | None = None

    def take(self, chunk: Any) -> bool:
        """Take note of what the stream handed out, and return whether it is the upstream's."""
        if chunk in FRAMES:
            self.frames.append((asyncio.get_running_loop().time(), chunk))
            return False
        self.chunks.append(chunk)
        return True

    def comparable(self) -> dict[str, Any]:
        return {
            "journal": self.journal.entries,
            "chunks": self.chunks,
            "notes": self.notes,
            "error": self.error,
            "cancelling": self.cancelling,
            "reports": self.reports,
            "tasks left": self.tasks_left,
        }


Behaviour = Callable[[list[Any], Seen], Awaitable[None]]


def describe(error: BaseException, journal: Journal) -> str:
    """Return type, arguments, provenance and chain of an exception, comparable between two runs."""
    mine = next((f" made {index}" for index, made in enumerate(journal.made) if made is error), "")
    text = f"{readable(error)}{mine}"
    if error.__cause__ is not None:
        return f"{text} from {describe(error.__cause__, journal)}"
    if error.__context__ is not None and not error.__suppress_context__:
        return f"{text} while {describe(error.__context__, journal)}"
    return text


async def aclose(stream: Any) -> None:
    if hasattr(stream, "aclose"):
        await stream.aclose()


def observe(
    script: Script,
    behaviour: Behaviour,
    interval: float | None,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = VirtualTimeLoop,
    debug: bool = False,
    scale: float = 1.0,
) -> Seen:
    """Run the script's upstream, wrapped unless the interval is None, and return what was seen."""
    seen = Seen(Journal(scale))

    async def consume(streams: list[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.journal.consumer = task
        try:
            await behaviour(streams, seen)
        except BaseException as error:
            seen.error = describe(error, seen.journal)
        seen.cancelling = task.cancelling()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, report: seen.reports.append(f"{report['message'][:40]}"))
        # In a list, from which it is taken, so that nobody but the behaviour holds the stream.
        task = asyncio.create_task(consume([with_sse_keep_alive(script(seen.journal), interval)]))
        await asyncio.wait([task])
        with contextlib.suppress(asyncio.CancelledError):
            task.result()  # a cancellation that nobody felt
        await asyncio.sleep(scale)  # for what the loop finalises
        seen.tasks_left = len(asyncio.all_tasks()) - 1

    run(main, loop_factory, debug=debug)
    return seen


# What consumers do. Each owns the stream, the only element of the list that it is given.


async def to_the_end(streams: list[Any], seen: Seen) -> None:
    stream = aiter(streams.pop())
    try:
        async for chunk in stream:
            seen.take(chunk)
    finally:
        await aclose(stream)


async def slowly(streams: list[Any], seen: Seen) -> None:
    stream = aiter(streams.pop())
    try:
        async for chunk in stream:
            if seen.take(chunk):
                await seen.journal.sleep(0.07)
    finally:
        await aclose(stream)


def left_after(count: int) -> Behaviour:
    async def behaviour(streams: list[Any], seen: Seen) -> None:
        stream = aiter(streams.pop())
        async for chunk in stream:
            if seen.take(chunk) and len(seen.chunks) == count:
                break
        seen.journal("close")
        await aclose(stream)
        seen.journal("closed")

    return behaviour


def dropped_after(count: int) -> Behaviour:
    async def behaviour(streams: list[Any], seen: Seen) -> None:
        if count:
            async for chunk in streams[0]:
                if seen.take(chunk) and len(seen.chunks) == count:
                    break
        streams.clear()

    return behaviour


async def closed_unstarted(streams: list[Any], seen: Seen) -> None:
    stream = aiter(streams.pop())
    await aclose(stream)
    seen.journal("closed")


def cancelled_after(count: int) -> Behaviour:
    async def behaviour(streams: list[Any], seen: Seen) -> None:
        stream = aiter(streams.pop())
        try:
            async for chunk in stream:
                if seen.take(chunk) and len(seen.chunks) == count and seen.journal.consumer:
                    seen.journal.consumer.cancel("after some chunks")
        finally:
            await aclose(stream)

    return behaviour


def cancelled_at(*times: float, number: int = 1) -> Behaviour:
    async def behaviour(streams: list[Any], seen: Seen) -> None:
        task = seen.journal.consumer
        assert task is not None

        def cancel(time: float) -> None:
            for count in range(number):
                task.cancel(f"at {time} {count}")

        for time in times:
            asyncio.get_running_loop().call_later(seen.journal.seconds(time), cancel, time)
        await to_the_end(streams, seen)

    return behaviour


def timed_out_at(time: float) -> Behaviour:
    async def behaviour(streams: list[Any], seen: Seen) -> None:
        async with asyncio.timeout(seen.journal.seconds(time)):
            await to_the_end(streams, seen)

    return behaviour


def moved_on_at(time: float) -> Behaviour:
    import anyio

    async def behaviour(streams: list[Any], seen: Seen) -> None:
        with anyio.move_on_after(seen.journal.seconds(time)) as scope:
            await to_the_end(streams, seen)
        seen.notes.append(scope.cancelled_caught)

    return behaviour


def closed_in_a_step(count: int) -> Behaviour:
    """Close at the first frame behind so many chunks, that is in the middle of a step."""

    async def behaviour(streams: list[Any], seen: Seen) -> None:
        stream = aiter(streams.pop())
        async for chunk in stream:
            if not seen.take(chunk) and len(seen.chunks) >= count:
                seen.closed_at = asyncio.get_running_loop().time()
                break
        await aclose(stream)
        seen.notes.append(asyncio.get_running_loop().time())

    return behaviour


def cancelled_and_closed_at(time: float) -> Behaviour:
    """What closing in the middle of a step is like bare: the step is cancelled, then the upstream closed."""

    async def behaviour(streams: list[Any], seen: Seen) -> None:
        stream = aiter(streams.pop())
        loop = asyncio.get_running_loop()
        assert seen.journal.consumer is not None
        loop.call_at(time, seen.journal.consumer.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                async for chunk in stream:
                    if loop.time() >= time:
                        break
                    seen.take(chunk)
        finally:
            await aclose(stream)
        seen.notes.append(loop.time())

    return behaviour
