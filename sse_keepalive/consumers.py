"""
``EventStreamConsumer``: an event stream as a consumer of Channels, which hears messages and disconnects meanwhile.

Where it deliberately departs from ``AsyncHttpConsumer``:

1. It listens to the client while it answers, and cancels what it is doing as soon as the client has left. Channels'
   own consumer hears nothing until ``handle()`` has returned (https://github.com/django/channels/issues/1249).
2. It hears messages of the channel layer while it streams (https://github.com/django/channels/issues/1302), and no
   cancellation reaches the layer's ``receive()``: see :mod:`sse_keepalive.relays`.
3. It looks after old database connections once in a while, not before each message: a look takes a thread, which is
   most of what a message would cost.
"""

import asyncio
import inspect
import io
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, Final

from asgiref.sync import sync_to_async
from channels.consumer import get_handler_name
from channels.db import aclose_old_connections
from channels.exceptions import StopConsumer
from channels.generic.http import AsyncHttpConsumer
from channels.layers import channel_layers, get_channel_layer
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse

from sse_keepalive.errors import is_failure, is_served_by_daphne, report_error
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.http import EventStreamResponse
from sse_keepalive.keepalive import KeepAliveStream
from sse_keepalive.layers import group_messages
from sse_keepalive.options import UNSET, Interval, Options, Unset
from sse_keepalive.relays import PATIENCE, Inbox, Layer
from sse_keepalive.silence import cancellations_of_task
from sse_keepalive.switches import LONGEST_NAME, switches

Message = dict[str, Any]

#: What can be said of the stream, as attributes of the class or to ``as_asgi()``.
OPTIONS: Final = ("interval", "first_interval", "frame", "endpoint", "groups", "headers")


#: Every so many seconds, at most, old database connections are closed before a message is handled. There is one set of
#: them for all consumers, because Channels runs what is synchronous in one thread.
LOOK_EVERY: Final = 1.0

_looked_at = -LOOK_EVERY

#: Seconds for the channel layer to name a channel before the headers go out.
CHANNEL_WITHIN: Final = 1.0

#: Seconds for the server to take the end of an answer whose client it says has left.
LAST_PATIENCE: Final = 1.0


