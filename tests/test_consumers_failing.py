"""``EventStreamConsumer``: what goes wrong in its stream and its handlers, and who is told of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from channels.exceptions import StopConsumer
from channels.layers import get_channel_layer
from django.core.signals import got_request_exception
from django.http import HttpRequest
from pytest_django import Settings

from sse_keepalive import layers
from sse_keepalive.consumers import EventStreamConsumer
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.layers import MessagesLost
from tests.asgi import TIME_LIMIT, Blocked, Message, has_body, running_daphne
from tests.test_consumers import (
    BOTH,
    IN_MEMORY,
    Exchange,
    ask,
    asking,
    consumer_of,
    failing,
    one_event,
)
from tests.test_consumers_messages import BEGUN, Room, data_of, has, has_begun, send
from tests.test_switched_streams import operator


@pytest.fixture(autouse=True)
def channel_layer(settings: Settings) -> None:
    """Give each test a layer of its own."""
    settings.CHANNEL_LAYERS = IN_MEMORY


# H1, R5: errors.


@pytest.fixture
def signals() -> Iterator[list[HttpRequest | None]]:
    """Collect the requests that got_request_exception is sent with."""
    received: list[HttpRequest | None] = []

    def receive(sender: Any, request: HttpRequest | None, **kwargs: Any) -> None:
        received.append(request)

    got_request_exception.connect(receive)
    yield received
    got_request_exception.disconnect(receive)


def assert_logged_once(
    caplog: pytest.LogCaptureFixture, signals: list[HttpRequest | None], error: BaseException, frame: str
) -> None:
    [record] = [record for record in caplog.records if record.name == "django.request"]
    assert record.levelno == logging.ERROR
    assert "named" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert f"in {frame}\n" in str(record.exc_text)
    assert [record.request] == signals  # type: ignore[attr-defined]
    [request] = signals
    assert request is not None
    assert request.path == "/"


@pytest.mark.parametrize("on", ["any server", "Daphne"])
async def test_r5_an_error_is_logged_and_signalled_once_and_cuts_the_connection(
    on: str, caplog: pytest.LogCaptureFixture, signals: list[HttpRequest | None]
) -> None:
    error = KeyError("secret")

    async def of_a_stream() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise error

    with running_daphne() if on == "Daphne" else operator("other"):
        exchange = await ask(consumer_of(of_a_stream))
    assert_logged_once(caplog, signals, error, "of_a_stream")
    assert exchange.body == b"data: 1\n\n"
    assert exchange.task.exception() is (None if on == "Daphne" else error)
    assert exchange.is_complete == (on == "Daphne")


async def last_event_later(self: EventStreamConsumer, error: BaseException) -> ServerSentEvent:
    await asyncio.sleep(0)
    return ServerSentEvent(type(error).__name__, event="failed")


def last_event(self: EventStreamConsumer, error: BaseException) -> ServerSentEvent:
    return ServerSentEvent(type(error).__name__, event="failed")


@pytest.mark.parametrize("on_error", [last_event, last_event_later])
async def test_r5_on_error_may_tell_the_client(on_error: Any) -> None:
    exchange = await ask(consumer_of(failing, on_error=on_error))
    assert exchange.body == b"data: 1\n\nevent: failed\ndata: KeyError\n\n"
    assert isinstance(exchange.task.exception(), KeyError)
    assert not exchange.is_complete


async def test_r5_on_error_that_fails_is_logged_and_the_error_is_raised_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_error(self: EventStreamConsumer, error: BaseException) -> None:
        raise OSError("of on_error")

    exchange = await ask(consumer_of(failing, on_error=on_error))
    assert isinstance(exchange.task.exception(), KeyError)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("on", ["any server", "Daphne"])
async def test_r5_an_error_of_get_groups_ends_the_stream_before_it_has_begun(
    on: str, caplog: pytest.LogCaptureFixture, signals: list[HttpRequest | None]
) -> None:
    error = KeyError("secret")

    async def get_groups(self: EventStreamConsumer) -> list[str]:
        raise error

    with running_daphne() if on == "Daphne" else operator("other"):
        exchange = await ask(consumer_of(one_event, get_groups=get_groups, on_error=last_event))
    assert_logged_once(caplog, signals, error, "get_groups")
    assert exchange.body == b"event: failed\ndata: KeyError\n\n"
    assert exchange.is_complete == (on == "Daphne")


async def test_r5_on_daphne_an_error_of_handle_before_the_stream_is_raised() -> None:
    async def handle(self: EventStreamConsumer, body: bytes) -> None:
        raise KeyError("secret")

    with running_daphne():
        exchange = await ask(consumer_of(one_event, handle=handle))
    assert isinstance(exchange.task.exception(), KeyError)
    assert exchange.messages == []


# H1, R5: how handlers end the stream.


@pytest.mark.parametrize("on", ["any server", "Daphne"])
async def test_r5_an_error_of_a_handler_ends_the_stream_as_its_own_would(
    on: str, caplog: pytest.LogCaptureFixture, signals: list[HttpRequest | None]
) -> None:
    error = KeyError("secret")

    class Failing(Room):
        async def stream(self) -> AsyncIterator[Any]:
            try:
                async for chunk in super().stream():
                    yield chunk
            finally:
                await asyncio.sleep(0)
                journal.append("cleaned up")

        async def chat_message(self, message: Message) -> None:
            await asyncio.sleep(0)
            raise error

        async def on_error(self, error: BaseException) -> ServerSentEvent:
            return ServerSentEvent(type(error).__name__, event="failed")

        async def disconnect(self) -> None:
            journal.append("disconnect()")

    journal: list[str] = []
    with running_daphne() if on == "Daphne" else operator("other"):
        async with asking(Failing) as exchange:
            await exchange.until(has_begun)
            await send("")
            await send("")
            await asyncio.wait([exchange.task], timeout=TIME_LIMIT)
    assert_logged_once(caplog, signals, error, "chat_message")
    assert exchange.body == BEGUN + b"event: failed\ndata: KeyError\n\n"
    assert exchange.task.exception() is (None if on == "Daphne" else error)
    assert exchange.is_complete == (on == "Daphne")
    assert sorted(journal) == ["cleaned up", "disconnect()"]


@pytest.mark.parametrize(
    ("type", "what"),
    [("chat.unknown", "No handler for message type"), ("_private", "leading underscore")],
)
async def test_r5_a_message_without_a_handler_ends_the_stream_with_an_error(
    type: str,  # noqa: A002
    what: str,
    caplog: pytest.LogCaptureFixture,
    signals: list[HttpRequest | None],
) -> None:
    async with asking(Room) as exchange:
        await exchange.until(has_begun)
        await send("", type=type)
        with pytest.raises(ValueError, match=what) as raised:
            await exchange.finish()
    assert_logged_once(caplog, signals, raised.value, "dispatch")
    assert not exchange.is_complete


async def test_h1_stop_consumer_in_a_handler_ends_the_stream_in_order(caplog: pytest.LogCaptureFixture) -> None:
    class Stopping(Room):
        async def chat_message(self, message: Message) -> None:
            await super().chat_message(message)
            raise StopConsumer

    async with asking(Stopping) as exchange:
        await exchange.until(has_begun)
        await send("last")
        await send("too late")
        await exchange.finish()
    assert data_of(exchange) == ["begun", "last"]
    assert exchange.is_complete
    assert caplog.records == []


async def test_h1_stop_consumer_in_get_groups_ends_the_stream_before_it_has_begun() -> None:
    class Stopping(Room):
        async def get_groups(self) -> list[str]:
            raise StopConsumer

    exchange = await ask(Stopping)
    assert (exchange.status, exchange.body, exchange.is_complete) == (200, b"", True)
    assert exchange.task.exception() is None


@pytest.mark.parametrize("how", ["raises", "cancels its task"])
async def test_r5_a_handler_that_cancels_itself_does_not_leave_the_stream_deaf(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Cancelling(Room):
        async def chat_message(self, message: Message) -> None:
            if how == "raises":
                raise asyncio.CancelledError
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with asking(Cancelling) as exchange:
        await exchange.until(has_begun)
        await send("")
        done, _ = await asyncio.wait([exchange.task], timeout=TIME_LIMIT / 10)
        assert done, "It streams on, but hears no messages any more."
    assert not exchange.is_complete
    assert exchange.task.cancelled() or exchange.task.exception() is not None


async def test_h1_a_client_that_leaves_while_a_handler_runs_is_noticed_at_once() -> None:
    class Slow(Room):
        async def stream(self) -> AsyncIterator[Any]:
            try:
                async for chunk in super().stream():
                    yield chunk
            finally:
                await asyncio.sleep(0.001)
                journal.append("cleaned up")

        async def chat_message(self, message: Message) -> None:
            reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.001)
                journal.append("handler cleaned up")

        async def disconnect(self) -> None:
            journal.append("disconnect()")

    reached = asyncio.Event()
    journal: list[str] = []
    async with asking(Slow, journal=journal) as exchange, asyncio.timeout(TIME_LIMIT):
        await exchange.until(has_begun)
        await send("")
        await reached.wait()
        exchange.leave()
        await exchange.finish()
    assert sorted(journal[:2]) == ["cleaned up", "handler cleaned up"]
    assert journal[2:] == ["disconnect()", "handler returned"]


async def test_h1_a_handler_that_swallows_its_cancellation_does_not_keep_the_consumer() -> None:
    class Stubborn(Room):
        async def chat_message(self, message: Message) -> None:
            reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                journal.append("swallowed")

    reached = asyncio.Event()
    journal: list[str] = []
    exchange = Exchange(Stubborn.as_asgi(), journal=journal)
    await exchange.until(has_begun)
    await send("")
    async with asyncio.timeout(TIME_LIMIT):
        await reached.wait()
    exchange.leave()
    done, _ = await asyncio.wait([exchange.task], timeout=TIME_LIMIT / 10)
    for _ in range(2):
        exchange.task.cancel()
        await asyncio.sleep(0.01)
    assert done, "It waits for messages, though the client has left."
    assert journal == ["swallowed", "handler returned"]


async def test_h1_a_client_that_leaves_while_an_event_is_being_sent_is_noticed_at_once() -> None:
    blocked = Blocked(lambda message: has_body(message) and message["body"] != BEGUN)
    async with asking(Room, before_send=blocked) as exchange:
        await exchange.until(has_begun)
        for number in range(3):
            await send(f"{number}")
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert data_of(exchange) == ["begun"]


async def test_h1_the_stream_may_end_while_a_handler_runs() -> None:
    class Ending(Room):
        async def stream(self) -> AsyncIterator[Any]:
            yield BEGUN
            await reached.wait()

        async def chat_message(self, message: Message) -> None:
            reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                journal.append("handler cancelled")
                raise

    reached = asyncio.Event()
    journal: list[str] = []
    async with asking(Ending, journal=journal) as exchange:
        await exchange.until(has_begun)
        await send("")
        await exchange.finish()
    assert exchange.is_complete
    assert journal == ["handler cancelled", "handler returned"]


async def test_s4_a_stopped_endpoint_ends_it_in_order_though_a_handler_runs() -> None:
    class Slow(Room):
        async def chat_message(self, message: Message) -> None:
            reached.set()
            await asyncio.Event().wait()

    reached = asyncio.Event()
    async with asking(Slow) as exchange, asyncio.timeout(TIME_LIMIT):
        await exchange.until(has_begun)
        await send("")
        await reached.wait()
        with operator(is_open=False):
            await exchange.finish()
    assert exchange.is_complete


async def test_h1_an_error_of_a_handler_after_the_stream_is_no_news_to_a_client_that_has_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """But it is logged, as one in the clean-up of a stream is."""

    class Failing(Room):
        async def chat_message(self, message: Message) -> None:
            reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("in its clean-up")

    reached = asyncio.Event()
    async with asking(Failing) as exchange, asyncio.timeout(TIME_LIMIT):
        await exchange.until(has_begun)
        await send("")
        await reached.wait()
        exchange.leave()
        await asyncio.wait([exchange.task])
    assert [record.name for record in caplog.records] == ["django.request"]


@BOTH
async def test_r5_an_error_in_the_clean_up_after_the_client_has_left_is_logged(
    asking_either: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            parked.set()
            await asyncio.Event().wait()
        finally:
            raise KeyError("in the clean-up")

    parked = asyncio.Event()
    async with asking_either(stream, {}) as exchange, asyncio.timeout(TIME_LIMIT):
        await parked.wait()
        exchange.leave()
        await asyncio.wait([exchange.task])
        assert isinstance(exchange.task.exception(), KeyError)
    assert [record.name for record in caplog.records] == ["django.request"]


async def test_r5_a_group_that_has_no_proper_name_is_an_error_of_the_stream(
    caplog: pytest.LogCaptureFixture, signals: list[HttpRequest | None]
) -> None:
    exchange = await ask(consumer_of(one_event, groups=["a room"]))
    error = exchange.task.exception()
    assert isinstance(error, TypeError)
    assert_logged_once(caplog, signals, error, "group_add")
    assert exchange.body == b""


async def test_r5_a_layer_that_fails_ends_the_stream(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def receive(channel: str) -> Message:
        try:
            await failed.wait()
        finally:
            layer.channels.pop(channel, None)
        raise OSError("The layer has gone.")

    failed = asyncio.Event()
    layer = get_channel_layer()
    monkeypatch.setattr(layer, "receive", receive)
    async with asking(Room) as exchange:
        await exchange.until(has_begun)
        failed.set()
        with pytest.raises(MessagesLost, match="The layer has gone"):
            await exchange.finish()
    assert "django.request" in [record.name for record in caplog.records]


async def test_r5_a_stream_and_a_handler_may_fail_at_once(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Room):
        async def stream(self) -> AsyncIterator[Any]:
            yield BEGUN
            await reached.wait()
            raise KeyError("the stream's")

        async def chat_message(self, message: Message) -> None:
            reached.set()
            raise OSError("the handler's")

    reached = asyncio.Event()
    async with asking(Failing) as exchange:
        await exchange.until(has_begun)
        await send("")
        with pytest.raises((KeyError, OSError)) as raised:
            await exchange.finish()
    assert raised.value in [record.exc_info[1] for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("how", ["raise", "stop"])
async def test_c11_a_handler_that_sends_again_and_again_does_not_keep_the_loop(how: str) -> None:
    class Ticking(Room):
        async def stream(self) -> AsyncIterator[Any]:
            try:
                yield BEGUN
                await reached.wait()
                if how == "raise":
                    raise KeyError
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)

        async def chat_message(self, message: Message) -> None:
            streams.append(self._stream)
            while True:
                await self.send_event(ServerSentEvent("tick"))
                reached.set()

    streams: list[Any] = []
    reached = asyncio.Event()
    async with asking(Ticking) as exchange:
        await exchange.until(has_begun)
        await send("")
        await exchange.until(has("tick"))
        if how == "raise":
            with pytest.raises(KeyError):
                await exchange.finish()
        else:
            streams[0].end()  # as the switch in the admin does
            await exchange.finish()


async def test_r5_what_a_handler_raises_takes_effect_before_its_groups_are_left() -> None:
    async def hang(*_: str) -> None:
        await asyncio.Event().wait()

    class Failing(Room):
        async def chat_message(self, message: Message) -> None:
            layer: Any = get_channel_layer()
            layer.group_discard = hang
            raise StopConsumer

    exchange = Exchange(Failing.as_asgi())
    await exchange.until(has_begun)
    await send("")
    async with asyncio.timeout(layers.LEAVE_PATIENCE / 2):
        await exchange.until(lambda exchange: exchange.is_complete)
    exchange.task.cancel()
    await asyncio.wait([exchange.task])


async def test_h1_a_handler_that_sends_the_last_body_ends_the_stream() -> None:
    class Last(Room):
        async def chat_message(self, message: Message) -> None:
            await self.send_body(b"data: last\n\n")

    async with asking(Last) as exchange:
        await exchange.until(has_begun)
        await send("")
        await exchange.finish()
    assert exchange.is_complete
    assert exchange.body.endswith(b"data: last\n\n")
    assert [message.get("more_body") for message in exchange.messages].count(False) == 1
