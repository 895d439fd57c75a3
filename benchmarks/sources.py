"""Upstreams to measure with: one small event, over and over."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

Chunk = str | bytes

#: The same event for everybody, as text and as bytes.
EVENTS: Final[dict[str, Chunk]] = {"str": "data: 0123456789\n\n", "bytes": b"data: 0123456789\n\n"}


async def ready(chunk: Chunk, count: int) -> AsyncGenerator[Chunk]:
    """Yield ``count`` chunks without ever suspending."""
    for _ in range(count):
        yield chunk


async def awaited(chunk: Chunk, count: int) -> AsyncGenerator[Chunk]:
    """Yield ``count`` chunks from a queue, suspending once for each."""
    call_soon = asyncio.get_running_loop().call_soon
    queue: asyncio.Queue[Chunk] = asyncio.Queue()
    for _ in range(count):
        # A producer that ran freely would get ahead of a slow wrapper, whose next chunk would then
        # be ready at once: so it is sent for here, and never there before the loop's next pass.
        call_soon(queue.put_nowait, chunk)
        yield await queue.get()


#: By name, as the command lines, the sites' paths and the tables call them.
SOURCES: Final[dict[str, Callable[[Chunk, int], AsyncGenerator[Chunk]]]] = {
    "ready": ready,
    "awaited": awaited,
}
