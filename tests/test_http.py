"""``EventStreamResponse`` by itself: its headers, its chunks, its first chunk, its errors and its close."""

import asyncio
import copy
import datetime
import gc
import json
import logging
import sys
import threading
import uuid
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import django
import pytest
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.signals import got_request_exception
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from sse_keepalive.frames import COMMENT, EVENT, LINE, ServerSentEvent
from sse_keepalive.http import EventStreamResponse, json_event
from tests.asgi import TIME_LIMIT, Resource, other_tasks, running_daphne
from tests.whatwg import decode

KEEP_ALIVE = COMMENT.encode()


async def no_events() -> AsyncGenerator[str]:
    return
    yield


async def one_event() -> AsyncGenerator[str]:
    yield "data: x\n\n"


async def collected(response: StreamingHttpResponse) -> list[bytes]:
    """Return what a server would be given, all of it."""
    async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as chunks:  # type: ignore[type-var]
        return [chunk async for chunk in chunks]


# R1: headers.


def test_r1_a_response_has_the_headers_of_an_event_stream() -> None:
    headers = dict(EventStreamResponse(one_event()).items())
    assert headers == {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("content-type", "TEXT/EVENT-STREAM"),
        ("Cache-Control", "private"),
        ("cache-control", "no-store"),
        ("X-Accel-Buffering", "yes"),
        ("X-Another", "1"),
    ],
)
def test_r1_a_header_that_is_set_stays_as_it_is_and_the_others_are_still_filled_in(name: str, value: str) -> None:
    response = EventStreamResponse(one_event(), headers={name: value})
    assert response[name] == value
    names = [name.lower() for name, _ in response.items()]
    assert sorted({*names, "content-type", "cache-control", "x-accel-buffering"}) == sorted(names)
    assert response["X-Accel-Buffering"] == ("yes" if name == "X-Accel-Buffering" else "no")


def test_r1_the_headers_that_were_passed_in_are_not_changed() -> None:
    headers = {"Content-Length": "3"}
    EventStreamResponse(one_event(), headers=headers)
    assert headers == {"Content-Length": "3"}


