"""Event streams through Django's own ASGI handler: how they end, what is sent, what middleware does to them."""

import asyncio
import gc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import django
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse

from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import COMMENT, ServerSentEvent
from sse_keepalive.http import EventStreamResponse
from tests.asgi import (
    GZIP,
    TIME_LIMIT,
    WRAPPING,
    Blocked,
    Broken,
    Exchange,
    Message,
    Resource,
    answering,
    get,
    has_body,
    is_start,
    other_tasks,
    settle,
)
from tests.whatwg import decode

CONDITIONAL_GET = "django.middleware.http.ConditionalGetMiddleware"
COMMON = "django.middleware.common.CommonMiddleware"
REPLACING = "tests.test_handler.replacing_middleware"

#: From 6.1 on Django's handler runs the stream in its own task, and its GZipMiddleware streams.
IS_DJANGO_6_1 = django.VERSION >= (6, 1)

KEEP_ALIVE = COMMENT.encode()

variable: ContextVar[str] = ContextVar("variable", default="as before")


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What is cleaned up in this test was cleaned up by somebody."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Witness:
    """A stream that keeps account of how it ended."""

    def __init__(self, *, error: BaseException | None = None, clean_up_error: Exception | None = None) -> None:
        self.journal: list[str] = []
        self.parked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.task: asyncio.Task[Any] | None = None
        self._error = error
        self._clean_up_error = clean_up_error

    async def view(self, request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(self.stream(), request=request, interval=None)

    async def stream(self) -> AsyncIterator[str]:
        token = variable.set("set by the stream")
        self.task = asyncio.current_task()
        try:
            yield "data: 1\n\n"
            self.parked.set()
            await self.go_on.wait()
            if self._error is not None:
                raise self._error
            yield "data: 2\n\n"
        except BaseException as error:
            self.journal.append(type(error).__name__)
            raise
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            variable.reset(token)  # raises ValueError in another context
            assert asyncio.current_task() is self.task
            self.journal.append("cleaned up")
            if self._clean_up_error is not None:
                raise self._clean_up_error

    def is_sending(self, message: Message) -> bool:
        """Pick the first message with something of the stream in it."""
        return self.task is not None and has_body(message)


# Every way in which a stream ends: what makes it end so, and what the stream and the handler see of it.

Trigger = Callable[[Exchange, Witness], Awaitable[None]]


async def it_ends(exchange: Exchange, witness: Witness) -> None:
    witness.go_on.set()


async def the_client_leaves_while_the_stream_waits(exchange: Exchange, witness: Witness) -> None:
    await witness.parked.wait()
    exchange.leave()


async def the_client_leaves_while_send_blocks(exchange: Exchange, witness: Witness) -> None:
    assert isinstance(exchange.before_send, Blocked)
    await exchange.before_send.reached.wait()
    exchange.leave()


async def send_raises(exchange: Exchange, witness: Witness) -> None:
    pass


MIDDLEWARE = [
    pytest.param([], id="no middleware"),
    pytest.param([WRAPPING], id="a generator around it"),
    pytest.param([WRAPPING, WRAPPING], id="two generators around it"),
    pytest.param([GZIP], id="compressed"),
    pytest.param([WRAPPING, GZIP, WRAPPING], id="compressed between two generators"),
    pytest.param(["tests.test_handler.synchronous_middleware"], id="a synchronous middleware around it"),
]


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("middleware", MIDDLEWARE)
@pytest.mark.parametrize(
    ("trigger", "seen", "raised"),
    [
        pytest.param(it_ends, [], None, id="its end"),
        pytest.param(it_ends, ["KeyError"], KeyError, id="its error"),
        pytest.param(
            the_client_leaves_while_the_stream_waits, ["CancelledError"], None, id="client leaves while it waits"
        ),
        pytest.param(the_client_leaves_while_send_blocks, ["GeneratorExit"], None, id="client leaves during send"),
        pytest.param(send_raises, ["GeneratorExit"], OSError, id="send raises"),
    ],
)
async def test_r3_a_stream_is_cleaned_up_in_its_task_before_the_handler_returns(
    middleware: list[str], trigger: Trigger, seen: list[str], raised: type[Exception] | None
) -> None:
    witness = Witness(error=KeyError("the stream's") if raised is KeyError else None)
    before_send: Any = None
    if trigger is the_client_leaves_while_send_blocks:
        before_send = Blocked(witness.is_sending)
    elif trigger is send_raises:
        before_send = Broken(witness.is_sending, OSError("The connection is gone."))
    async with answering(
        witness.view,
        middleware=middleware,
        headers={"Accept-Encoding": "gzip"},
        before_send=before_send,
        journal=witness.journal,
    ) as exchange:
        async with asyncio.timeout(TIME_LIMIT):
            await trigger(exchange, witness)
        if raised is None:
            await exchange.finish()
        else:
            with pytest.raises(raised):
                await exchange.finish()
        assert witness.journal == [*seen, "cleaned up", "handler returned"]
        assert exchange.is_complete == (trigger is it_ends and raised is None)
    if middleware:
        await settle()  # for the generators that Django puts between those of middleware
    assert other_tasks() == set()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("middleware", MIDDLEWARE)
async def test_r3_a_stream_is_cleaned_up_when_the_server_cancels_the_handler(middleware: list[str]) -> None:
    witness = Witness()
    async with answering(witness.view, middleware=middleware, journal=witness.journal) as exchange:
        await witness.parked.wait()
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.finish()
        if IS_DJANGO_6_1:
            assert witness.journal == ["CancelledError", "cleaned up", "handler returned"]
        else:
            # Before 6.1 the handler forgets its tasks, and so leaves them to the loop, whose end cancels all.
            left = other_tasks()
            for task in left:
                task.cancel()
            await asyncio.wait(left)
            assert witness.journal == ["handler returned", "CancelledError", "cleaned up"]
    assert other_tasks() == set()


@pytest.mark.parametrize("middleware", MIDDLEWARE)
async def test_r3_a_client_that_leaves_before_the_first_byte_does_not_start_the_stream(middleware: list[str]) -> None:
    upstream = Resource()

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(upstream, request=request)

    blocked = Blocked(is_start)
    async with answering(view, middleware=middleware, before_send=blocked, journal=upstream.journal) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert upstream.journal == ["closed", "handler returned"]
    assert exchange.messages == []


async def test_r3_a_client_that_leaves_at_the_empty_first_chunk_does_not_start_the_stream() -> None:
    upstream = Resource()

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(upstream, request=request)

    blocked = Blocked(lambda message: not is_start(message))
    async with answering(view, before_send=blocked, journal=upstream.journal) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert upstream.journal == ["closed", "handler returned"]


async def test_r3_a_send_that_raises_at_the_headers_closes_the_stream() -> None:
    upstream = Resource()

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(upstream, request=request)

    async def attempt() -> None:
        exchange = await get(view, before_send=Broken(is_start, OSError("The connection is gone.")))
        assert isinstance(exchange.task.exception(), OSError)

    await attempt()
    await settle()
    gc.collect()  # Django drops the response, and on 6.1 within a reference cycle of its own
    assert upstream.journal == ["closed"]


@pytest.mark.usefixtures("no_garbage_collection")
async def test_r3_the_upstream_is_cleaned_up_even_if_a_middlewares_generator_fails_to_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    witness = Witness()
    blocked = Blocked(witness.is_sending)
    async with answering(
        witness.view,
        middleware=["tests.test_handler.failing_to_close"],
        before_send=blocked,
        journal=witness.journal,
    ) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert witness.journal == ["GeneratorExit", "cleaned up", "handler returned"]
    [record] = caplog.records
    assert "the middleware's" in str(record.exc_info)


async def test_r3_an_iterator_of_its_own_is_closed_as_its_iterable_would_be() -> None:
    iterator = Resource()

    class Feed:
        def __aiter__(self) -> Resource:
            return iterator

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(Feed(), request=request)

    exchange = await get(view)
    assert exchange.is_complete
    assert iterator.journal == ["started", "closed"]


async def test_r3_a_client_that_leaves_inside_a_chunk_that_is_cut_into_messages_ends_the_stream() -> None:
    journal: list[str] = []
    size = 3 * 2**16 + 1

    @sse_keepalive
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        try:
            yield f"data: {'x' * size}\n\n"
        finally:
            journal.append("cleaned up")

    exchange = await get(view)
    assert [len(chunk) for chunk in exchange.chunks] == [0, 2**16, 2**16, 2**16, len("data: \n\n") + 1]
    assert [event.data for event in decode(exchange.body).events] == ["x" * size]

    journal.clear()
    bodies: list[bytes] = []

    def is_second(message: Message) -> bool:
        bodies.extend([message["body"]] if has_body(message) else [])
        return len(bodies) == 2

    blocked = Blocked(is_second)
    async with answering(view, before_send=blocked, journal=journal) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert len(exchange.chunks) == 2
    assert journal == ["cleaned up", "handler returned"]


async def test_r3_a_synchronous_view_may_return_the_stream() -> None:
    witness = Witness()

    def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(witness.stream(), request=request)

    async with answering(view, journal=witness.journal) as exchange:
        await witness.parked.wait()
        exchange.leave()
        await exchange.finish()
    assert witness.journal == ["CancelledError", "cleaned up", "handler returned"]


async def test_r3_resources_of_the_response_are_released_behind_the_stream() -> None:
    witness = Witness()

    async def view(request: HttpRequest) -> EventStreamResponse:
        response = EventStreamResponse(witness.stream(), request=request)
        response._resource_closers.append(lambda: witness.journal.append("released"))
        return response

    async with answering(view, journal=witness.journal) as exchange:
        witness.go_on.set()
        await exchange.finish()
    assert witness.journal == ["cleaned up", "released", "handler returned"]


# Responses without a body.


@pytest.mark.parametrize("middleware", MIDDLEWARE)
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)], ids=["HEAD", "204", "304"])
async def test_r6_a_response_without_a_body_has_its_headers_and_does_not_start_the_stream(
    method: str, status: int, middleware: list[str]
) -> None:
    upstream = Resource()

    @sse_keepalive(first_interval=0)
    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(upstream, status=status)

    exchange = await get(view, method=method, middleware=middleware, headers={"Accept-Encoding": "gzip"})
    await exchange.finish()
    assert exchange.is_complete
    assert exchange.status == status
    assert exchange.headers["content-type"] == "text/event-stream"
    assert exchange.headers["cache-control"] == "no-cache, no-transform"
    assert exchange.body == b""
    assert upstream.journal == ["closed"]


