"""``sse_keepalive``: what users type over a view that streams events."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, wraps
from typing import Any, cast, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse

from sse_keepalive.endpoints import refusal, switch_of
from sse_keepalive.http import EventStreamResponse, as_event_stream, is_event_stream, refuse_synchronous
from sse_keepalive.options import UNSET, Interval, OnError, Options, Unset
from sse_keepalive.switches import switches


@overload
def sse_keepalive(view: Callable[..., Any], /) -> Callable[..., Any]: ...


@overload
def sse_keepalive(
    *,
    interval: Interval | Unset = ...,
    first_interval: Interval | Unset = ...,
    frame: str | bytes | Unset = ...,
    endpoint: str | Unset = ...,
    on_error: OnError | Unset | None = ...,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def sse_keepalive(
    view: Callable[..., Any] | None = None,
    /,
    *,
    interval: Interval | Unset = UNSET,
    first_interval: Interval | Unset = UNSET,
    frame: str | bytes | Unset = UNSET,
    endpoint: str | Unset = UNSET,
    on_error: OnError | Unset | None = UNSET,
) -> Callable[..., Any]:
    """
    Keep the event stream of a view alive: ``@sse_keepalive``, or ``@sse_keepalive(interval=20)``.

    The view is an async generator function, or returns an asynchronous iterator, an ``EventStreamResponse``, or a
    ``StreamingHttpResponse`` of ``text/event-stream``. Whatever else it returns passes through untouched.

    The options are those of :class:`~sse_keepalive.http.EventStreamResponse`; those that are not given are the
    response's own, else those of a decorator further in, else the settings at the time of the request.

    :raises TypeError: for a synchronous generator function, which cannot be streamed, or an option of a wrong type.
    :raises ValueError: for an option with a wrong value.
    """
    options = Options(interval, first_interval, frame, endpoint, on_error)
    if view is None:
        return partial(_decorate, options=options)
    return _decorate(view, options)


def _decorate(view: Any, options: Options) -> Callable[..., Any]:
    """Wrap the view in one of its own kind: an async view stays one for Django and for other decorators."""
    if not callable(view) or isinstance(view, type):
        raise TypeError(
            f"sse_keepalive decorates a view, not {view!r}. Name its options (interval=20), and use method_decorator "
            "for a class."
        )
    if _is(inspect.isgeneratorfunction, view):
        raise TypeError(
            f"{getattr(view, '__qualname__', view)} is a synchronous generator, which Django would collect to its end "
            "before a byte of it is sent. Make it an async generator."
        )

    inner = getattr(view, "sse_keepalive_options", None)  # handed on by functools.wraps() of what lies in between
    if isinstance(inner, Options):
        options = inner.or_else(options)

    @wraps(view)
    async def async_view(*args: Any, **kwargs: Any) -> Any:
        request = _request_in(args, kwargs)
        if (refused := await _refusal(request, options)) is not None:
            return refused
        result = view(*args, **kwargs)
        return _respond(await result if inspect.isawaitable(result) else result, request, options)

    @wraps(view)
    def sync_view(*args: Any, **kwargs: Any) -> Any:
        request = _request_in(args, kwargs)
        if not _runs_on_a_loop() and (refused := _refusal_in_thread(request, options)) is not None:
            return refused
        result = view(*args, **kwargs)
        # An async class-based view's dispatch() is a synchronous function that returns a coroutine.
        respond = _respond_later if inspect.isawaitable(result) else _respond
        return respond(result, request, options)

    # method_decorator calls an async generator as a synchronous method, because it does not know its kind.
    is_method = isinstance(view, partial) and hasattr(view, "__wrapped__")
    is_async = _is(iscoroutinefunction, view) or (_is(inspect.isasyncgenfunction, view) and not is_method)
    decorated: Any = async_view if is_async else sync_view
    decorated.sse_keepalive_options = options
    return cast("Callable[..., Any]", decorated)


def _is(kind: Callable[[Any], bool], view: Callable[..., Any]) -> bool:
    """Whether the view, or its ``__call__``, is a function of that kind."""
    return kind(view) or kind(getattr(view, "__call__", None))  # noqa: B004


async def _refusal(request: HttpRequest | None, options: Options) -> HttpResponse | None:
    """Return what a stopped endpoint answers, before its view has done anything; ``None`` if it is open."""
    await switches.until_recent()
    return refusal(request, switch_of(request, options))


def _refusal_in_thread(request: HttpRequest | None, options: Options) -> HttpResponse | None:
    switches.block_until_recent()
    return refusal(request, switch_of(request, options))


def _runs_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _respond_later(result: Awaitable[Any], request: HttpRequest | None, options: Options) -> Any:
    if (refused := await _refusal(request, options)) is not None:
        _drop(result)
        return refused
    return _respond(await result, request, options)


def _drop(result: Any) -> None:
    """Close a coroutine that nobody is going to await, and what it would have awaited if it is one of ours."""
    while inspect.iscoroutine(result):
        is_ours = result.cr_code is _respond_later.__code__
        inner = inspect.getcoroutinelocals(result)["result"] if is_ours else None
        result.close()
        result = inner


def _respond(result: Any, request: HttpRequest | None, options: Options) -> Any:
    """Make a response that stays alive of what the view has returned, if it is a stream of events."""
    if is_event_stream(result):
        return as_event_stream(result, request, options)
    if isinstance(result, AsyncIterator):
        return EventStreamResponse(result, request=request, **options.as_keywords())
    if isinstance(result, Iterator):
        refuse_synchronous(result)
    return result


def _request_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpRequest | None:
    """Return the request of a view, or of a method, which is called with its instance before it."""
    for argument in (*args[:2], kwargs.get("request")):
        request = getattr(argument, "_request", argument)  # Django's own within that of a framework
        if isinstance(request, HttpRequest):
            return request
    return None
