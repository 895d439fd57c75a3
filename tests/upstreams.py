"""
Upstreams for the oracle: asynchronous generators that do what asyncio and anyio offer, each with a journal of what
it can see. ``READY`` are those in which a step may be ready at once while a cancellation is pending.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator

import anyio

from sse_keepalive.keepalive import with_sse_keep_alive
from tests.oracle import VARIABLE, Journal, Script

GENERATORS: list[Script] = []
READY: set[Script] = set()


def generator(script: Script) -> Script:
    GENERATORS.append(script)
    return script


def ready(script: Script) -> Script:
    READY.add(script)
    return generator(script)


def event(text: object) -> str:
    return f"data: {text}\n\n"


@ready
async def plain_chunks(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(5):
            yield event(number)
            journal(number)


@ready
async def no_chunks(journal: Journal) -> AsyncIterator[str]:
    journal("only")
    for chunk in "":
        yield chunk


@generator
async def awaits_between(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(3):
            await journal.sleep(0.3)
            yield event(number)
            journal(number)
        await journal.sleep(0.3)


@ready
async def bursts(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(3):
            yield event(number)
            yield event("again")
            journal(number)
            await journal.sleep(0.3)


@generator
async def spinner(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(3):
            for _ in range(20):
                await asyncio.sleep(0)
                journal.spend(0.02)
            yield event(number)
            journal(number)


@generator
async def hundreds_of_awaits_in_a_step(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(2):
            for _ in range(200):
                await journal.sleep(0.002)
            yield event(number)
            journal(number)


@generator
async def timeout_inside_a_step(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(3):
            try:
                async with asyncio.timeout(journal.seconds(0.35)):
                    await journal.sleep(0.2 * (number + 1))
            except TimeoutError as error:
                journal(repr(error))
            yield event(number)


@generator
async def timeout_held_across_yields(journal: Journal) -> AsyncIterator[str]:
    with journal:
        async with asyncio.timeout(journal.seconds(0.8)):
            for number in range(10):
                yield event(number)
                await journal.sleep(0.35)
                journal(number)


@generator
async def timeout_that_is_caught(journal: Journal) -> AsyncIterator[str]:
    with journal:
        try:
            async with asyncio.timeout(journal.seconds(0.45)) as timeout:
                yield event("before")
                await journal.sleep(5)
        except TimeoutError:
            journal(f"expired {timeout.expired()}")
        await journal.sleep(0.3)
        yield event("after")


@generator
async def nested_timeouts(journal: Journal) -> AsyncIterator[str]:
    async with asyncio.timeout(journal.seconds(1)) as outer:
        with journal:
            try:
                async with asyncio.timeout(journal.seconds(0.4)):
                    await journal.sleep(2)
            except TimeoutError:
                journal("inner")
            yield event("inner")
            outer.reschedule(asyncio.get_running_loop().time() + journal.seconds(0.5))
            await journal.sleep(2)


@generator
async def wait_for_in_a_step(journal: Journal) -> AsyncIterator[str]:
    with journal:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(journal.sleep(3), journal.seconds(0.3))
        yield event(await asyncio.wait_for(asyncio.sleep(journal.seconds(0.2), "result"), journal.seconds(2)))


@generator
async def task_group_across_yields(journal: Journal) -> AsyncIterator[str]:
    async def child(number: int) -> int:
        with journal:
            await journal.sleep(0.25 * number)
            return number

    with journal:
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(child(number)) for number in range(4)]
            for task in children:
                yield event(await task)
                journal("child was here")


@generator
async def task_group_whose_child_fails(journal: Journal) -> AsyncIterator[str]:
    async def child() -> None:
        await journal.sleep(0.5)
        raise journal.error(ValueError("child"))

    with journal:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            yield event("before")
            with journal:
                await journal.sleep(3)


@generator
async def anyio_scope_across_yields(journal: Journal) -> AsyncIterator[str]:
    with journal:
        with anyio.move_on_after(journal.seconds(0.75)) as scope:
            for number in range(9):
                await journal.sleep(0.3)
                yield event(number)
        journal(f"caught {scope.cancelled_caught}")
        await journal.sleep(0.3)
        yield event("after")


@generator
async def anyio_scope_cancelled_inside(journal: Journal) -> AsyncIterator[str]:
    with anyio.CancelScope() as scope:
        await journal.sleep(0.3)
        yield event(1)
        scope.cancel()
        with journal:
            await journal.sleep(0.3)
    await journal.sleep(0.3)
    yield event(f"caught {scope.cancelled_caught}")


@generator
async def anyio_fail_after(journal: Journal) -> AsyncIterator[str]:
    with journal, anyio.fail_after(journal.seconds(0.55)):
        yield event(1)
        await journal.sleep(5)


@generator
async def anyio_task_group_across_yields(journal: Journal) -> AsyncIterator[str]:
    send, receive = anyio.create_memory_object_stream[int](1)

    async def producer() -> None:
        async with send:
            with journal:
                for number in range(4):
                    await journal.sleep(0.25)
                    await send.send(number)

    with journal:
        async with anyio.create_task_group() as group, receive:
            group.start_soon(producer)
            async for number in receive:
                yield event(number)


@generator
async def anyio_shielded_cleanup(journal: Journal) -> AsyncIterator[str]:
    try:
        with journal:
            for number in range(4):
                await journal.sleep(0.3)
                yield event(number)
    finally:
        with anyio.CancelScope(shield=True), journal:
            await journal.sleep(0.25)


@generator
async def anyio_checkpoints(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(5):
            await anyio.lowlevel.checkpoint()
            journal.spend(0.2)
            await anyio.lowlevel.checkpoint()
            yield event(number)


@generator
async def variable_reset_by_token(journal: Journal) -> AsyncIterator[str]:
    token = VARIABLE.set("set")
    try:
        for number in range(3):
            await journal.sleep(0.3)
            journal(number)
            yield event(VARIABLE.get())
    finally:
        await journal.sleep(0.1)
        VARIABLE.reset(token)
        journal("reset")


@generator
async def variable_set_in_each_step(journal: Journal) -> AsyncIterator[str]:
    with journal:
        for number in range(3):
            VARIABLE.set(f"step {number}")
            await journal.sleep(0.3)
            yield event(VARIABLE.get())
            inner = contextvars.copy_context().get(VARIABLE)
            journal(inner)


@generator
async def gather_in_a_step(journal: Journal) -> AsyncIterator[str]:
    async def child(number: int) -> int:
        with journal:
            await journal.sleep(0.3 * number)
            return number

    with journal:
        for _ in range(2):
            yield event(await asyncio.gather(child(1), child(2)))


@generator
async def gather_that_fails(journal: Journal) -> AsyncIterator[str]:
    async def child(number: int) -> int:
        await journal.sleep(0.3 * number)
        raise journal.error(ValueError(number))

    with journal:
        yield event(await asyncio.gather(child(1), child(2), return_exceptions=True))
        yield event(await asyncio.gather(child(1), child(2)))


@generator
async def awaits_a_task(journal: Journal) -> AsyncIterator[str]:
    async def child() -> str:
        try:
            with journal:
                await journal.sleep(0.5)
        finally:
            await journal.sleep(0.35)
            journal("child has cleaned up")
        return "child"

    with journal:
        for _ in range(2):
            yield event(await asyncio.create_task(child()))


@generator
async def shielded_task(journal: Journal) -> AsyncIterator[str]:
    async def child() -> str:
        with journal:
            await journal.sleep(0.7)
        return "child"

    with journal:
        yield event(await asyncio.shield(child()))


@generator
async def queue_consumer(journal: Journal) -> AsyncIterator[str]:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for number in range(4):
        asyncio.get_running_loop().call_later(journal.seconds(0.1 + 0.2 * number), queue.put_nowait, number)
    try:
        with journal:
            while (number := await queue.get()) < 3:
                yield event(number)
    finally:
        journal(f"left in the queue: {queue.qsize()}")


@generator
async def lock_held_across_yields(journal: Journal) -> AsyncIterator[str]:
    lock = asyncio.Lock()

    async def rival() -> None:
        async with lock:
            await journal.sleep(0.3)
            journal("rival")

    await lock.acquire()
    task = asyncio.create_task(rival())
    await asyncio.sleep(0)
    lock.release()
    try:
        with journal:
            async with lock, asyncio.Semaphore(1):
                for number in range(3):
                    yield event(number)
                    await journal.sleep(0.3)
    finally:
        await task
        journal(f"locked {lock.locked()}")


@generator
async def condition_and_event(journal: Journal) -> AsyncIterator[str]:
    condition, happened = asyncio.Condition(), asyncio.Event()
    asyncio.get_running_loop().call_later(journal.seconds(0.35), happened.set)
    with journal:
        async with condition:
            yield event("in condition")
            await happened.wait()
            yield event("happened")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(journal.seconds(0.35)):
                    await condition.wait()
            journal("in condition again")


@generator
async def generator_inside(journal: Journal) -> AsyncIterator[str]:
    async with contextlib.aclosing(aiter(awaits_between(journal))) as inner:  # type: ignore[type-var]
        with journal:
            async for chunk in inner:
                yield chunk


@generator
async def exit_stack(journal: Journal) -> AsyncIterator[str]:
    @contextlib.asynccontextmanager
    async def resource(number: int) -> AsyncIterator[int]:
        try:
            with journal:
                yield number
        finally:
            await journal.sleep(0.15)
            journal(f"closed {number}")

    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(resource(number))
            await journal.sleep(0.3)
            yield event(number)


@generator
async def wrapped_already(journal: Journal) -> AsyncIterator[str]:
    async with contextlib.aclosing(with_sse_keep_alive(awaits_a_task(journal), 0.15)) as inner:  # type: ignore[type-var]
        async for chunk in inner:
            yield chunk
