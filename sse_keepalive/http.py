"""``EventStreamResponse``: a streaming response that stays alive while it is silent."""

import copy
import json
from collections.abc import AsyncIterable, Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeGuard, cast

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, StreamingHttpResponse

from sse_keepalive.event_stream import EventStream
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.keepalive import KeepAliveStream
from sse_keepalive.options import UNSET, Interval, OnError, Options, Unset

CONTENT_TYPE: Final = "text/event-stream"


class EventStreamResponse(EventStream):
    """
    A streaming response of server-sent events that sends a keep-alive while the view has nothing to send.

    :param streaming_content: an asynchronous iterable of ``str``, ``bytes``, ``memoryview`` or
        :class:`~sse_keepalive.frames.ServerSentEvent`.
    :param request: the request that is answered, for HEAD and for the logs. The decorator fills it in.
    :param interval: seconds of silence (a number or a ``timedelta``) before a keep-alive; ``None`` or 0 for none;
        ``SSE_KEEPALIVE_INTERVAL`` by default.
    :param first_interval: the same before anything was sent; ``SSE_KEEPALIVE_FIRST_INTERVAL`` by default.
    :param frame: what a keep-alive is: ``"COMMENT"``, ``"LINE"``, ``"EVENT"``, or the text of a frame;
        ``SSE_KEEPALIVE_FRAME`` by default.
    :param endpoint: what logs and the admin call the stream, in 1 to 255 printable characters; by default the path in
        logs, and in the admin the name of the URL pattern, if the request is known.
    :param on_error: is called with an exception that the stream raises, and may return (or, as a coroutine function,
        come to return) one last event for the client. It is sent unless the stream broke off inside an event.
    :param headers: as in Django, as are ``status`` and ``content_type``.
    :raises TypeError: if the content is not asynchronously iterable, or an option of a wrong type.
    :raises ValueError: if an option has a wrong value.
    """

    def __init__(
        self,
        streaming_content: AsyncIterable[Any],
        *,
        request: HttpRequest | None = None,
        interval: Interval | Unset = UNSET,
        first_interval: Interval | Unset = UNSET,
        frame: str | bytes | Unset = UNSET,
        endpoint: str | Unset = UNSET,
        on_error: OnError | Unset | None = UNSET,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
        status: int | None = None,
        content_type: str | None = None,
    ) -> None:
        options = Options(interval, first_interval, frame, endpoint, on_error)
        refuse_synchronous(streaming_content)
        headers = dict(headers or {})
        if content_type is None and "content-type" not in {name.lower() for name in headers}:
            content_type = CONTENT_TYPE
        # In UTF-8 whatever the site's charset: clients know no other for event streams.
        super().__init__(content_type=content_type, status=status, headers=headers, charset="utf-8")
        self._keep_alive(streaming_content, request, options)
        if hasattr(streaming_content, "close"):
            self._resource_closers.append(streaming_content.close)  # as Django does with what it is given

    @property
    def stream(self) -> KeepAliveStream[Any]:
        """
        The stream with its keep-alives: the handle by which it is ended, or gets another interval and frame.

        When an operator decides anything about the endpoint, the interval and frame of the options are in force again,
        or what he has set instead.
        """
        return self._stream


def as_event_stream(response: StreamingHttpResponse, request: HttpRequest | None, options: Options) -> EventStream:
    """
    Give a response that a view has made its keep-alives, and return that very object.

    It stays an instance of its own class: headers, cookies, status and whatever else it has are untouched.
    """
    if isinstance(response, EventStream):
        response._complete(request, options)
        return response
    refuse_synchronous(response._iterator)  # type: ignore[attr-defined]
    # What the content would be encoded from; or what the class makes of it, in a copy that stays what it is.
    is_its_own = type(response).__aiter__ is not StreamingHttpResponse.__aiter__ or (
        type(response).streaming_content is not StreamingHttpResponse.streaming_content
    )
    upstream = aiter(copy.copy(response)) if is_its_own else response._iterator  # type: ignore[attr-defined]
    if "charset=" not in response.get("Content-Type", "").lower():
        response.charset = "utf-8"  # clients know no other, and it need not be looked up for each chunk
    response.__class__ = _event_stream_class(type(response))
    stream = cast("EventStream", response)
    stream._keep_alive(upstream, request, options)
    return stream


@cache
def _event_stream_class(response_class: type[StreamingHttpResponse]) -> type[EventStream]:
    namespace = {"__module__": response_class.__module__, "__qualname__": response_class.__qualname__}
    return cast("type[EventStream]", type(response_class.__name__, (EventStream, response_class), namespace))


def is_event_stream(response: object) -> TypeGuard[StreamingHttpResponse]:
    """Whether it is a stream of events that frames can be put between: not one that is compressed already."""
    return isinstance(response, EventStream) or (
        isinstance(response, StreamingHttpResponse)
        and response.get("Content-Type", "").partition(";")[0].strip().lower() == CONTENT_TYPE
        and response.get("Content-Encoding", "identity") == "identity"
    )


def refuse_synchronous(content: object) -> None:
    """
    Make sure that the content can be streamed.

    :raises TypeError: if it is not asynchronously iterable.
    """
    if not isinstance(content, AsyncIterable):
        raise TypeError(
            "An event stream needs an asynchronous iterable, such as an async generator, "
            f"not {type(content).__name__}: Django would collect that to its end before a byte of it is sent."
        )


def json_event(data: Any, *, event: str | None = None, id: str | int | None = None) -> ServerSentEvent:  # noqa: A002
    """
    Return an event with ``data`` as JSON, encoded as by ``JsonResponse``.

    :raises TypeError: if it cannot be encoded.
    :raises ValueError: as :class:`~sse_keepalive.frames.ServerSentEvent`.
    """
    return ServerSentEvent(json.dumps(data, cls=DjangoJSONEncoder), event=event, id=id)
