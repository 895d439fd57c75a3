"""Upstreams for the oracle: iterators that are no generators, and chunks that are no whole events."""

import asyncio
import types
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator
from typing import Any

from tests.oracle import Journal, Script
from tests.upstreams import GENERATORS, READY, event, ready
from tests.upstreams_failing import Awaitable, settle

SHAPES: list[Script] = []


class Shaped:
    """An asynchronous iterator with any kind of ``__anext__``."""

    def __init__(self, journal: Journal, pull: Callable[[Journal, int], Any]) -> None:
        self._journal = journal
        self._pull = pull
        self._number = 0

    def __aiter__(self) -> "Shaped":
        return self

    def __anext__(self) -> Any:
        self._number += 1
        self._journal(f"asked for {self._number}")
        return self._pull(self._journal, self._number)


class Closing(Shaped):
    async def aclose(self) -> None:
        self._journal("aclose")
        await self._journal.sleep(0.15)
        self._journal("aclose done")


class IteratorWithoutSend:
    """What ``__await__`` may return too: an iterator that is no generator. Nothing can be thrown into it."""

    def __init__(self, *awaited: Any) -> None:
        self._awaited = list(awaited)

    def __await__(self) -> "IteratorWithoutSend":
        return self

    def __iter__(self) -> "IteratorWithoutSend":
        return self

    def __next__(self) -> Any:
        if not self._awaited:
            raise StopIteration("done")
        return self._awaited.pop(0)


class WithForeignSend(Awaitable):
    """An awaitable with a ``send`` that has nothing to do with that of generators."""

    def send(self, message: str) -> None:
        raise AssertionError(message)

    throw = close = send


async def _chunk(journal: Journal, number: int) -> str:
    with journal:
        await journal.sleep(0.25)
        if number == 4:
            raise StopAsyncIteration
        return event(number)


@types.coroutine
def _old_style(journal: Journal, number: int) -> Generator[Any, Any, str]:
    return (yield from _chunk(journal, number).__await__())


def _future(journal: Journal, number: int) -> asyncio.Future[str]:
    future = asyncio.get_running_loop().create_future()
    if number == 4:
        future.set_exception(StopAsyncIteration())
    elif number == 2:
        future.set_result(event("ready"))
    else:
        asyncio.get_running_loop().call_later(journal.seconds(0.25), settle, future, event(number))
    return future


def _sleeping(awaitable: type) -> Callable[[Journal, int], Any]:
    def pull(journal: Journal, number: int) -> Any:
        if number == 4:
            return _chunk(journal, number)
        future = asyncio.get_running_loop().create_future()
        future._asyncio_future_blocking = True
        asyncio.get_running_loop().call_later(journal.seconds(0.25), settle, future, None)
        return awaitable(None, future, None)

    return pull


def _failing_at_once(journal: Journal, number: int) -> Any:
    if number == 2:
        raise journal.error(ValueError("not in a coroutine"))
    return _chunk(journal, number)


def _not_awaitable(journal: Journal, number: int) -> Any:
    return "not awaitable" if number == 2 else _chunk(journal, number)


def shape(name: str, pull: Callable[[Journal, int], Any], kind: type[Shaped] = Shaped) -> None:
    def script(journal: Journal) -> AsyncIterable[Any]:
        return kind(journal, pull)

    script.__name__ = name
    SHAPES.append(script)


shape("anext_returns_a_coroutine", _chunk)
shape("anext_returns_a_coroutine_with_aclose", _chunk, Closing)
shape("anext_returns_an_old_coroutine", _old_style, Closing)
shape("anext_returns_a_future", _future)
shape("anext_returns_a_task", lambda journal, number: asyncio.create_task(_chunk(journal, number)), Closing)
shape("anext_returns_an_awaitable", _sleeping(Awaitable))
shape("anext_returns_an_awaitable_with_send", _sleeping(WithForeignSend))
shape("anext_returns_an_iterator_without_send", _sleeping(IteratorWithoutSend), Closing)
READY.add(SHAPES[3])
shape("anext_fails_at_once", _failing_at_once, Closing)


def shaped(script: Script) -> Script:
    SHAPES.append(script)
    return script


@shaped
def only_aiter(journal: Journal) -> AsyncIterable[str]:
    class Upstream:
        async def __aiter__(self) -> AsyncIterator[str]:
            with journal:
                for number in range(3):
                    await journal.sleep(0.25)
                    yield event(number)

    return Upstream()


@shaped
def delegating_to_a_generator(journal: Journal) -> AsyncIterable[str]:
    async def generate() -> AsyncIterator[str]:
        with journal:
            for number in range(3):
                await journal.sleep(0.25)
                yield event(number)

    class Upstream:
        def __init__(self) -> None:
            self._generator: Any = generate()

        def __aiter__(self) -> "Upstream":
            return self

        def __anext__(self) -> Any:
            return self._generator.__anext__()

        def aclose(self) -> Any:
            return self._generator.aclose()

    return Upstream()


def chunks(name: str, *parts: str | bytes) -> None:
    async def script(journal: Journal) -> AsyncIterator[str | bytes]:
        with journal:
            for part in parts:
                await journal.sleep(0.25)
                yield part
            await journal.sleep(0.25)

    script.__name__ = name
    GENERATORS.append(script)


@ready
async def empty_chunks(journal: Journal) -> AsyncIterator[str]:
    for number in range(40):
        yield ""
        if number % 10 == 0:
            await journal.sleep(0.25)
    yield event("at last")


chunks("bytes", b"data: 1\n\n", b"", b"data: 2\n\n")
chunks("text_and_bytes", "data: 1\n\n", b"data: 2\n\n", "data: 3\n\n", b"")
chunks("crlf", "data: 1\r\n\r\n", "data: 2\r", "\n\r\n", "event: x\r\n", "data: 3\r\n", "\r\n")
chunks("inside_lines", "da", "ta: 1", "\n", "\n", "event: x\n", "data: 2\n\n")
chunks("cut_characters", "data: é\n\n".encode()[:7], "data: é\n\n".encode()[7:])
chunks("without_a_last_line_end", "data: 1\n\n", "data: 2")
