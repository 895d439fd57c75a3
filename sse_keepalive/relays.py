"""
Relays: what comes to one channel of a channel layer, received once and handed to all that want it.

For each group there is one relay in an event loop, however many streams have joined. So a message is fetched and
decoded once for all, a stream that is slow holds up nobody, and no stream can overlook that the layer has failed, or
has forgotten the group.

``receive()`` of a channel layer is never cancelled here while it may hold a message. That of ``channels_redis`` loses
then what it has just taken, even what was meant for other channels of the process.
"""

import asyncio
import contextvars
import copy
import logging
import pickle
import uuid
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Protocol

from channels.layers import InMemoryChannelLayer

from sse_keepalive.silence import cancellations_of_task

logger = logging.getLogger(__name__)

Message = dict[str, Any]

#: Every so many seconds a relay joins its group again: a Redis that was restarted knows no groups any more, and layers
#: forget members of a certain age (``group_expiry``).
REJOIN_EVERY: Final = 10.0

#: A layer that has not answered for so many seconds has failed.
PATIENCE: Final = 10.0

#: For so many seconds a relay tries to leave a group that nobody wants any more, in case the layer works again.
LEAVE_WITHIN: Final = 60.0

#: Seconds until the next attempt. A Redis that was restarted has broken connections, of which each fails once.
RETRY_AFTER: Final = 0.1

#: After so many seconds a channel is told again that its ``receive`` is to come to an end, if it has not.
FAREWELL_EVERY: Final = 2.0

#: So many farewells, at most, are on their way at once: a tenth of what the queue of a process takes by default, for
#: the messages of all its channels.
FAREWELLS_AT_ONCE: Final = 10

#: Seconds to leave a group when the event loop is about to end.
CUT_SHORT: Final = 1.0

#: What stands in the names of channels that have one queue in common: those of a process.
PROCESS_LOCAL: Final = "!"

#: So many calls of a layer, at most, are on their way at once.
CALLS_AT_ONCE: Final = 30

#: What a layer raises that no connection is to blame for, such as a name that it does not take.
REFUSALS: Final = (TypeError, ValueError, AssertionError, RuntimeError)


class Reader(Protocol):
    """What a relay hands messages to."""

    def take(self, message: Message) -> None:
        """Take a message that is one's own."""

    def lose(self, error: BaseException) -> None:
        """Hear that no messages come any more."""


class Relay:
    """
    Hands on what comes to one channel to all its readers in this event loop.

    :param group: the group that the channel is a member of, if any.
    :param channel: its name; by default it is a new one.
    """

    def __init__(self, layer: "Layer", group: str | None, channel: str | None = None) -> None:
        self._layer = layer
        self.group = group
        self._channel = channel
        self._readers: set[Reader] = set()
        self._joined = asyncio.get_running_loop().create_future()
        self._is_relaying = False
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, reader: Reader) -> None:
        """Hand it every message from now on."""
        self._readers.add(reader)
        if self._task is None:
            self._task = _detached(self._run())

    async def until_joined(self) -> None:
        """Wait until the channel is a member of the group, and raise what came in between."""
        await asyncio.wait([self._joined])
        self._joined.result()

    def remove(self, reader: Reader) -> asyncio.Task[None] | None:
        """
        Hand it no more messages. With the last reader, the channel leaves the group and is given up.

        :returns: the task that sees to that, unless the layer has failed: it may not answer any more.
        """
        self._readers.discard(reader)
        if self._readers:
            return None
        self._layer.forget(self)
        if self._is_relaying and self._task is not None:
            self._is_relaying = False
            self._task.cancel()
        return None if isinstance(self._failure, Exception) else self._task

    async def _run(self) -> None:
        inbox = None
        patience = LEAVE_WITHIN
        try:
            inbox = Inbox(self._layer, self._channel or await self._layer.call("new_channel"))
            await self._join_group(inbox)
            self._joined.set_result(None)
            self._is_relaying = True
            if self._readers:
                await self._relay(inbox)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                if self._is_relaying or cancellations_of_task() > 1:  # cancelled not by remove() alone
                    patience = CUT_SHORT
                raise
        finally:
            self._is_relaying = False
            self._layer.forget(self)
            if inbox is not None:
                await self._give_up(inbox, patience)

    async def _relay(self, inbox: "Inbox") -> None:
        receiving = inbox.open(self._hand_out)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_joined(inbox))
                await asyncio.wait([receiving])  # which leaves it alone when this is cancelled
                receiving.result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _keep_joined(self, inbox: "Inbox") -> None:
        while True:
            await asyncio.sleep(REJOIN_EVERY)
            if inbox.is_orphaned():
                raise ConnectionError("The channel layer was flushed.")
            await self._join_group(inbox)

    def _hand_out(self, message: Message) -> None:
        for reader, own in zip(self._readers, _with_copies(message), strict=False):
            reader.take(own)

    async def _join_group(self, inbox: "Inbox") -> None:
        if self.group is not None:
            await self._layer.call("group_add", self.group, inbox.channel)

    async def _give_up(self, inbox: "Inbox", patience: float) -> None:
        was_refused = self._joined.exception() is not None and isinstance(self._failure, REFUSALS)
        try:
            if self.group is not None and not was_refused:
                await self._layer.call("group_discard", self.group, inbox.channel, within=patience)
        except Exception:
            logger.warning("A channel layer failed while the group %r was left.", self.group, exc_info=True)
        await inbox.close(within=patience)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        if not self._joined.done():
            self._joined.set_exception(error)
            self._joined.exception()  # seen, if nobody waits for it any more
        for reader in self._readers:
            reader.lose(error)