async def test_r6_head_never_starts_the_generator_that_a_view_is() -> None:
    started: list[HttpRequest] = []

    @sse_keepalive
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        started.append(request)
        yield "data: x\n\n"

    exchange = await get(view, method="HEAD")
    assert exchange.status == 200
    assert exchange.body == b""
    assert started == []


async def test_r6_a_stream_that_a_middleware_drops_is_closed() -> None:
    upstream = Resource()

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(upstream, request=request, headers={"ETag": '"1"'})

    exchange = await get(view, middleware=[CONDITIONAL_GET], headers={"If-None-Match": '"1"'})
    assert exchange.status == 304
    gc.collect()
    assert upstream.journal == ["closed"]


async def test_r6_a_stream_whose_content_a_middleware_replaces_is_closed_unstarted() -> None:
    upstream = Resource()

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(upstream, request=request)

    exchange = await get(view, middleware=[REPLACING])
    assert exchange.is_complete
    assert exchange.body == b"something else"
    assert upstream.journal == ["closed"]


# What goes on the wire.


async def test_r1_the_headers_go_out_as_they_are_meant_to() -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        yield "data: x\n\n"

    exchange = await get(view, middleware=[COMMON, GZIP], headers={"Accept-Encoding": "identity"})
    exchange.headers.pop("vary", None)
    vary = {"vary": "Accept-Encoding"} if IS_DJANGO_6_1 else {}
    assert exchange.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
        **vary,
    }


