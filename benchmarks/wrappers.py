"""Yardsticks: the two usual ways of adding keep-alives to a stream, in their plainest form."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Final

from benchmarks.sources import Chunk

FRAME: Final = ": keep-alive\n\n"


async def task_per_step(upstream: AsyncIterator[Chunk], interval: float) -> AsyncGenerator[Chunk]:
    """Run each step of the upstream in a task of its own, and wait for it with a time-out."""
    step: asyncio.Future[Chunk] | None = None
    try:
        while True:
            if step is None:
                step = asyncio.ensure_future(anext(upstream))
            done, _ = await asyncio.wait({step}, timeout=interval)
            if not done:
                yield FRAME
                continue
            try:
                chunk = step.result()
            except StopAsyncIteration:
                return
            step = None
            yield chunk
    finally:
        if step is not None and step.cancel():
            with suppress(asyncio.CancelledError):
                await step


async def pump(upstream: AsyncIterator[Chunk], interval: float) -> AsyncGenerator[Chunk]:
    """Run the upstream in a second task, and take its chunks from a queue with a time-out."""
    queue: asyncio.Queue[Chunk | Exception] = asyncio.Queue(maxsize=1)

    async def run() -> None:
        try:
            async for chunk in upstream:
                await queue.put(chunk)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(StopAsyncIteration())

    task = asyncio.create_task(run())
    try:
        while True:
            try:
                async with asyncio.timeout(interval):
                    item = await queue.get()
            except TimeoutError:
                yield FRAME
                continue
            if isinstance(item, StopAsyncIteration):
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