class EventStreamConsumer(AsyncHttpConsumer):  # type: ignore[misc]  # Channels has no types
    """
    A consumer that answers a request with an event stream: the chunks that :meth:`stream` yields.

    The chunks, the keep-alives, the headers, the switch and what happens to errors are those of an
    :class:`~sse_keepalive.http.EventStreamResponse`, as are the options, which are attributes of the class or
    arguments of ``as_asgi()``.

    Messages of the channel layer call the method that is named after their type (``"chat.message"`` calls
    ``chat_message``) while it streams, one at a time, and that method may call :meth:`send_event`. An exception of
    it ends the stream as one of :meth:`stream` does; ``StopConsumer`` ends it in order.

    To refuse a request, override ``handle()``: call ``send_response(403, b"")`` there, or ``super().handle(body)``.

    :raises TypeError: from ``as_asgi()``, for an option of a wrong type or none at all, or a ``stream()`` that does
        not yield.
    :raises ValueError: from ``as_asgi()``, for an option with a wrong value.
    :raises ImproperlyConfigured: from ``as_asgi()``, if there are groups, but no channel layer.
    """

    #: The groups that it joins before :meth:`stream` begins, and leaves at the end.
    groups: Collection[str] = ()
    #: Seconds of silence before a keep-alive, a ``timedelta``, or ``None`` for none.
    interval: Interval | Unset = UNSET
    #: The same before anything was sent.
    first_interval: Interval | Unset = UNSET
    #: What a keep-alive is: the name or the text of a frame.
    frame: str | bytes | Unset = UNSET
    #: What logs and the admin call the stream; by default the module and the name of the class.
    endpoint: str | Unset = UNSET
    #: Further headers.
    headers: Mapping[str, str] = MappingProxyType({})

    #: The request, as views have it; its ``user`` and ``session`` are those of the scope.
    request: HttpRequest

    scope: Any
    channel_layer: Any = None
    channel_name: str | None = None
    _has_channel_to_close = False
    _has_begun = False
    _has_left = False
    _is_answered = False
    _is_leaving = False
    _listens = False
    _sends_last = False
    _stream: KeepAliveStream[Any] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__()
        for name, value in options.items():
            if name not in OPTIONS:
                raise TypeError(f"{type(self).__name__} has no option {name!r}. There are {', '.join(OPTIONS)}.")
            setattr(self, name, value)

    @classmethod
    def as_asgi(cls, **initkwargs: Any) -> Any:  # what URLRouter takes is no view, for which path() asks
        """Return the application, after a look at the options, so that what is wrong is told when the site starts."""
        cls(**initkwargs)._check()
        return super().as_asgi(**initkwargs)

    async def stream(self) -> AsyncIterator[Any]:
        """Yield the chunks. By default there are none, and the stream is open until the client leaves."""
        await asyncio.get_running_loop().create_future()
        yield ""

    async def get_groups(self) -> Collection[str]:
        """Return the names of the groups that are joined; override it where they depend on the request."""
        return self.groups

    def on_error(self, error: BaseException) -> Any:  # noqa: ARG002
        """Return, now or as a coroutine, a last event for a client whose stream has failed, if there is one."""
        return None

    async def send_event(self, event: ServerSentEvent) -> bool:
        """
        Send an event between those of :meth:`stream`, and return when the server has taken it.

        :returns: whether it was sent: ``False`` if the stream has ended.
        :raises TypeError: for what is no :class:`~sse_keepalive.frames.ServerSentEvent`.
        :raises RuntimeError: before the stream was begun.
        """
        if not isinstance(event, ServerSentEvent):
            raise TypeError(f"send_event() takes a ServerSentEvent, not {type(event).__name__}.")
        if self._stream is None:
            raise RuntimeError("There is no stream to send an event in yet.")
        return await self._stream.push(event)

    async def handle(self, body: bytes) -> None:  # noqa: ARG002
        """Answer the request."""
        await switches.until_recent()  # a response that is made in a fresh process would not know of a stop yet
        response = EventStreamResponse(
            self.stream(), request=self.request, headers=self.headers, **self._options().as_keywords()
        )
        try:
            await self._send(response)
        finally:
            response._unstarted.close()  # not the response, which would say that a request of Django's has finished

    async def _send(self, response: EventStreamResponse) -> None:
        self._has_begun = True
        headers = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in response.items()]
        await self.send_headers(status=response.status_code, headers=headers)
        async with aclosing(aiter(response)) as chunks:
            await self.send_body(await anext(chunks), more_body=True)  # an empty one, with which the headers go out
            if not response._has_no_body():
                async with self._listening(response.stream):
                    async for chunk in chunks:
                        await self.send_body(chunk, more_body=True)
                    await self._send_end()  # before the groups are left, which may take time
            await self._send_end()

    async def _send_end(self) -> None:
        if not self._is_answered:
            await self.send_body(b"")

    @asynccontextmanager
    async def _listening(self, stream: KeepAliveStream[Any]) -> AsyncGenerator[None]:
        """Hear the channel layer. Until it is joined, the stream is silent, and kept alive as in any silence."""
        self._listens = True
        joined = asyncio.Event()
        stream.begin_after(joined.wait)
        listening = asyncio.create_task(self._listen(stream, joined))
        try:
            yield
        finally:
            self._listens = False
            if not self._is_leaving:  # as it does by itself if a handler has failed
                listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self, stream: KeepAliveStream[Any], joined: asyncio.Event) -> None:
        try:
            if self.channel_layer is not None and self.channel_name is None:
                await self._open_channel()
            groups = _names(await self.get_groups())
            if self.channel_layer is not None or groups:
                self._has_channel_to_close = False  # it is closed with the messages
                async with group_messages(
                    *groups, layer=self.channel_layer_alias, channel=self.channel_name
                ) as messages:
                    self._stream = stream
                    joined.set()
                    await self._handle_all(messages, stream)
        except BaseException as error:
            await self._fail(stream, error)
        finally:
            self._stream = stream
            joined.set()

    async def _handle_all(self, messages: AsyncIterator[Message], stream: KeepAliveStream[Any]) -> None:
        """Call the handlers, and let what they raise take effect before the groups are left, which may take time."""
        try:
            while self._listens:  # even if a handler does not let a cancellation pass
                await self.dispatch(await anext(messages))
        except BaseException as error:
            await self._fail(stream, error)
        finally:
            self._is_leaving = True

    async def _open_channel(self, within: float | None = None) -> None:
        self.channel_name = await Layer.here(self.channel_layer).call("new_channel", within=within)
        self._has_channel_to_close = True

    async def _fail(self, stream: KeepAliveStream[Any], error: BaseException) -> None:
        """See to what came from a handler, or from joining the groups."""
        if isinstance(error, StopConsumer):
            stream.end()
            return
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise error
        if self._listens and stream.fail(error):
            return
        # The stream has ended already. What goes wrong in a handler's clean-up is to be seen all the same.
        if is_failure(error):
            await sync_to_async(report_error, thread_sensitive=False)(error, self.request, self._name())

    # What Channels calls.

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        """Answer the request, and hear the client meanwhile."""
        self.scope = scope
        self.base_send = send
        self.channel_layer = get_channel_layer(self.channel_layer_alias)
        if self.channel_layer is not None:
            # If a layer that has to ask for it does not answer, the stream begins all the same, and asks again: a
            # browser that gets no stream at first never comes back, one whose stream fails does.
            with suppress(Exception):
                await self._open_channel(within=CHANNEL_WITHIN)
        try:
            message = await receive()
            while message.get("more_body"):
                await self.dispatch(message)
                message = await receive()
            if message["type"] == "http.request":
                await self._answer(message, receive)
            else:
                await self.dispatch(message)
        except StopConsumer:
            pass
        finally:
            if self._has_channel_to_close and self.channel_name is not None:
                await Inbox(Layer.here(self.channel_layer), self.channel_name).close(within=PATIENCE)

    async def dispatch(self, message: Message) -> None:
        """Call the method that is named after the type of a message."""
        name = get_handler_name(message)
        handler = getattr(self, name, None)
        if handler is None:
            raise ValueError(f"No handler for message type {message['type']}")
        global _looked_at
        if time.monotonic() >= _looked_at + LOOK_EVERY:
            _looked_at = time.monotonic()
            await aclose_old_connections()
        handling = handler(message)
        if not inspect.isawaitable(handling):
            raise TypeError(f"{type(self).__name__}.{name}() must be a coroutine function: `async def`.")
        await handling

    async def send(self, message: Message) -> None:
        """Send a message to the server."""
        self._sends_last = message["type"] == "http.response.body" and not message.get("more_body")
        await super().send(message)
        self._is_answered = self._is_answered or self._sends_last
        if self._is_answered and self._stream is not None:
            self._stream.end()  # a handler has sent the last of it

    async def _answer(self, request: Message, receive: Callable[[], Awaitable[Message]]) -> None:
        self.request = self._request_with(b"".join([*self.body, request.get("body", b"")]))
        answering = asyncio.create_task(self.dispatch(request))
        hearing = asyncio.create_task(self._hear_client(receive, answering))
        try:
            await answering  # whatever cancels this task cancels that one, with the same message
        except asyncio.CancelledError as cancellation:
            if cancellations_of_task() > 0:
                raise
            if not self._has_left:
                # Daphne would take it for the client's leaving.
                raise RuntimeError("The consumer cancelled itself.") from cancellation
        except StopConsumer:
            raise
        except Exception as error:
            if not self._has_begun or not is_served_by_daphne():
                raise
            report_error(error, self.request, self._name())
            if not self._is_answered:
                await self.base_send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
            if not hearing.cancelled():
                hearing.result()

    async def _hear_client(self, receive: Callable[[], Awaitable[Message]], answering: asyncio.Task[None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        # Servers say the same of a client that has got everything: nothing is left to be cancelled but clean-up.
        if self._sends_last and not self._is_answered:
            await asyncio.sleep(LAST_PATIENCE)
        if not self._is_answered:
            self._has_left = True
            answering.cancel()

    def _request_with(self, body: bytes) -> HttpRequest:
        request = ASGIRequest(self.scope, io.BytesIO(body))
        for name in ("user", "session"):
            if name in self.scope:
                setattr(request, name, self.scope[name])
        return request

    def _check(self) -> None:
        self._options()
        if not isinstance(self.headers, Mapping):
            raise TypeError(f"headers must be a mapping, not {self.headers!r}.")
        HttpResponse(headers=self.headers)
        if inspect.iscoroutinefunction(self.stream) or inspect.isgeneratorfunction(self.stream):
            raise TypeError(f"{type(self).__name__}.stream() must be an async generator: `async def`, with a `yield`.")
        if not inspect.iscoroutinefunction(self.get_groups):
            raise TypeError(f"{type(self).__name__}.get_groups() must be a coroutine function: `async def`.")
        if _names(self.groups) and self.channel_layer_alias not in channel_layers:
            raise ImproperlyConfigured(
                f"{type(self).__name__} has groups, but there is no channel layer {self.channel_layer_alias!r} in "
                "CHANNEL_LAYERS."
            )

    def _name(self) -> str:
        if isinstance(self.endpoint, Unset):
            return f"{type(self).__module__}.{type(self).__qualname__}"[:LONGEST_NAME]
        return self.endpoint

    def _options(self) -> Options:
        return Options(self.interval, self.first_interval, self.frame, self._name(), self.on_error)


def _names(groups: Collection[str]) -> tuple[str, ...]:
    if isinstance(groups, str) or not isinstance(groups, Collection):
        raise TypeError(f"groups must be a list of names, not {groups!r}.")
    return tuple(groups)