@pytest.mark.parametrize("middleware", [[], [COMMON], [GZIP]])
@pytest.mark.parametrize("how", ["at once", "later"])
async def test_r1_no_content_length_reaches_the_wire(how: str, middleware: list[str]) -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        async def stream() -> AsyncIterator[str]:
            yield "data: x\n\n"

        if how == "at once":
            return StreamingHttpResponse(stream(), content_type="text/event-stream", headers={"Content-Length": "3"})
        response = EventStreamResponse(stream())
        response["content-length"] = "3"
        return response

    exchange = await get(view, middleware=middleware)
    assert "content-length" not in exchange.headers
    assert exchange.body == b"data: x\n\n"


@pytest.mark.parametrize("middleware", [[GZIP], [WRAPPING, GZIP], [GZIP, WRAPPING]])
async def test_r1_r2_under_gzip_every_event_can_be_read_as_soon_as_it_was_sent(middleware: list[str]) -> None:
    received = asyncio.Event()

    @sse_keepalive(interval=0.01)
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        for number in range(3):
            yield f"data: {number}\n\n"
            await received.wait()
            received.clear()

    decoded = b""
    read = 0
    gunzip = zlib.decompressobj(wbits=31)

    def has(exchange: Exchange, what: bytes) -> bool:
        nonlocal decoded, read
        for chunk in exchange.chunks[read:]:
            read += 1
            decoded += gunzip.decompress(chunk) if IS_DJANGO_6_1 else chunk
        return what in decoded

    async with answering(view, middleware=middleware, headers={"Accept-Encoding": "gzip"}) as exchange:
        for number in range(3):
            await exchange.until(lambda exchange, number=number: has(exchange, b"data: %d\n\n" % number))  # type: ignore[misc]
            await exchange.until(lambda exchange, number=number: has(exchange, b"%d\n\n%b" % (number, KEEP_ALIVE)))  # type: ignore[misc]
            received.set()
        await exchange.finish()
    assert exchange.headers.get("content-encoding") == ("gzip" if IS_DJANGO_6_1 else None)
    assert not has(exchange, b"\x1f\x8b")
    if IS_DJANGO_6_1:
        assert gunzip.eof
        assert gunzip.unused_data == b""
    assert decoded.replace(KEEP_ALIVE, b"") == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_r4_the_headers_are_followed_by_one_empty_chunk_before_the_stream_says_anything() -> None:
    witness = Witness()
    async with answering(witness.view) as exchange:
        await witness.parked.wait()
        assert exchange.chunks == [b"", b"data: 1\n\n"]


