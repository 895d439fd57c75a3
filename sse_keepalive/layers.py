"""
``group_messages``: what is sent to groups of a channel layer, as an asynchronous iterable.

How it works. For each group there is one relay in an event loop, however many streams have joined: one channel that
is a member of the group, and one task that receives from it and hands every message to every stream. So a message is
fetched and decoded once for all, a stream that is slow holds up nobody, and no stream can overlook that the layer has
failed, or has forgotten the group.

What is awaited in the layer is never cancelled while it may hold a message. ``receive()`` of a channel layer cannot
stand that: the one of ``channels_redis`` loses what it has just taken, even what was meant for other streams of the
process.
"""

import asyncio
import contextvars
import copy
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self

from channels import DEFAULT_CHANNEL_LAYER
from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from django.core.exceptions import ImproperlyConfigured

logger = logging.getLogger(__name__)

Message = dict[str, Any]

#: So many messages may wait for a stream that is slower than they come. A client that has stopped reading would
#: otherwise fill the memory.
BACKLOG: Final = 1000

#: Every so many seconds a relay joins its group again: a Redis that was restarted knows no groups any more, and layers
#: forget members of a certain age (``group_expiry``).
REJOIN_EVERY: Final = 10.0

#: A layer that has not answered for so many seconds has failed.
PATIENCE: Final = 10.0

#: For so many seconds a relay tries to leave a group that nobody wants any more, in case the layer works again.
LEAVE_WITHIN: Final = 60.0

#: Seconds until the next attempt. A Redis that was restarted has broken connections, of which each fails once.
RETRY_AFTER: Final = 0.1

#: What a channel sends to itself so that its pending ``receive`` comes to an end by itself.
FAREWELL: Final = {"type": "sse_keepalive.farewell"}


#: What a layer raises that no connection is to blame for, such as a name that it does not take.
REFUSALS: Final = (TypeError, ValueError, AssertionError, RuntimeError)


class MessagesLost(Exception):  # noqa: N818  # as asyncio names its own: it tells what has happened
    """Raised by a stream's messages when some may be missing: the layer has failed, or the stream was too slow."""


