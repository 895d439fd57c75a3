"""
The behaviour of a response that stays alive, whatever class it is of.

Where it deliberately departs from Django's ``StreamingHttpResponse``:

1. It closes the view's generator itself, in the request's own task, before the handler goes on. Django closes only
   what ``__aiter__`` returns and leaves the rest to the garbage collector (https://code.djangoproject.com/ticket/37066).
2. It begins with an empty chunk, because some servers (Daphne) hold the headers back until the first chunk.
3. An error in the stream is logged and signalled, which Django does only for errors before the response.
4. It has no Content-Length, which would break the framing, and before Django 6.1 it is not compressed, because
   ``GZipMiddleware`` does not flush or makes every chunk a file of its own
   (https://code.djangoproject.com/ticket/36293).
5. Where it would be collected whole and for ever, that is from synchronous iterators and under WSGI, it fails.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, ItemsView, Iterable, Iterator
from typing import Any, Final

import django
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import ResponseHeaders

from sse_keepalive.endpoints import endpoint_of, refusal, remember, switch_of
from sse_keepalive.errors import is_failure, is_served_by_daphne, logger, report_error
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.keepalive import KeepAliveStream
from sse_keepalive.options import UNSET, Options, Unset
from sse_keepalive.streams import OpenStream
from sse_keepalive.switches import AS_IN_CODE, Switch, switches

#: What is sent unless the view says otherwise. "no-cache" keeps Varnish from serving one stream to two clients,
#: "no-transform" keeps proxies from compressing, and with that buffering it; nginx is told not to buffer it.
DEFAULT_HEADERS: Final = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}

#: From this version on ``GZipMiddleware`` hands on every chunk of an asynchronous stream at once.
COMPRESSIBLE_FROM: Final = (6, 1)


class EventStream(StreamingHttpResponse):
    """The behaviour of :class:`EventStreamResponse`, which a view's own response class can take on as well."""

    # All names are private because the class may become that of any response: see as_event_stream().
    _options: Options
    _request: HttpRequest | None
    _iterator: Any
    _set_streaming_content: Callable[[Any], None]
    _resource_closers: list[Callable[[], object]]
    _stream: KeepAliveStream[Any]
    _unstarted: "_Unstarted"
    _has_reported = False
    _content: AsyncGenerator[bytes] | None = None
    _switch = AS_IN_CODE
    #: The status and headers of a stream whose endpoint is stopped, in place of which a refusal goes out.
    _refused: tuple[int, ResponseHeaders] | None = None

    def _keep_alive(self, upstream: AsyncIterable[Any], request: HttpRequest | None, options: Options) -> None:
        """
        Make ``upstream`` the content, with keep-alives.

        It is wrapped here and only here: what a middleware makes of the content later (a compressed stream, say) is
        no place for frames.
        """
        self._options = options
        self._request = request
        self._stream = KeepAliveStream(upstream, None, frame=b"COMMENT")
        self._unstarted = _Unstarted(self._stream)
        self.streaming_content = self._stream
        for name, value in DEFAULT_HEADERS.items():
            self.headers.setdefault(name, value)
        self.headers.pop("Content-Length", None)
        if django.VERSION < COMPRESSIBLE_FROM:
            self.headers.setdefault("Content-Encoding", "identity")  # for GZipMiddleware; items() leaves it out
        self._use_options()

    def _complete(self, request: HttpRequest | None, options: Options) -> None:
        """Take over from a decorator what the response does not know or say itself."""
        before = self._request, self._options, self._switch
        self._request = self._request or request
        self._options = self._options.or_else(options)
        # Else left alone: the view may have told its stream what to use.
        if before[1:] != (self._options, switch_of(self._request, self._options)):
            self._use_options()
        elif self._refused is not None and self._request is not before[0]:
            self._refuse_if_stopped()

    def _use_options(self) -> None:
        was_open = self._switch.is_open
        self._switch = switch_of(self._request, self._options)
        self._use_switch()
        if self._switch.is_open != was_open:
            self._refuse_if_stopped()

    def _refuse_if_stopped(self) -> None:
        if self._refused is not None:
            self.status_code, self.headers = self._refused
            self._refused = None
        refused = refusal(self._request, self._switch)
        if refused is not None:
            self._refused = self.status_code, self.headers
            self.status_code, self.headers = refused.status_code, refused.headers
            self.headers["Content-Encoding"] = "identity"  # for GZipMiddleware; items() leaves it out
            self._has_been_logged = True  # as the refusal

    def _use_switch(self) -> None:
        interval, _ = self._options.interval_in_force(self._switch)
        frame, _ = self._options.frame_in_force(self._switch)
        frame = frame.encode() if isinstance(frame, str) else frame  # the type of what goes out before the first chunk
        self._stream.use(interval, frame, first_interval=self._options.first_in_force())

    def _obey(self, switch: Switch) -> None:
        if not switch.is_open:
            self._stream.end()
        # What the view has told its stream since it was made holds as long as the operator says nothing at all.
        elif switch != self._switch or switch != AS_IN_CODE:
            self._switch = switch
            self._use_switch()

    def items(self) -> ItemsView[str, str]:
        """Return the headers that go out: no length, and no encoding that is none."""
        left_out = {"content-length"}
        if self.headers.get("Content-Encoding") == "identity":
            left_out.add("content-encoding")
        return {name: value for name, value in super().items() if name.lower() not in left_out}.items()

    def __iter__(self) -> Iterator[bytes]:
        raise ImproperlyConfigured(
            "An event stream cannot be served under WSGI, where it would be collected to its end before a byte of it "
            "is sent. Serve the site with an ASGI server such as daphne or uvicorn. For runserver, put daphne first "
            "in INSTALLED_APPS and set ASGI_APPLICATION."
        )

    def __aiter__(self) -> AsyncGenerator[bytes]:
        if self._iterator is self._stream:
            return self._guarded(self._stream, first=b"")
        # Not Django's own __aiter__ if possible: it takes a TypeError in the stream for a synchronous iterator.
        content = self.streaming_content if self.is_async else super().__aiter__()
        return self._guarded(content, first=b"", layers=(self._iterator, self._content))

    @property
    def streaming_content(self) -> Any:
        """The stream in bytes, for a middleware to change."""
        if self._iterator is not self._stream:
            return super().streaming_content
        self._content = self._guarded(self._stream)
        return self._content

    @streaming_content.setter
    def streaming_content(self, value: Any) -> None:
        self._set_streaming_content(value)

    async def _guarded(
        self, content: Any, *, first: bytes | None = None, layers: Iterable[Any] = ()
    ) -> AsyncGenerator[bytes]:
        """
        Yield the content in bytes, see to what goes wrong in it, and close it and all that is below it.

        :param first: what to begin with.
        :param layers: what lies between the content and the stream.
        """
        self._unstarted.stream = None
        make_bytes = self.make_bytes
        # What need not go through make_bytes(), unless the view's own response class has something to do there.
        plain = bytes if type(self).make_bytes is StreamingHttpResponse.make_bytes else None
        open_stream = None
        try:
            if first is not None:
                yield first
            if self._has_no_body():
                return
            if content is self._stream:
                open_stream = await self._open()
            async for chunk in content:
                yield chunk if type(chunk) is plain else make_bytes(chunk)
        except BaseException as error:
            if not is_failure(error):
                raise
            last_event = await self._report(error)
            if last_event is not None and content is self._stream:
                yield make_bytes(last_event)
            if not is_served_by_daphne():
                # Further out, a cancellation that nobody asked for would be taken for the client's leaving.
                if isinstance(error, asyncio.CancelledError):
                    raise RuntimeError("The stream cancelled itself.") from error
                raise
        finally:
            if open_stream is not None:
                open_stream.close()
            await self._close_all(content, *layers)

    def _has_no_body(self) -> bool:
        is_head = self._request is not None and self._request.method == "HEAD"
        return is_head or self.status_code in (204, 304) or self._refused is not None

    async def _open(self) -> OpenStream | None:
        """Let an operator reach the stream from here on, if it has a name to be found by."""
        name = endpoint_of(self._request, self._options)
        if name is None:
            return None
        await switches.until_recent()  # a no-op where the decorator has seen to that before the view was called
        remember(name, self._options)
        return OpenStream(name, self._obey)

    async def _close_all(self, *layers: Any) -> None:
        try:
            for layer in layers:
                await self._close_one(layer)
        finally:
            await self._close_one(self._stream)

    async def _close_one(self, layer: Any) -> None:
        try:
            if hasattr(layer, "aclose"):
                await layer.aclose()
        except BaseException as error:
            if not is_failure(error):
                raise
            # Seen, but not raised on: nobody is left to whom a broken connection would say anything.
            await self._report(error)

    async def _report(self, error: BaseException) -> ServerSentEvent | None:
        """Log an error and signal it, the first time; return what the view wants to tell the client about it."""
        if self._has_reported:
            return None
        self._has_reported = True
        traceback = error.__traceback__
        # In a thread like Django's own reports, for it may send mail.
        await sync_to_async(report_error, thread_sensitive=False)(error, self._request, self._name())
        error.__traceback__ = traceback  # the way through the thread has put frames on it that hold the error
        on_error = self._options.on_error
        if on_error is UNSET or on_error is None:
            return None
        try:
            event = on_error(error)
            if inspect.isawaitable(event):
                event = await event
        except BaseException as another:
            if not is_failure(another):
                raise
            logger.exception("on_error of the event stream %s failed", self._name())
            return None
        return event if self._stream.is_between_events else None

    def _name(self) -> str:
        if not isinstance(self._options.endpoint, Unset):
            return self._options.endpoint
        return self._request.path if self._request is not None else "(unknown path)"

    def close(self) -> None:
        """Close the response, and a stream that was never started. One that was is left to its task."""
        self._unstarted.close()
        super().close()


class _Unstarted:
    """
    Closes a stream that is dropped, or whose response is closed, before it was started.

    An object of its own, for all copies of a response share it.
    """

    def __init__(self, stream: KeepAliveStream[Any]) -> None:
        self.stream: KeepAliveStream[Any] | None = stream

    def close(self) -> None:
        """Close it from any thread, as far as that needs no event loop: where nothing ran, nothing waits."""
        stream, self.stream = self.stream, None
        if stream is None:
            return
        closing = stream.aclose()
        try:
            closing.send(None)
            closing.close()
        except StopIteration:
            pass
        except (Exception, asyncio.CancelledError):
            logger.exception("Error while closing an event stream that was never started")

    __del__ = close