async def test_r4_a_silent_stream_sends_no_byte_of_body_before_its_interval() -> None:
    silent = asyncio.Event()

    @sse_keepalive(interval=3600)
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        silent.set()
        await asyncio.Event().wait()
        yield ""

    async with answering(view) as exchange:
        await silent.wait()
        await exchange.until(lambda exchange: len(exchange.messages) == 2)
        assert exchange.chunks == [b""]


# Errors.


@pytest.mark.parametrize("middleware", MIDDLEWARE)
@pytest.mark.parametrize("error", [KeyError("secret"), TypeError("secret")], ids=["KeyError", "TypeError"])
async def test_r5_an_error_is_logged_once_and_raised_on_to_the_handler(
    error: Exception, middleware: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness(error=error)
    witness.go_on.set()
    async with answering(witness.view, middleware=middleware) as exchange:
        with pytest.raises(type(error)) as raised:
            await exchange.finish()
    assert raised.value is error
    assert not exchange.is_complete
    assert exchange.body == b"data: 1\n\n"
    [record] = caplog.records
    assert record.name == "django.request"
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_r5_a_group_of_errors_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    error = ExceptionGroup("a task group's", [OSError(), KeyError()])
    witness = Witness(error=error)
    witness.go_on.set()
    async with answering(witness.view) as exchange:
        with pytest.raises(ExceptionGroup, match="a task group's"):  # from 6.1 on Django derives one of its own
            await exchange.finish()
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("middleware", MIDDLEWARE)
async def test_r5_on_error_has_the_last_word_inside_of_what_middleware_makes_of_the_stream(
    middleware: list[str],
) -> None:
    @sse_keepalive(on_error=lambda error: ServerSentEvent("sorry", event="failure"))
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise KeyError("secret")

    exchange = await get(view, middleware=middleware, headers={"Accept-Encoding": "gzip"})
    body = exchange.body
    if exchange.headers.get("content-encoding") == "gzip":
        body = zlib.decompressobj(wbits=31).decompress(body)
    assert body == b"data: 1\n\nevent: failure\ndata: sorry\n\n"


@pytest.mark.parametrize("error", [Http404("secret"), PermissionDenied("secret")])
async def test_r5_a_refusal_before_the_stream_is_returned_is_a_real_answer(error: Exception) -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> EventStreamResponse:
        raise error

    exchange = await get(view)
    await exchange.finish()
    assert exchange.status == (404 if isinstance(error, Http404) else 403)
    assert exchange.is_complete


@pytest.mark.usefixtures("no_garbage_collection")
async def test_r5_an_error_in_the_clean_up_after_the_client_has_left_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    witness = Witness(clean_up_error=KeyError("the clean-up's"))
    blocked = Blocked(witness.is_sending)
    async with answering(witness.view, before_send=blocked, journal=witness.journal) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert witness.journal == ["GeneratorExit", "cleaned up", "handler returned"]
    [record] = caplog.records
    assert "the clean-up's" in (record.exc_text or str(record.exc_info))


async def test_r5_an_error_in_the_clean_up_of_a_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    witness = Witness(clean_up_error=KeyError("the clean-up's"))
    async with answering(witness.view, journal=witness.journal) as exchange:
        await witness.parked.wait()
        exchange.leave()
        with pytest.raises(KeyError, match="the clean-up's"):
            await exchange.finish()
    [record] = caplog.records
    assert "the clean-up's" in str(record.exc_info)


@pytest.mark.parametrize("middleware", MIDDLEWARE)
async def test_r5_a_stream_that_yields_while_it_is_closed_is_logged_and_does_not_hang(
    middleware: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    started = False

    @sse_keepalive
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        nonlocal started
        started = True
        try:
            yield "data: 1\n\n"
        finally:
            yield "data: too late\n\n"

    blocked = Blocked(lambda message: started and has_body(message))
    async with answering(view, middleware=middleware, before_send=blocked) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)
    assert "ignored GeneratorExit" in str(record.exc_info[1])
    assert b"too late" not in exchange.body


@pytest.mark.parametrize("middleware", MIDDLEWARE)
async def test_r5_a_stream_that_cancels_itself_has_failed(
    middleware: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness(error=asyncio.CancelledError("by itself"))
    witness.go_on.set()
    async with answering(witness.view, middleware=middleware) as exchange:
        with pytest.raises(RuntimeError, match="cancelled itself"):
            await exchange.finish()
    assert not exchange.is_complete
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], asyncio.CancelledError)