class Inbox:
    """
    A channel, and the one ``receive`` that is pending on it, which no cancellation reaches.

    :param layer: a channel layer.
    :param channel: a name that its ``new_channel()`` has returned.
    """

    def __init__(self, layer: Any, channel: str) -> None:
        self.channel = channel
        self._layer = layer
        self._pending: asyncio.Task[Message] | None = None

    async def receive(self) -> Message:
        """Return the next message. If this is cancelled, the message that comes is the next call's."""
        if self._pending is None:
            self._pending = _detached(self._layer.receive(self.channel))
        await asyncio.wait([self._pending])  # which leaves it alone when it is cancelled itself
        received, self._pending = self._pending, None
        return received.result()

    async def close(self) -> None:
        """
        End the pending ``receive`` by a message of its own.

        A cancellation is what layers expect when a channel is given up, so a last ``receive`` gets one, before it has
        had the time to take anything.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                if self._pending is not None:
                    await insist(self._send_farewell)
                    while await self.receive() != FAREWELL:
                        pass
                self._pending = _detached(self._layer.receive(self.channel))
                await asyncio.sleep(0)
        except Exception:
            logger.warning("A channel layer failed while a channel was given up.", exc_info=True)
        finally:
            if self._pending is not None:
                self._pending.cancel()
                await asyncio.wait([self._pending])
                _ = self._pending.cancelled() or self._pending.exception()  # seen, whatever it is

    async def _send_farewell(self) -> None:
        while True:
            try:
                await self._layer.send(self.channel, FAREWELL)
            except ChannelFull:
                await self.receive()
            else:
                return


class Relay:
    """
    Hands on what comes to one channel to all the streams of this event loop that want it.

    :param group: the group that the channel is a member of, if any.
    :param channel: its name; by default it is a new one.
    """

    def __init__(self, layer: Any, group: str | None, channel: str | None = None) -> None:
        self._layer = layer
        self._group = group
        self._channel = channel
        self._streams: set[group_messages] = set()
        self._joined = asyncio.get_running_loop().create_future()
        self._is_relaying = False
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, layer: Any, group: str) -> "Relay":
        """Return the relay of a group in this loop, a new one if there is none."""
        relays = _relays_of_this_loop()
        key = (id(layer), group)
        if key not in relays:
            relays[key] = cls(layer, group)
        return relays[key]

    def add(self, stream: "group_messages") -> None:
        """Hand it every message from now on."""
        self._streams.add(stream)
        if self._task is None:
            self._task = _detached(self._run())

    async def until_joined(self) -> None:
        """Wait until the channel is a member of the group, and raise what came in between."""
        await asyncio.wait([self._joined])
        self._joined.result()

    def remove(self, stream: "group_messages") -> asyncio.Task[None] | None:
        """
        Hand it no more messages. With the last stream, the channel leaves the group and is given up.

        :returns: the task that sees to that, unless the layer has failed: it may not answer any more.
        """
        self._streams.discard(stream)
        if self._streams:
            return None
        self._forget()
        if self._is_relaying and self._task is not None:
            self._is_relaying = False
            self._task.cancel()
        return None if isinstance(self._failure, Exception) else self._task

    async def _run(self) -> None:
        inbox = None
        try:
            inbox = Inbox(self._layer, self._channel or await insist(self._layer.new_channel))
            await self._join_group(inbox)
            self._joined.set_result(None)
            self._is_relaying = True
            if self._streams:
                await self._relay(inbox)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_relaying = False
            self._forget()
            if inbox is not None:
                await self._give_up(inbox)

    async def _relay(self, inbox: Inbox) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_joined(inbox))
                while True:
                    message = await inbox.receive()
                    for stream in self._streams:
                        stream._take(message)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _keep_joined(self, inbox: Inbox) -> None:
        while True:
            await asyncio.sleep(REJOIN_EVERY)
            await self._join_group(inbox)

    async def _join_group(self, inbox: Inbox) -> None:
        if self._group is not None:
            await insist(self._layer.group_add, self._group, inbox.channel)

    async def _give_up(self, inbox: Inbox) -> None:
        was_refused = self._joined.exception() is not None and isinstance(self._failure, REFUSALS)
        try:
            if self._group is not None and not was_refused:
                await insist(self._layer.group_discard, self._group, inbox.channel, within=LEAVE_WITHIN)
        except Exception:
            logger.warning("A channel layer failed while the group %r was left.", self._group, exc_info=True)
        await inbox.close()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        if not self._joined.done():
            self._joined.set_exception(error)
            self._joined.exception()  # seen, if nobody waits for it any more
        for stream in self._streams:
            lost = MessagesLost(f"The channel layer failed, and messages may be lost: {error!r}")
            lost.__cause__ = error
            stream._fail(lost)

    def _forget(self) -> None:
        loop = asyncio.get_running_loop()
        relays = _relays.get(loop, {})
        key = (id(self._layer), self._group)
        if relays.get(key) is self:
            del relays[key]
            if not relays:
                del _relays[loop]


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
        self._layer = get_channel_layer(layer)
        if self._layer is None:
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
        self._relays = [Relay.of(self._layer, group) for group in self._groups]
        if self._channel is not None:
            self._relays.append(Relay(self._layer, None, self._channel))
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
        return copy.deepcopy(self._messages.popleft())

    async def _leave(self) -> None:
        relays, self._relays = self._relays, []
        self._wake()  # a task that still waits for a message
        # All of them at once, so that a cancellation in between keeps none.
        ending = [task for task in [relay.remove(self) for relay in relays] if task is not None]
        if ending:
            await asyncio.wait(ending, timeout=PATIENCE)  # they go on behind it, or if this is cancelled

    # What a relay calls.

    def _take(self, message: Message) -> None:
        if self._failure is not None:
            return
        if len(self._messages) < BACKLOG:
            self._messages.append(message)
            self._wake()
        else:
            self._fail(MessagesLost(f"More than {BACKLOG} messages have come since the last that was asked for."))

    def _fail(self, lost: MessagesLost) -> None:
        self._failure = self._failure or lost
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


_relays: Final[dict[asyncio.AbstractEventLoop, dict[tuple[int, str | None], Relay]]] = {}


def _relays_of_this_loop() -> dict[tuple[int, str | None], Relay]:
    loop = asyncio.get_running_loop()
    if loop not in _relays:
        for other in list(_relays):
            if other.is_closed():
                _relays.pop(other, None)
        _relays[loop] = {}
    return _relays[loop]


async def insist(call: Callable[..., Awaitable[Any]], *arguments: str, within: float | None = None) -> Any:
    """
    Return what a call of a channel layer returns, once it does not fail.

    :param within: for how many seconds it is called again, :data:`PATIENCE` by default. It must do no harm twice.
    """
    last: Exception | None = None
    try:
        async with asyncio.timeout(PATIENCE if within is None else within):
            while True:
                try:
                    return await call(*arguments)
                except REFUSALS:
                    raise
                except Exception as error:
                    last = error
                await asyncio.sleep(RETRY_AFTER)
    except TimeoutError:
        if last is None:
            raise
        raise last from None
    finally:
        last = None  # its traceback keeps this frame


def _detached(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Return a task that keeps nothing of the context of whoever happens to start it."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())