class Inbox:
    """
    A channel, and the task that receives from it, one message after the other, which nothing cancels at work.

    :param channel: a name that the layer's ``new_channel()`` has returned.
    """

    def __init__(self, layer: "Layer", channel: str) -> None:
        self.channel = channel
        self._layer = layer
        self._receiving: asyncio.Task[None] | None = None
        self._farewell = {"type": "sse_keepalive.farewell", "token": uuid.uuid4().hex}

    def open(self, take: Callable[[Message], None]) -> asyncio.Task[None]:
        """Begin to receive; return the task, which ends with what the layer raises."""
        self._receiving = _detached(self._receive(take))
        return self._receiving

    async def _receive(self, take: Callable[[Message], None]) -> None:
        receive = self._layer.backend.receive
        while (message := await receive(self.channel)) != self._farewell:
            take(message)

    def is_orphaned(self) -> bool:
        """Whether the in-memory layer was flushed, so that ``receive`` waits for what will never come."""
        return self._is_in_memory() and self.channel not in self._layer.backend.channels

    def _is_cancellable(self) -> bool:
        """Whether its ``receive`` waits for this channel alone."""
        return PROCESS_LOCAL not in self.channel or self._is_in_memory()

    def _is_in_memory(self) -> bool:
        return getattr(type(self._layer.backend), "receive", None) is InMemoryChannelLayer.receive

    async def close(self, *, within: float) -> None:
        """
        Give up the channel, of which a layer hears by the cancellation of a ``receive``.

        One that waits for other channels of the process as well, and may have taken what is theirs, is not cancelled.
        It ends by a message to itself, and the next one is cancelled before it has had the time to take anything.
        """
        last = None
        try:
            async with asyncio.timeout(within):
                if self._receiving is not None and not self._receiving.done() and not self._is_cancellable():
                    await self._layer.say_farewell(self.channel, self._farewell, self._receiving)
                if self._receiving is None or self._receiving.done():
                    last = _detached(self._layer.backend.receive(self.channel))
                    await asyncio.sleep(0)
        except Exception:
            logger.warning("A channel layer failed while a channel was given up.", exc_info=True)
        finally:
            for task in (self._receiving, last):
                await _end(task, within=within)


class Layer:
    """
    One channel layer in one event loop: what is asked of it, in moderation, and its relays.

    A layer on Redis takes a connection for each call, of which it has a limited number. Where they run out, its own
    book-keeping fails, and messages come twice.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._relays: dict[str, Relay] = {}
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self._farewells = asyncio.Semaphore(FAREWELLS_AT_ONCE)

    @classmethod
    def here(cls, backend: Any) -> "Layer":
        """Return that of a layer in this loop, for as long as anybody has it."""
        key = (asyncio.get_running_loop(), id(backend))
        layer = _layers.get(key)
        if layer is None:
            layer = _layers[key] = cls(backend)
        return layer

    def relay(self, group: str) -> Relay:
        """Return the relay of a group, a new one if there is none."""
        if group not in self._relays:
            self._relays[group] = Relay(self, group)
        return self._relays[group]

    def forget(self, relay: Relay) -> None:
        """Let a new relay take its place, if it has one."""
        if relay.group is not None and self._relays.get(relay.group) is relay:
            del self._relays[relay.group]

    async def call(self, method: str, *arguments: Any, within: float | None = None) -> Any:
        """
        Return what a method of the layer returns, once it does not fail.

        :param within: for how many seconds it is called again, :data:`PATIENCE` by default. It must do no harm twice.
        """
        last: Exception | None = None
        try:
            async with asyncio.timeout(PATIENCE if within is None else within):
                while True:
                    try:
                        async with self._calls:
                            return await getattr(self.backend, method)(*arguments)
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

    async def say_farewell(self, channel: str, farewell: Message, receiving: asyncio.Task[None]) -> None:
        """Let a task that receives from a channel come to its end, and say so again if that was lost with a Redis."""
        async with self._farewells:
            while not receiving.done():
                await self._send_aside(channel, farewell)
                await asyncio.wait([receiving], timeout=FAREWELL_EVERY)

    async def _send_aside(self, channel: str, message: Message) -> None:
        if getattr(self.backend, "ring_size", 1) == 1:
            await self.call("send", channel, message, within=LEAVE_WITHIN)
            return
        # channels_redis on several hosts sends what is meant for one channel to another host than it receives from,
        # but not what is meant for a group.
        group = f"sse_keepalive.{message['token']}"
        await self.call("group_add", group, channel, within=LEAVE_WITHIN)
        await self.call("group_send", group, message, within=LEAVE_WITHIN)
        await self.call("group_discard", group, channel, within=LEAVE_WITHIN)


#: Those that anybody has, by their loop and what they are of.
_layers: Final[weakref.WeakValueDictionary[tuple[asyncio.AbstractEventLoop, int], Layer]] = (
    weakref.WeakValueDictionary()
)


def _with_copies(message: Message) -> Iterator[Message]:
    """Yield the message, and then copies of it: what one reader does with it must not reach another."""
    yield message
    try:
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # several times as fast as a deep copy
    except Exception:
        while True:
            yield copy.deepcopy(message)
    while True:
        yield pickle.loads(pickled)  # noqa: S301  # our own


def _detached(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Return a task that keeps nothing of the context of whoever happens to start it."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def _end(task: asyncio.Task[Any] | None, *, within: float) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task], timeout=min(within, PATIENCE))
        _ = not task.done() or task.cancelled() or task.exception()  # seen, whatever it is