# Middleware of these tests.


def synchronous_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Wrap every stream from a thread, as older middleware does."""

    def middleware(request: HttpRequest) -> Any:
        response = get_response(request)

        async def passed_on(content: Any = response.streaming_content) -> AsyncIterator[bytes]:
            async for chunk in content:
                yield chunk

        response.streaming_content = passed_on()
        return response

    return middleware


def _asynchronous(change: Callable[[Any], Any]) -> Any:
    def factory(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
        assert iscoroutinefunction(get_response)

        async def middleware(request: HttpRequest) -> HttpResponse:
            response = await get_response(request)
            response.streaming_content = change(response.streaming_content)
            return response  # type: ignore[no-any-return]

        markcoroutinefunction(middleware)
        return middleware

    factory.async_capable = True  # type: ignore[attr-defined]
    factory.sync_capable = False  # type: ignore[attr-defined]
    return factory


async def _with_something_else(content: object) -> AsyncIterator[bytes]:
    yield b"something else"


async def _with_a_failing_clean_up(content: Any) -> AsyncIterator[bytes]:
    try:
        async for chunk in content:
            yield chunk
    finally:
        raise LookupError("the middleware's")


replacing_middleware = _asynchronous(_with_something_else)
failing_to_close = _asynchronous(_with_a_failing_clean_up)