def test_r1_a_content_type_may_be_given_as_to_any_response() -> None:
    response = EventStreamResponse(one_event(), content_type="text/event-stream; charset=utf-8", status=201)
    assert response["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.status_code == 201


def test_r1_there_is_no_connection_header_and_no_content_length() -> None:
    response = EventStreamResponse(one_event(), headers={"Content-Length": "3"})
    assert "Connection" not in response
    assert "Content-Length" not in response
    response["Content-Length"] = "3"
    assert "Content-Length" not in dict(response.items())


def test_r1_gzip_is_kept_off_before_django_6_1_without_a_trace_on_the_wire() -> None:
    response = EventStreamResponse(one_event())
    assert response.has_header("Content-Encoding") == (django.VERSION < (6, 1))
    assert "Content-Encoding" not in dict(response.items())
    response["Content-Encoding"] = "identity"  # as views do to keep GZipMiddleware off; it is no encoding of HTTP
    assert "Content-Encoding" not in dict(response.items())
    response["Content-Encoding"] = "br"
    assert dict(response.items())["Content-Encoding"] == "br"


@override_settings(DEFAULT_CHARSET="iso-8859-1")
async def test_r1_an_event_stream_is_utf_8_whatever_the_sites_charset() -> None:
    async def stream() -> AsyncIterator[str]:
        yield "data: ž\n\n"

    assert await collected(EventStreamResponse(stream())) == [b"", "data: ž\n\n".encode()]


def test_r1_it_is_a_streaming_response_of_django() -> None:
    response = EventStreamResponse(one_event())
    assert isinstance(response, StreamingHttpResponse)
    assert response.streaming
    assert response.is_async
    assert repr(response) == '<EventStreamResponse status_code=200, "text/event-stream">'


@pytest.mark.parametrize("content", [["data: x\n\n"], iter(["data: x\n\n"]), "data: x\n\n", None, one_event])
def test_r1_what_is_not_asynchronous_is_refused_by_its_type(content: Any) -> None:
    with pytest.raises(TypeError, match=rf"asynchronous iterable.*not {type(content).__name__}"):
        EventStreamResponse(content)


# R2: chunks.


@pytest.mark.parametrize(
    ("chunk", "wire"),
    [
        ("data: é\n\n", "data: é\n\n".encode()),
        (b"data: \xc3\xa9\n\n", "data: é\n\n".encode()),
        (memoryview(b"data: x\n\n"), b"data: x\n\n"),
        (ServerSentEvent("x", id=1), b"data: x\nid: 1\n\n"),
        (json_event({"a": 1}), b'data: {"a": 1}\n\n'),
        (mark_safe("data: x\n\n"), b"data: x\n\n"),
        (gettext_lazy("data: x\n\n"), b"data: x\n\n"),
        ("", b""),
    ],
    ids=["str", "bytes", "memoryview", "ServerSentEvent", "json_event", "SafeString", "lazy", "empty"],
)
@pytest.mark.parametrize("position", ["first", "later"])
async def test_r2_every_kind_of_chunk_is_sent_as_exactly_bytes(chunk: Any, wire: bytes, position: str) -> None:
    before = ["data: before\n\n"] if position == "later" else []

    async def stream() -> AsyncIterator[Any]:
        for event in before:
            yield event
        yield chunk
        yield "data: after\n\n"

    chunks = await collected(EventStreamResponse(stream()))
    assert chunks == [b"", *[event.encode() for event in before], wire, b"data: after\n\n"]
    assert {type(sent) for sent in chunks} == {bytes}


async def test_r2_a_buffer_that_is_filled_anew_does_not_move_the_place_of_a_frame() -> None:
    waiting = asyncio.Event()

    async def stream() -> AsyncIterator[memoryview]:
        buffer = bytearray(b"data: 1\n")
        yield memoryview(buffer)
        buffer[:] = b"\n\n\n\n\n\n\n\n"  # as by recv_into() while the stream waits
        waiting.set()
        await asyncio.Event().wait()

    async with aclosing(aiter(EventStreamResponse(stream(), interval=0.001, frame="EVENT"))) as chunks:
        assert await anext(chunks) == b""
        assert await anext(chunks) == b"data: 1\n"
        following = asyncio.ensure_future(anext(chunks))
        await waiting.wait()
        done, _ = await asyncio.wait([following], timeout=0.1)
        assert not done, "An event must not begin inside of another."
        following.cancel()
        await asyncio.wait([following])


async def test_r2_what_a_middleware_makes_of_the_stream_gets_no_frames_of_its_own() -> None:
    """Every chunk of the transformed stream comes from the transformation, the keep-alives as well."""

    async def stream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        while not keep_alive_seen.is_set():
            await asyncio.sleep(0.005)
        yield "data: 2\n\n"

    async def reversed_bytes(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        await asyncio.sleep(0.02)  # longer than the interval: no silence of the stream
        async for chunk in content:
            if chunk == KEEP_ALIVE:
                keep_alive_seen.set()
            yield chunk[::-1]

    keep_alive_seen = asyncio.Event()
    response = EventStreamResponse(stream(), interval=0.005)
    response.streaming_content = reversed_bytes(response.streaming_content)
    first, *chunks = await collected(response)
    assert first == b""
    assert keep_alive_seen.is_set()
    assert KEEP_ALIVE not in chunks
    assert [chunk[::-1] for chunk in chunks if chunk[::-1] != KEEP_ALIVE] == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_r2_the_content_is_made_of_bytes_for_a_middleware() -> None:
    async def stream() -> AsyncIterator[Any]:
        yield "data: é\n\n"
        yield memoryview(b"data: x\n\n")

    content: Any = EventStreamResponse(stream()).streaming_content
    assert [chunk async for chunk in content] == ["data: é\n\n".encode(), b"data: x\n\n"]


# R4: the first chunk, the first interval.


async def test_r4_the_stream_begins_with_one_empty_chunk_even_if_nothing_follows() -> None:
    assert await collected(EventStreamResponse(no_events())) == [b""]


async def test_r4_the_empty_chunk_does_not_wait_for_the_stream() -> None:
    started = False

    async def stream() -> AsyncIterator[str]:
        nonlocal started
        started = True
        yield "data: x\n\n"

    async with aclosing(aiter(EventStreamResponse(stream()))) as chunks:
        assert await anext(chunks) == b""
        assert not started


@pytest.mark.parametrize("how", ["argument", "setting"])
async def test_r4_the_first_interval_counts_until_something_was_sent(how: str) -> None:
    async def stream() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    first_interval = {"first_interval": 0.001} if how == "argument" else {}
    with override_settings(SSE_KEEPALIVE_FIRST_INTERVAL=3600 if how == "argument" else 0.001):
        response = EventStreamResponse(stream(), interval=3600, **first_interval)  # type: ignore[arg-type]
    async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as chunks:
        assert [await anext(chunks), await anext(chunks)] == [b"", KEEP_ALIVE]
        # From then on it is the interval.
        following = asyncio.ensure_future(anext(chunks))
        done, _ = await asyncio.wait([following], timeout=0.1)
        assert not done
        following.cancel()
        await asyncio.wait([following])


async def test_c2_keep_alives_come_before_the_first_chunk_of_a_slow_stream() -> None:
    enough = asyncio.Event()

    async def stream() -> AsyncIterator[str]:
        await enough.wait()
        yield "data: at last\n\n"

    received = []
    async with asyncio.timeout(TIME_LIMIT):
        async for chunk in EventStreamResponse(stream(), interval=0.005):
            received.append(chunk)
            if received.count(KEEP_ALIVE) == 3:
                enough.set()
    assert received[:4] == [b"", KEEP_ALIVE, KEEP_ALIVE, KEEP_ALIVE]
    assert received[-1] == b"data: at last\n\n"


@pytest.mark.parametrize(
    ("frame", "wire"),
    [("COMMENT", COMMENT), ("LINE", LINE), ("EVENT", EVENT), (": ping\n\n", ": ping\n\n"), (b": p\n\n", ": p\n\n")],
)
@pytest.mark.parametrize("how", ["argument", "setting"])
async def test_f7_a_frame_goes_by_name_or_text(how: str, frame: str | bytes, wire: str) -> None:
    async def stream() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    with override_settings(SSE_KEEPALIVE_FRAME="LINE" if how == "argument" else frame, SSE_KEEPALIVE_INTERVAL=0.001):
        response = EventStreamResponse(stream(), **({"frame": frame} if how == "argument" else {}))  # type: ignore[arg-type]
    async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as chunks:
        assert [await anext(chunks), await anext(chunks)] == [b"", wire.encode()]


# R5: errors.

Signals = list[tuple[Any, HttpRequest | None]]


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Collect what got_request_exception is sent with."""
    received: Signals = []

    def receive(sender: Any, request: HttpRequest | None, **kwargs: Any) -> None:
        received.append((sender, request))

    got_request_exception.connect(receive)
    yield received
    got_request_exception.disconnect(receive)


async def consumed(response: StreamingHttpResponse) -> tuple[list[bytes], BaseException | None]:
    """Return what a server would be given, and the exception that ended it."""
    chunks: list[bytes] = []
    try:
        async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as content:  # type: ignore[type-var]
            async for chunk in content:
                chunks += [chunk]
    except Exception as error:
        return chunks, error
    return chunks, None


def failing(error: BaseException, *chunks: str) -> AsyncGenerator[str]:
    async def stream() -> AsyncGenerator[str]:
        for chunk in chunks:
            yield chunk
        raise error

    return stream()


async def test_r5_an_error_is_logged_with_its_traceback_and_the_request_and_signalled_once(
    signals: Signals, caplog: pytest.LogCaptureFixture, rf: RequestFactory
) -> None:
    request = rf.get("/prices/")
    error = KeyError("secret")
    response = EventStreamResponse(failing(error, "data: 1\n\n"), request=request)
    chunks, raised = await consumed(response)
    assert raised is error
    assert chunks == [b"", b"data: 1\n\n"]
    [record] = caplog.records
    assert (record.name, record.levelname) == ("django.request", "ERROR")
    assert "/prices/" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert "raise error" in str(record.exc_text)
    assert record.request is request  # type: ignore[attr-defined]
    assert record.status_code == 500  # type: ignore[attr-defined]
    assert signals == [(None, request)]


async def test_r5_an_error_without_a_known_request_is_logged_all_the_same(
    signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    await consumed(EventStreamResponse(failing(KeyError("secret"))))
    [record] = caplog.records
    assert record.exc_info is not None
    assert signals == [(None, None)]


async def test_r5_the_log_calls_a_stream_by_its_endpoint(caplog: pytest.LogCaptureFixture, rf: RequestFactory) -> None:
    response = EventStreamResponse(failing(KeyError()), request=rf.get("/prices/"), endpoint="the-prices")
    await consumed(response)
    [record] = caplog.records
    assert "the-prices" in record.getMessage()


@pytest.mark.parametrize("error", [Http404("secret"), PermissionDenied("secret")])
async def test_r5_a_refusal_in_the_stream_is_logged_with_the_place_where_it_belongs(
    error: Exception, caplog: pytest.LogCaptureFixture, rf: RequestFactory
) -> None:
    chunks, raised = await consumed(EventStreamResponse(failing(error), request=rf.get("/")))
    assert raised is error
    assert b"secret" not in b"".join(chunks)
    [record] = caplog.records
    assert "status was already sent" in record.getMessage()
    assert "before the first yield" in record.getMessage()


async def test_r5_other_errors_are_logged_without_that_hint(caplog: pytest.LogCaptureFixture) -> None:
    await consumed(EventStreamResponse(failing(KeyError())))
    assert "first yield" not in caplog.text


def sorry(error: BaseException) -> ServerSentEvent | None:
    return ServerSentEvent("sorry", event="failure")


async def sorry_later(error: BaseException) -> ServerSentEvent | None:
    await asyncio.sleep(0)
    return sorry(error)


@pytest.mark.parametrize("on_error", [sorry, sorry_later])
@pytest.mark.parametrize("before", [[], ["data: 1\n\n"], ["data: 1\r\n\r\n"], ["data: 1\n", "\n"]])
async def test_r5_on_error_may_have_the_last_word(on_error: Any, before: list[str]) -> None:
    error = KeyError("secret")
    chunks, raised = await consumed(EventStreamResponse(failing(error, *before), on_error=on_error))
    assert raised is error
    assert chunks == [b"", *[chunk.encode() for chunk in before], b"event: failure\ndata: sorry\n\n"]


@pytest.mark.parametrize("before", ["data: 1", "data: 1\n", "data: 1\r", "data: 1\r\n", "data: 1\n\ndata: 2"])
async def test_r5_on_error_is_not_heard_inside_an_event(before: str) -> None:
    chunks, raised = await consumed(EventStreamResponse(failing(KeyError(), before), on_error=sorry))
    assert isinstance(raised, KeyError)
    assert chunks == [b"", before.encode()]


@pytest.mark.parametrize("before", ["data: 1", "data: 1\n\n"])
async def test_r5_on_error_is_told_of_the_error_wherever_the_stream_broke_off(before: str) -> None:
    told: list[BaseException] = []
    error = KeyError()
    await consumed(EventStreamResponse(failing(error, before), on_error=told.append))
    assert told == [error]


async def test_r5_on_error_may_say_nothing() -> None:
    chunks, raised = await consumed(EventStreamResponse(failing(KeyError(), "data: 1\n\n"), on_error=lambda _: None))
    assert isinstance(raised, KeyError)
    assert chunks == [b"", b"data: 1\n\n"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_r5_an_error_in_on_error_is_logged_and_the_streams_own_is_raised(
    is_async: bool, signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(error: BaseException) -> ServerSentEvent | None:
        raise LookupError("on_error's")

    async def broken_later(error: BaseException) -> ServerSentEvent | None:
        raise LookupError("on_error's")

    error = KeyError("the stream's")
    response = EventStreamResponse(failing(error), on_error=broken_later if is_async else broken)
    chunks, raised = await consumed(response)
    assert raised is error
    assert chunks == [b""]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        '"the stream\'s"',
        "on_error's",
    ]
    assert len(signals) == 1


async def test_r5_an_error_in_a_receiver_of_the_signal_does_not_take_the_place_of_the_streams() -> None:
    def broken(**kwargs: Any) -> None:
        raise LookupError("the receiver's")

    error = KeyError("the stream's")
    got_request_exception.connect(broken)
    try:
        chunks, raised = await consumed(EventStreamResponse(failing(error), on_error=sorry))
    finally:
        got_request_exception.disconnect(broken)
    assert raised is error
    assert chunks == [b"", b"event: failure\ndata: sorry\n\n"]


async def test_r5_the_text_of_an_error_never_reaches_the_client() -> None:
    error = ValueError("secret")
    chunks, _ = await consumed(EventStreamResponse(failing(error, "data: 1\n\n"), on_error=lambda error: None))
    assert b"secret" not in b"".join(chunks)


@pytest.mark.parametrize("error", [KeyError("secret"), asyncio.CancelledError()], ids=["error", "cancels itself"])
async def test_r5_under_a_running_daphne_a_stream_just_ends(
    error: BaseException, signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    with running_daphne():
        chunks, raised = await consumed(EventStreamResponse(failing(error, "data: 1\n\n"), on_error=sorry))
    assert raised is None
    assert chunks == [b"", b"data: 1\n\n", b"event: failure\ndata: sorry\n\n"]
    assert len(caplog.records) == 1
    assert len(signals) == 1


async def test_r2_on_error_is_not_heard_outside_of_what_a_middleware_has_made_of_the_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There an event would be raw text behind compressed bytes."""

    async def compressed(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for _ in content:
            yield b"compressed"
            raise LookupError("the middleware's")

    response = EventStreamResponse(one_event(), on_error=sorry)
    response.streaming_content = compressed(response.streaming_content)
    chunks, raised = await consumed(response)
    assert isinstance(raised, LookupError)
    assert chunks == [b"", b"compressed"]
    assert "the middleware's" in caplog.text


@pytest.mark.parametrize("is_receiver", [False, True], ids=["a middleware's close", "a receiver"])
async def test_r5_under_a_running_daphne_nothing_else_around_the_stream_is_raised_either(is_receiver: bool) -> None:
    def broken(**kwargs: Any) -> None:
        raise LookupError("the receiver's")

    async def broken_at_its_end(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in content:
                yield chunk
        finally:
            raise LookupError("the middleware's")

    response = EventStreamResponse(failing(KeyError(), "data: 1\n\n"))
    if is_receiver:
        got_request_exception.connect(broken)
    else:
        response.streaming_content = broken_at_its_end(response.streaming_content)
    try:
        with running_daphne():
            async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as chunks:
                assert [await anext(chunks), await anext(chunks)] == [b"", b"data: 1\n\n"]
                if is_receiver:
                    assert [chunk async for chunk in chunks] == []
    finally:
        got_request_exception.disconnect(broken)


async def test_r5_daphne_that_is_only_imported_is_not_the_server() -> None:
    error = KeyError()
    with running_daphne():
        sys.modules["twisted.internet.reactor"].running = False  # type: ignore[attr-defined]
        _, raised = await consumed(EventStreamResponse(failing(error)))
    assert raised is error


async def test_r5_a_stream_that_is_cancelled_from_outside_has_not_failed(
    signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.Event()

    async def stream() -> AsyncIterator[str]:
        waiting.set()
        await asyncio.Event().wait()
        yield ""

    task = asyncio.create_task(collected(EventStreamResponse(stream())))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caplog.records == []
    assert signals == []


# R3, R6: closing a stream that was not started.


@pytest.mark.parametrize("where", ["this thread", "another thread"])
@pytest.mark.parametrize("turns", [1, 2])
def test_r3_close_closes_a_stream_that_was_never_started_once(where: str, turns: int) -> None:
    upstream = Resource()
    response = EventStreamResponse(upstream)

    def close() -> None:
        for _ in range(turns):
            response.close()

    if where == "this thread":
        close()
    else:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join(TIME_LIMIT)
    assert upstream.journal == ["closed"]
    assert response.closed


async def test_r3_close_leaves_a_generator_that_was_never_started_finished() -> None:
    upstream = one_event()
    EventStreamResponse(upstream).close()
    assert [chunk async for chunk in upstream] == []


async def test_r3_close_leaves_a_stream_that_was_started_to_its_task() -> None:
    journal: list[str] = []

    async def stream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            yield "data: 2\n\n"
        finally:
            await asyncio.sleep(0)
            journal.append("cleaned up")

    response = EventStreamResponse(stream())
    async with aclosing(aiter(response)) as chunks:
        assert [await anext(chunks), await anext(chunks)] == [b"", b"data: 1\n\n"]
        response.close()
        assert journal == []
        assert [chunk async for chunk in chunks] == [b"data: 2\n\n"]
    assert journal == ["cleaned up"]


def test_r3_what_is_wrong_with_closing_an_unstarted_stream_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    response = EventStreamResponse(Resource(error=KeyError("the close's")))
    response.close()
    assert response.closed
    assert "the close's" in caplog.text


class Patient(Resource):
    """One whose close has to wait, in its clean-up as well."""

    async def aclose(self) -> None:
        try:
            self.journal.append("closing")
            await asyncio.sleep(0)
            self.journal.append("closed")
        finally:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "upstream", [Patient(), Resource(error=asyncio.CancelledError())], ids=["awaits in its finally", "cancels itself"]
)
def test_r3_close_goes_on_whatever_the_upstreams_close_does(upstream: Resource) -> None:
    released: list[str] = []
    response = EventStreamResponse(upstream)
    response._resource_closers.append(lambda: released.append("released"))
    response.close()
    assert response.closed
    assert released == ["released"]


def test_r3_a_close_method_of_the_upstream_is_called_as_by_any_streaming_response() -> None:
    class Closeable(Resource):
        def close(self) -> None:
            self.journal.append("close()")

    upstream = Closeable()
    EventStreamResponse(upstream).close()
    assert upstream.journal.count("close()") == 1


def test_r3_a_response_that_is_dropped_unused_closes_its_upstream() -> None:
    upstream = Resource()
    response = EventStreamResponse(upstream)
    del response
    gc.collect()
    assert upstream.journal == ["closed"]


async def test_c12_a_response_that_was_streamed_leaves_no_reference_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        upstream = one_event()
        reference = weakref.ref(upstream)
        response = EventStreamResponse(upstream)
        await collected(response)
        response.close()
        del upstream, response
        assert reference() is None
        assert other_tasks() == set()
    finally:
        gc.enable()


class NoticedError(Exception):
    """An error that a weak reference can refer to."""


async def test_c12_an_error_leaves_no_reference_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("django.request"), "disabled", True)  # pytest keeps what is logged

    async def stream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise NoticedError

    async def raised_and_dropped() -> list[weakref.ref[Any]]:
        upstream = stream()
        references: list[weakref.ref[Any]] = [weakref.ref(upstream)]
        response = EventStreamResponse(upstream)
        try:
            await collected(response)
        except NoticedError as error:
            references.append(weakref.ref(error))
            response.close()
        return references

    gc.collect()
    gc.disable()
    try:
        references = await raised_and_dropped()
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


# Where it cannot work yet.


def test_a_response_that_would_be_collected_whole_under_wsgi_says_so() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"WSGI.*ASGI server"):
        iter(EventStreamResponse(one_event()))


# F5: JSON.


def test_f5_json_is_encoded_as_by_json_response() -> None:
    identity = uuid.UUID(int=1)
    data = {"when": datetime.date(2025, 1, 2), "price": Decimal("1.10"), "id": identity, "text": "é\u2028\n"}
    event = json_event(data, event="price", id=7)
    assert isinstance(event, ServerSentEvent)
    [decoded] = decode(event.encode()).events
    assert (decoded.type, decoded.last_event_id) == ("price", "7")
    assert json.loads(decoded.data) == {
        "when": "2025-01-02",
        "price": "1.10",
        "id": str(identity),
        "text": "é\u2028\n",
    }


@pytest.mark.parametrize("data", [None, 0, "", [], {}])
def test_f5_anything_false_is_json_as_well(data: Any) -> None:
    [decoded] = decode(json_event(data).encode()).events
    assert json.loads(decoded.data) == data


def test_f5_what_json_cannot_say_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        json_event(object())


async def test_r5_a_failure_that_is_no_exception_is_logged_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    group = BaseExceptionGroup("failed", [asyncio.CancelledError(), KeyError()])

    async def stream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise group

    with pytest.raises(BaseExceptionGroup) as raised:
        await collected(EventStreamResponse(stream()))
    assert raised.value is group
    assert len(caplog.records) == 1
    with running_daphne():
        assert await collected(EventStreamResponse(stream())) == [b"", b"data: 1\n\n"]


async def test_r5_an_on_error_that_cancels_itself_does_not_take_the_place_of_the_error() -> None:
    async def stream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise ValueError("own")

    async def on_error(error: BaseException) -> None:
        raise asyncio.CancelledError

    with pytest.raises(ValueError, match="own"):
        await collected(EventStreamResponse(stream(), on_error=on_error))


async def test_a_copy_of_a_response_that_is_dropped_leaves_the_stream_to_the_other() -> None:
    response = EventStreamResponse(one_event())
    dropped = copy.copy(response)
    del dropped
    gc.collect()
    assert await collected(response) == [b"", b"data: x\n\n"]


@pytest.mark.parametrize("option", [{"on_error": 5}, {"endpoint": 5}, {"interval": "15"}, {"frame": 5}])
def test_an_option_of_a_wrong_type_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        EventStreamResponse(one_event(), **option)
