"""Upstreams for the oracle: generators that fail, clean up, resist cancellation, or do what they should not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

from tests.oracle import Journal, readable
from tests.upstreams import event, generator, ready


class Awaitable:
    """An awaitable whose ``__await__`` yields what it is given."""

    def __init__(self, *awaited: Any) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, str]:
        yield from self._awaited
        return "done"


def settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Give a future its result or exception, unless it was cancelled meanwhile."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


@ready
async def fails_before_its_first_chunk(journal: Journal) -> AsyncIterator[str]:
    if journal.made == []:
        raise journal.error(ValueError("at once"))
    yield ""


@generator
async def fails_between_chunks(journal: Journal) -> AsyncIterator[str]:
    with journal:
        await journal.sleep(0.3)
        yield event(1)
        await journal.sleep(0.3)
        try:
            raise journal.error(KeyError("cause"))
        except KeyError as error:
            raise journal.error(ValueError("between")) from error


@generator
async def fails_in_its_cleanup(journal: Journal) -> AsyncIterator[str]:
    try:
        with journal:
            for number in range(3):
                await journal.sleep(0.3)
                yield event(number)
    finally:
        await journal.sleep(0.15)
        raise journal.error(OSError("clean-up"))


@generator
async def fails_through_a_future(journal: Journal) -> AsyncIterator[str]:
    future = asyncio.get_running_loop().create_future()
    error = journal.error(ValueError("future"))
    asyncio.get_running_loop().call_later(journal.seconds(0.35), settle, future, error)
    with journal:
        yield event(1)
        await future


@generator
async def fails_through_a_cancelled_future(journal: Journal) -> AsyncIterator[str]:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(journal.seconds(0.35), future.cancel, "not the task")
    with journal:
        yield event(1)
        await future


def _raising(error: BaseException, name: str) -> None:
    async def script(journal: Journal) -> AsyncIterator[str]:
        with journal:
            await journal.sleep(0.3)
            yield event(1)
            await journal.sleep(0.3)
            raise journal.error(type(error)(*error.args))

    script.__name__ = f"raises_{name}"
    generator(script)


for _error in (
    asyncio.CancelledError(),
    asyncio.CancelledError("its own"),
    GeneratorExit("its own"),
    StopIteration("value"),
    StopAsyncIteration("value"),
    KeyboardInterrupt("key"),
    SystemExit(3),
    TimeoutError(),
    ExceptionGroup("group", [ValueError("in group")]),
):
    _raising(_error, repr(_error))


@ready
async def raises_generator_exit_at_once(journal: Journal) -> AsyncIterator[str]:
    await journal.sleep(0.3)
    yield event(1)
    with journal:
        raise journal.error(GeneratorExit("at once"))


@generator
async def cleans_up_with_awaits(journal: Journal) -> AsyncIterator[str]:
    try:
        for number in range(3):
            await journal.sleep(0.3)
            yield event(number)
    except BaseException as error:
        journal(readable(error))
        raise
    finally:
        for number in range(5):
            await journal.sleep(0.15)
            await asyncio.sleep(0)
            journal(f"clean-up {number}")


@generator
async def swallows_a_cancellation_and_goes_on(journal: Journal) -> AsyncIterator[str]:
    for number in range(4):
        try:
            with journal:
                await journal.sleep(0.3)
        except asyncio.CancelledError:
            await journal.sleep(0.15)
        yield event(number)


@generator
async def swallows_a_cancellation_and_ends(journal: Journal) -> AsyncIterator[str]:
    with contextlib.suppress(asyncio.CancelledError), journal:
        for number in range(4):
            await journal.sleep(0.3)
            yield event(number)


@generator
async def uncancels_its_task(journal: Journal) -> AsyncIterator[str]:
    for number in range(4):
        try:
            with journal:
                await journal.sleep(0.3)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            journal(f"left {task.uncancel()}")
        await journal.sleep(0.3)
        yield event(number)


def _converting(make: Callable[[], BaseException], name: str) -> None:
    async def script(journal: Journal) -> AsyncIterator[str]:
        try:
            for number in range(3):
                await journal.sleep(0.3)
                yield event(number)
        except asyncio.CancelledError:
            await journal.sleep(0.15)
            raise journal.error(make()) from None

    script.__name__ = f"turns_a_cancellation_into_{name}"
    generator(script)


_converting(lambda: TimeoutError("converted"), "timeout_error")
_converting(lambda: asyncio.CancelledError("another"), "another")
_converting(KeyboardInterrupt, "keyboard_interrupt")


@generator
async def cancels_its_task(journal: Journal) -> AsyncIterator[str]:
    task = asyncio.current_task()
    assert task is not None
    try:
        with journal:
            await journal.sleep(0.3)
            yield event(1)
            task.cancel("from inside")
            await journal.sleep(0.3)
    except asyncio.CancelledError:
        task.uncancel()
    await journal.sleep(0.3)
    yield event(2)


@generator
async def ignores_generator_exit(journal: Journal) -> AsyncIterator[str]:
    try:
        for number in range(3):
            await journal.sleep(0.3)
            yield event(number)
    except GeneratorExit:
        journal("ignored")
        yield event("still here")


@generator
async def handles_an_error_while_it_yields(journal: Journal) -> AsyncIterator[str]:
    with journal:
        try:
            raise ValueError("handled")
        except ValueError:
            await journal.sleep(0.3)
            yield event(1)
            journal("in except")
            await journal.sleep(0.3)
            with contextlib.suppress(ValueError):
                int("another")
            yield event(2)
        journal("behind except")
        await journal.sleep(0.3)
        raise journal.error(ValueError("without context"))


def _awaiting_garbage(make: Callable[[], Any], name: str) -> None:
    async def script(journal: Journal) -> AsyncIterator[str]:
        with contextlib.suppress(RuntimeError), journal:
            await Awaitable(make())
        await journal.sleep(0.3)
        yield event(1)
        with journal:
            await Awaitable(make())

    script.__name__ = f"awaits_{name}"
    generator(script)


def _foreign_future() -> asyncio.Future[None]:
    loop = asyncio.new_event_loop()
    loop.close()
    future: asyncio.Future[None] = asyncio.Future(loop=loop)
    future._asyncio_future_blocking = True
    return future


def _itself() -> Any:
    task = asyncio.current_task()
    assert task is not None
    task._asyncio_future_blocking = True
    return task


_awaiting_garbage(lambda: 42, "a_number")
_awaiting_garbage(lambda: asyncio.sleep, "a_function")
_awaiting_garbage(_foreign_future, "a_future_of_another_loop")
_awaiting_garbage(_itself, "itself")
_awaiting_garbage(lambda: asyncio.get_running_loop().create_future(), "a_future_by_yield")
