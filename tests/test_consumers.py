"""``EventStreamConsumer``: what it sends, how it ends, and that it does so as a decorated view does."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from channels.layers import InMemoryChannelLayer, get_channel_layer
from channels.testing import HttpCommunicator
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from pytest_django import Settings

from sse_keepalive import consumers, relays
from sse_keepalive.consumers import EventStreamConsumer
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import COMMENT, EVENT, LINE, ServerSentEvent
from sse_keepalive.http import EventStreamResponse
from sse_keepalive.streams import _loops
from sse_keepalive.testing import override_switch
from tests import asgi
from tests.asgi import TIME_LIMIT, Blocked, Broken, Message, Resource, is_start, other_tasks, running_daphne
from tests.relaying import relayed
from tests.test_handler import (
    Witness,
    it_ends,
    the_client_leaves_while_send_blocks,
    the_client_leaves_while_the_stream_waits,
)

Stream = Callable[[], AsyncIterator[Any]]

KEEP_ALIVE = COMMENT.encode()
BROWSER = {"Accept": "text/event-stream"}
IN_MEMORY = {"default": {"BACKEND": "tests.test_consumers.Layer"}}


class Layer(InMemoryChannelLayer):  # type: ignore[misc]  # Channels has no types
    """One that knows a channel from when it is made, as layers on Redis do, and so until it is given up."""

    async def new_channel(self, prefix: str = "specific.") -> str:
        channel: str = await super().new_channel(prefix)
        self.channels[channel] = asyncio.Queue(maxsize=self.get_capacity(channel))
        return channel


@pytest.fixture(autouse=True)
def channel_layer(settings: Settings) -> None:
    """Give each test a layer of its own."""
    settings.CHANNEL_LAYERS = IN_MEMORY


class Exchange(asgi.Exchange):
    """
    One request to a consumer.

    :param parts: the body of the request, message by message.
    :param is_whole: whether the last of these is the last; else nothing comes until the client leaves.
    :param scope: what is different in the scope.
    """

    def __init__(
        self,
        application: Any,
        *,
        parts: Iterable[bytes] = (b"",),
        is_whole: bool = True,
        scope: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(application, **options)
        self._scope |= scope or {}
        self._parts = list(parts)
        self._is_whole = is_whole

    async def _receive(self) -> Message:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._is_whole}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        await super()._send(message)
        if self.is_complete:
            self.leave()  # as servers say behind the last message
            await asyncio.sleep(0)
            await asyncio.sleep(0)


def left_behind() -> dict[str, object]:
    """Return whatever of the tasks, the channel layer and the streams is still there."""
    layer = get_channel_layer()
    there = {
        "tasks": other_tasks(),
        "channels": layer.channels if layer is not None else {},
        "groups": layer.groups if layer is not None else {},
        "relays": relayed(asyncio.get_running_loop()),
        "streams": _loops.get(asyncio.get_running_loop(), ()),
    }
    return {name: what for name, what in there.items() if what}


@asynccontextmanager
async def asking(consumer: Any, **options: Any) -> AsyncIterator[Exchange]:
    """Make a request to a consumer, or an application, and see to it that nothing of it is left in the end."""
    application = consumer.as_asgi() if hasattr(consumer, "as_asgi") else consumer
    exchange = Exchange(application, **options)
    try:
        yield exchange
    finally:
        await exchange.abandon()
        assert exchange.task.done(), "The consumer hangs."
    assert left_behind() == {}


async def ask(consumer: Any, **options: Any) -> Exchange:
    """Make a request and return it when it is answered, whatever the consumer has raised."""
    async with asking(consumer, **options) as exchange:
        with suppress(Exception):
            await exchange.finish()
    return exchange


def consumer_of(stream: Stream, **attributes: Any) -> type[EventStreamConsumer]:
    """Return a consumer with that stream and, unless they say something else, a name and no keep-alives."""
    namespace = {"interval": None, "endpoint": "named", **attributes, "stream": lambda self: stream()}
    return type("OfATest", (EventStreamConsumer,), namespace)


def view_of(stream: Stream, **options: Any) -> Callable[[HttpRequest], Awaitable[Any]]:
    """Return the view that is to behave as that consumer."""

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(stream(), request=request, **{"interval": None, "endpoint": "named", **options})

    decorated: Callable[[HttpRequest], Awaitable[Any]] = sse_keepalive(endpoint="named")(view)
    return decorated


def asking_consumer(
    stream: Stream, options: Mapping[str, Any], **of_exchange: Any
) -> AbstractAsyncContextManager[asgi.Exchange]:
    return asking(consumer_of(stream, **options), **of_exchange)


def asking_view(
    stream: Stream, options: Mapping[str, Any], **of_exchange: Any
) -> AbstractAsyncContextManager[asgi.Exchange]:
    return asgi.answering(view_of(stream, **options), **of_exchange)


#: A view as it is, and the consumer that is to do the same.
BOTH = pytest.mark.parametrize("asking_either", [asking_view, asking_consumer], ids=["view", "consumer"])


def silent() -> AsyncIterator[str]:
    async def stream() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    return stream()


async def no_events() -> AsyncGenerator[str]:
    return
    yield


async def one_event() -> AsyncIterator[str]:
    yield "data: 1\n\n"


# H1: what is sent.


async def test_h1_the_communicator_of_channels_gets_a_whole_response() -> None:
    class News(EventStreamConsumer):
        async def stream(self) -> AsyncIterator[Any]:
            yield "data: é\n\n"
            yield b"data: 2\n\n"
            yield ServerSentEvent("3", id=3)

    communicator = HttpCommunicator(News.as_asgi(), "GET", "/news/?page=1")
    response = await communicator.get_response(timeout=TIME_LIMIT)
    assert response["status"] == 200
    assert response["body"] == "data: é\n\ndata: 2\n\ndata: 3\nid: 3\n\n".encode()
    expected = EventStreamResponse(no_events()).items()
    assert response["headers"] == [(name.lower().encode(), value.encode()) for name, value in expected]
    await communicator.wait(TIME_LIMIT)
    assert left_behind() == {}


async def every_kind_of_chunk() -> AsyncIterator[Any]:
    yield "data: é\n\n"
    yield b"data: 2\n"
    yield ""
    yield memoryview(b"data: more\n\n")
    yield ServerSentEvent("3", event="news")


async def failing() -> AsyncIterator[str]:
    yield "data: 1\n\n"
    raise KeyError("the stream's")


async def forbidden() -> AsyncIterator[str]:
    for error in [PermissionDenied()]:
        raise error
    yield ""


async def of_a_wrong_type() -> AsyncIterator[Any]:
    yield "data: 1\n\n"
    yield ["data: 2\n\n"]


async def cancelling_itself() -> AsyncIterator[str]:
    yield "data: 1\n\n"
    raise asyncio.CancelledError


def normal(message: Message) -> Message:
    """Return what a message says, without what may be left out and with headers in one case and order."""
    if is_start(message):
        return {
            **message,
            "headers": sorted((bytes(name).lower(), bytes(value)) for name, value in message["headers"]),
        }
    return {"type": message["type"], "body": message.get("body", b""), "more_body": message.get("more_body", False)}


Answer = tuple[list[Message], list[object], str]


@pytest.mark.parametrize(
    "stream", [every_kind_of_chunk, no_events, one_event, failing, forbidden, of_a_wrong_type, cancelling_itself]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"headers": {"X-Own": "é", "Cache-Control": "no-store", "Content-Length": "3"}},
        {"headers": {"content-type": "text/event-stream; charset=utf-8", "X-Bytes": b"\xe9"}},
    ],
    ids=["", "headers", "other headers"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("on", ["any server", "Daphne"])
async def test_h1_it_sends_logs_and_raises_what_a_view_does(
    stream: Stream, options: dict[str, Any], method: str, on: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(asking_either: Any) -> Answer:
        caplog.clear()
        async with asking_either(stream, options, method=method) as exchange:
            await asyncio.wait([exchange.task], timeout=TIME_LIMIT)
        error = exchange.task.exception()
        logged = [
            (record.name, record.levelname, record.getMessage(), repr(record.exc_info and record.exc_info[1]), request)
            for record in caplog.records
            for request in [(record.request.method, record.request.path)]  # type: ignore[attr-defined]
        ]
        return [normal(message) for message in exchange.messages], list(logged), repr(error)

    @contextmanager
    def any_server() -> Iterator[None]:
        yield

    with any_server() if on == "any server" else running_daphne():
        expected = await answer(asking_view)
        assert await answer(asking_consumer) == expected
    assert expected[0]


@BOTH
async def test_h1_the_headers_go_out_before_the_first_chunk_without_a_byte_of_body(asking_either: Any) -> None:
    async with asking_either(silent, {}) as exchange:
        await exchange.until(lambda exchange: len(exchange.messages) == 2)
        assert [normal(message) for message in exchange.messages[1:]] == [
            {"type": "http.response.body", "body": b"", "more_body": True}
        ]


@BOTH
@pytest.mark.parametrize(("frame", "wire"), [("COMMENT", COMMENT), ("LINE", LINE), ("EVENT", EVENT), (": p\n\n",) * 2])
async def test_h1_keep_alives_are_sent_while_it_is_silent(asking_either: Any, frame: str, wire: str) -> None:
    async def stream() -> AsyncIterator[str]:
        await enough.wait()
        yield "data: 1\n\n"

    enough = asyncio.Event()
    async with asking_either(stream, {"interval": 0.005, "frame": frame}) as exchange:
        await exchange.until(lambda exchange: len(exchange.chunks) > 3)
        enough.set()
        await exchange.finish()
    assert exchange.chunks[:4] == [b"", *[wire.encode()] * 3]
    assert exchange.chunks[-1] == b"data: 1\n\n"
    assert exchange.is_complete


async def test_h1_by_default_it_is_open_until_the_client_leaves() -> None:
    async with asking(EventStreamConsumer.as_asgi(interval=0.005)) as exchange:
        await exchange.until(lambda exchange: exchange.chunks.count(KEEP_ALIVE) > 3)
        exchange.leave()
        await exchange.finish()
    assert not exchange.is_complete


@BOTH
async def test_h1_head_gets_the_headers_and_does_not_start_the_stream(asking_either: Any) -> None:
    async def stream() -> AsyncIterator[str]:
        started.append(True)
        yield ""

    started: list[bool] = []
    async with asking_either(stream, {}, method="HEAD") as exchange:
        await exchange.finish()
    assert (exchange.status, exchange.body, exchange.is_complete) == (200, b"", True)
    assert started == []


# H1: how it ends.


class Listener:
    """A consumer around a witness, which tells of its disconnect() as well."""

    def __init__(self, **attributes: Any) -> None:
        self.witness = Witness()
        self.journal = self.witness.journal

        async def disconnect(consumer: EventStreamConsumer) -> None:
            self.journal.append("disconnect()")
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            self.journal.append("disconnected")

        self.consumer = consumer_of(self.witness.stream, disconnect=disconnect, **attributes)


ENDED = ["disconnect()", "disconnected", "handler returned"]


async def the_server_cancels(exchange: Exchange, witness: Witness) -> None:
    await witness.parked.wait()
    exchange.task.cancel("the server's")


async def send_raises(exchange: Exchange, witness: Witness) -> None:
    pass


@pytest.mark.parametrize(
    ("trigger", "seen", "raised"),
    [
        (it_ends, [], None),
        (it_ends, ["KeyError"], KeyError),
        (the_client_leaves_while_the_stream_waits, ["CancelledError"], None),
        (the_client_leaves_while_send_blocks, ["GeneratorExit"], None),
        (the_server_cancels, ["CancelledError"], asyncio.CancelledError),
        (send_raises, ["GeneratorExit"], OSError),
    ],
)
@pytest.mark.parametrize("attributes", [{}, {"groups": ("room",)}, {"interval": 0.005}], ids=["", "groups", "frames"])
async def test_h1_the_stream_is_cleaned_up_in_its_task_and_disconnect_is_called_once(
    trigger: Any, seen: list[str], raised: Any, attributes: dict[str, Any]
) -> None:
    """The witness looks at its task and resets a ContextVar in its clean-up, which awaits."""
    listener = Listener(**attributes)
    witness = listener.witness
    witness._error = KeyError("the stream's") if raised is KeyError else None
    before_send: Any = None
    if trigger is the_client_leaves_while_send_blocks:
        before_send = Blocked(witness.is_sending)
    elif trigger is send_raises:
        before_send = Broken(witness.is_sending, OSError("The connection is gone."))
    async with asking(listener.consumer, before_send=before_send, journal=listener.journal) as exchange:
        async with asyncio.timeout(TIME_LIMIT):
            await trigger(exchange, witness)
        if raised is None:
            await exchange.finish()
        else:
            with pytest.raises(raised):
                await exchange.finish()
    assert listener.journal == [*seen, "cleaned up", *ENDED]
    assert exchange.is_complete == (trigger is it_ends and raised is None)


async def test_h1_a_second_cancellation_goes_into_the_clean_up_and_both_are_raised_on() -> None:
    async def stream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            parked.set()
            await asyncio.Event().wait()
        finally:
            cleaning_up.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                journal.append("cancelled in its clean-up")
                raise

    parked, cleaning_up = asyncio.Event(), asyncio.Event()
    journal: list[str] = []
    exchange = Exchange(consumer_of(stream, groups=("room",)).as_asgi(), journal=journal)
    async with asyncio.timeout(TIME_LIMIT):
        await parked.wait()
        exchange.task.cancel()
        await cleaning_up.wait()
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.finish()
        while left_behind():
            await asyncio.sleep(0.001)
    assert journal[0] == "cancelled in its clean-up"
    assert exchange.task.cancelled()


async def test_h1_a_cancellation_by_the_server_is_raised_on_though_the_client_has_left_before() -> None:
    async def stream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            parked.set()
            await asyncio.Event().wait()
        finally:
            cleaning_up.set()
            await asyncio.Event().wait()

    parked, cleaning_up = asyncio.Event(), asyncio.Event()
    async with asking(consumer_of(stream)) as exchange, asyncio.timeout(TIME_LIMIT):
        await parked.wait()
        exchange.leave()
        await cleaning_up.wait()
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.finish()


@BOTH
async def test_h1_a_stream_that_swallows_the_cancellation_may_end_by_itself(asking_either: Any) -> None:
    async def stream() -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            parked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                journal.append("swallowed")
            yield "data: 2\n\n"
        finally:
            await asyncio.sleep(0)
            journal.append("cleaned up")

    parked = asyncio.Event()
    journal: list[str] = []
    async with asking_either(stream, {}, journal=journal) as exchange:
        async with asyncio.timeout(TIME_LIMIT):
            await parked.wait()
        exchange.leave()
        await exchange.finish()
    assert journal == ["swallowed", "cleaned up", "handler returned"]


@BOTH
async def test_h1_the_message_of_a_cancellation_and_its_count_are_those_of_a_task(asking_either: Any) -> None:
    async def stream() -> AsyncIterator[str]:
        parked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            seen.append(task.cancelling())
            raise
        yield ""

    parked = asyncio.Event()
    seen: list[int] = []
    async with asking_either(stream, {}) as exchange:
        async with asyncio.timeout(TIME_LIMIT):
            await parked.wait()
        exchange.leave()
        await exchange.finish()
    assert seen == [1]


@pytest.mark.parametrize("parts", [(), (b"a",), (b"a", b"b")])
async def test_h1_a_client_that_leaves_before_its_request_is_complete_gets_nothing(parts: tuple[bytes, ...]) -> None:
    listener = Listener(groups=("room",))
    async with asking(listener.consumer, parts=parts, is_whole=False, journal=listener.journal) as exchange:
        for _ in range(5):
            await asyncio.sleep(0)
        exchange.leave()
        await exchange.finish()
    assert exchange.messages == []
    assert listener.journal == ENDED


async def test_h1_the_body_of_the_request_comes_in_parts() -> None:
    class Echo(EventStreamConsumer):
        async def handle(self, body: bytes) -> None:
            bodies.append(body)
            await super().handle(body)

        async def stream(self) -> AsyncIterator[Any]:
            yield ServerSentEvent(self.request.body.decode())
            yield ServerSentEvent(self.request.POST["b"])

    bodies: list[bytes] = []
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": "7"}
    exchange = await ask(Echo, method="POST", parts=[b"a=1&", b"b", b"=2"], headers=headers)
    assert bodies == [b"a=1&b=2"]
    assert exchange.body == b"data: a=1&b=2\n\ndata: 2\n\n"


@pytest.mark.parametrize("where", ["get_groups", "handle", "group_add"])
async def test_h1_a_client_that_leaves_while_anything_else_hangs_is_noticed_at_once(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*args: Any) -> Any:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            journal.append("cancelled")
            raise

    reached = asyncio.Event()
    listener = Listener(groups=("room",))
    journal = listener.journal
    monkeypatch.setattr(relays, "PATIENCE", 0.05)  # what the layer was asked for is given up then, not cancelled
    monkeypatch.setattr(get_channel_layer() if where == "group_add" else listener.consumer, where, hang)
    exchange = Exchange(listener.consumer.as_asgi(), journal=journal)
    async with asyncio.timeout(TIME_LIMIT):
        await reached.wait()
        exchange.leave()
        await exchange.finish()
        while left_behind():
            await asyncio.sleep(0.001)
    assert journal == ["cancelled", *ENDED]
    assert listener.witness.task is None


async def test_h1_a_layer_that_hangs_before_there_is_a_channel_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the publish-subscribe layer of channels_redis may, which asks Redis for that."""

    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(relays, "PATIENCE", 0.05)
    monkeypatch.setattr(consumers, "CHANNEL_WITHIN", 0.01)
    monkeypatch.setattr(get_channel_layer(), "new_channel", hang)
    exchange = await ask(consumer_of(one_event))
    assert isinstance(exchange.task.exception(), TimeoutError)
    assert exchange.messages[0]["status"] == 200  # at which a browser comes back, as it does not at 500
    assert exchange.body == b""


