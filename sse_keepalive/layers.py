"""``group_messages``: what is sent to groups of a channel layer, as an asynchronous iterable."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from channels import DEFAULT_CHANNEL_LAYER
from channels.layers import get_channel_layer
from django.core.exceptions import ImproperlyConfigured

from sse_keepalive.relays import Layer, Message, Relay

#: So many messages may wait for a stream that is slower than they come. A client that has stopped reading would
#: otherwise fill the memory.
BACKLOG: Final = 1000


#: So many seconds a stream waits at its end until its groups are left, which takes a layer milliseconds. If it does
#: not answer, that goes on without the stream.
LEAVE_PATIENCE: Final = 2.0


class MessagesLost(Exception):  # noqa: N818  # as asyncio names its own: it tells what has happened
    """Raised by a stream's messages when some may be missing: the layer has failed, or the stream was too slow."""


class group_messages(AsyncIterator[Message]):  # noqa: N801  # named as the context managers of contextlib are
    """
    The messages that are sent to some groups of a channel layer, in a view or a consumer::

        async with group_messages("room") as messages:
            async for message in messages:
                yield ServerSentEvent(message["text"])

    From when the block begins until it ends no message is missed: whoever is cancelled while he waits for the next
    one (by a timeout, say) finds it when he asks again. The messages of each group come in the order in which the
    layer delivers them, as copies of one's own.

    :param groups: the names of the groups.
    :param layer: the alias of the channel layer in ``CHANNEL_LAYERS``.
    :param channel: a channel of one's own whose messages come as well: a consumer's ``channel_name``.
    :raises TypeError: without groups and channel; and, when the block begins, for what is no name of a group.
    :raises ImproperlyConfigured: if there is no such layer.
    :raises MessagesLost: from the iteration, if the layer fails, or if more than :data:`BACKLOG` messages have come
        since the last that was asked for.
    """

    def __init__(self, *groups: str, layer: str = DEFAULT_CHANNEL_LAYER, channel: str | None = None) -> None:
        if not groups and channel is None:
            raise TypeError("group_messages() needs at least one group.")
        self._backend = get_channel_layer(layer)
        if self._backend is None:
            raise ImproperlyConfigured(f"There is no channel layer {layer!r} in CHANNEL_LAYERS.")
        self._groups = tuple(dict.fromkeys(groups))
        self._channel = channel
        self._relays: list[Relay] = []
        self._messages: deque[Message] = deque()
        self._failure: MessagesLost | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if self._relays:
            raise RuntimeError("These messages are being iterated already.")
        self._messages.clear()
        self._failure = None
        layer = Layer.here(self._backend)
        self._relays = [layer.relay(group) for group in self._groups]
        if self._channel is not None:
            self._relays.append(Relay(layer, None, self._channel))
        for relay in self._relays:
            relay.add(self)
        try:
            for relay in self._relays:
                await relay.until_joined()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    async def __anext__(self) -> Message:
        while not self._messages or not self._relays:
            if not self._relays:
                raise RuntimeError("group_messages() is to be iterated within `async with`.")
            if self._failure is not None:
                raise self._failure
            if self._waiting is not None:
                raise RuntimeError("Another task is waiting for the next message.")
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._messages.popleft()

    async def _leave(self) -> None:
        relays, self._relays = self._relays, []
        self._wake()  # a task that still waits for a message
        # All of them at once, so that a cancellation in between keeps none.
        ending = [task for task in [relay.remove(self) for relay in relays] if task is not None]
        if ending:
            await asyncio.wait(ending, timeout=LEAVE_PATIENCE)  # they go on behind it, or if this is cancelled

    # What a relay calls.

    def take(self, message: Message) -> None:
        if self._failure is not None:
            return
        if len(self._messages) < BACKLOG:
            self._messages.append(message)
        else:
            self._failure = MessagesLost(f"More than {BACKLOG} messages have come since the last that was asked for.")
        self._wake()

    def lose(self, error: BaseException) -> None:
        if self._failure is None:
            what = f"{type(error).__name__}: {error}"
            self._failure = MessagesLost(f"The channel layer failed, and messages may be lost: {what}")
            self._failure.__cause__ = error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