async def test_h1_a_layer_that_is_slow_to_name_a_channel_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Telling(EventStreamConsumer):
        async def stream(self) -> AsyncIterator[Any]:
            yield ServerSentEvent(self.channel_name)

    async def at_the_second_call() -> str:
        calls.append(True)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "specific!channel"

    calls: list[bool] = []
    monkeypatch.setattr(consumers, "CHANNEL_WITHIN", 0.01)
    monkeypatch.setattr(get_channel_layer(), "new_channel", at_the_second_call)
    exchange = await ask(Telling)
    assert exchange.is_complete
    assert exchange.body == b"data: specific!channel\n\n"


@BOTH
async def test_h1_a_client_that_leaves_at_the_headers_does_not_start_the_stream_but_closes_it(
    asking_either: Any,
) -> None:
    resource = Resource()
    blocked = Blocked(is_start)
    async with asking_either(lambda: resource, {}, before_send=blocked, journal=resource.journal) as exchange:
        await blocked.reached.wait()
        exchange.leave()
        await exchange.finish()
    assert exchange.messages == []
    assert resource.journal == ["closed", "handler returned"]


async def test_h1_a_send_that_raises_at_the_headers_closes_the_stream() -> None:
    resource = Resource()
    broken = Broken(is_start, OSError("The connection is gone."))
    exchange = await ask(consumer_of(lambda: resource), before_send=broken, journal=resource.journal)
    assert isinstance(exchange.task.exception(), OSError)
    assert resource.journal == ["closed", "handler returned"]


@pytest.mark.parametrize("on", ["any server", "Daphne"])
async def test_h1_an_error_in_disconnect_is_raised_but_logged_on_daphne(
    on: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def disconnect(self: EventStreamConsumer) -> None:
        raise error

    error = KeyError("of the hook")
    with running_daphne() if on == "Daphne" else override_switch("other"):
        exchange = await ask(consumer_of(one_event, disconnect=disconnect))
    assert exchange.is_complete
    assert exchange.task.exception() is (None if on == "Daphne" else error)
    assert [record.name for record in caplog.records] == (["django.request"] if on == "Daphne" else [])


# H1: refusals.


@pytest.mark.parametrize("groups", [(), ("room",)])
async def test_h1_an_overridden_handle_may_refuse(groups: tuple[str, ...]) -> None:
    async def handle(self: Any, body: bytes) -> None:
        await self.send_response(403, b"no", headers=[(b"X-Own", b"1")])

    listener = Listener(groups=groups, handle=handle)
    exchange = await ask(listener.consumer, journal=listener.journal)
    assert (exchange.status, exchange.body, exchange.headers) == (403, b"no", {"x-own": "1"})
    assert exchange.is_complete
    assert exchange.task.exception() is None
    assert listener.journal == ENDED


async def test_h1_an_overridden_handle_may_go_on_behind_its_answer_though_the_client_has_gone() -> None:
    async def handle(self: Any, body: bytes) -> None:
        await self.send_response(202, b"")
        await asyncio.sleep(0.01)
        journal.append("done")

    journal: list[str] = []
    exchange = await ask(consumer_of(no_events, handle=handle), journal=journal)
    assert exchange.status == 202
    assert journal == ["done", "handler returned"]


@BOTH
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_h1_a_stopped_endpoint_refuses_without_having_started_the_stream(
    asking_either: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness()
    with override_switch("named", is_open=False):
        async with asking_either(witness.stream, {"headers": {"X-Own": "1"}}, method=method, headers=BROWSER) as told:
            await told.finish()
        async with asking_either(witness.stream, {}, method=method, headers={"Accept": "*/*"}) as other:
            await other.finish()
    for exchange, status in ((told, 204), (other, 503)):
        assert (exchange.status, exchange.body, exchange.is_complete) == (status, b"", True)
        assert exchange.headers["cache-control"] == "no-store"
    assert set(told.headers) == {"cache-control"}
    assert int(other.headers["retry-after"]) > 0
    assert witness.task is None
    assert caplog.records == []
