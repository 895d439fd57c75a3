"""``EventStreamConsumer`` and the channel layer: its handlers, its groups, and events between those of its stream."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from channels.layers import get_channel_layer
from pytest_django import Settings

from sse_keepalive.consumers import EventStreamConsumer
from sse_keepalive.frames import COMMENT, ServerSentEvent
from tests import asgi
from tests.asgi import TIME_LIMIT, Blocked, Message
from tests.test_consumers import IN_MEMORY, Exchange, ask, asking, left_behind
from tests.test_switched_streams import operator
from tests.whatwg import decode

KEEP_ALIVE = COMMENT.encode()
BEGUN = b"data: begun\n\n"


@pytest.fixture(autouse=True)
def channel_layer(settings: Settings) -> None:
    """Give each test a layer of its own."""
    settings.CHANNEL_LAYERS = IN_MEMORY


class Room(EventStreamConsumer):
    """Begins at once, is silent from then on, and sends every message of its group."""

    groups: Collection[str] = ("room",)
    interval = None
    endpoint = "named"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.journal: list[str] = []

    async def stream(self) -> AsyncIterator[Any]:
        yield BEGUN
        await asyncio.Event().wait()

    async def chat_message(self, message: Message) -> None:
        await self.send_event(ServerSentEvent(message["text"]))


def has_begun(exchange: asgi.Exchange) -> bool:
    return BEGUN in exchange.chunks


def has(data: str) -> Any:
    """Return whether an event with that data was sent."""
    return lambda exchange: data in data_of(exchange)


def data_of(exchange: asgi.Exchange) -> list[str]:
    return [event.data for event in decode(exchange.body).events]


async def send(text: str, *, group: str = "room", type: str = "chat.message", **values: Any) -> None:  # noqa: A002
    await get_channel_layer().group_send(group, {"type": type, "text": text, **values})


# H2, cases 15 and 16: messages arrive.


async def test_h2_what_is_sent_to_a_group_while_it_streams_arrives() -> None:
    async with asking(Room) as exchange:
        await exchange.until(has_begun)
        for number in range(3):
            await send(f"{number}")
        await exchange.until(has("2"))
    assert data_of(exchange) == ["begun", "0", "1", "2"]


async def test_h3_three_hundred_messages_arrive_in_order_between_keep_alives() -> None:
    async with asking(Room.as_asgi(interval=0.002)) as exchange:
        await exchange.until(has_begun)
        for number in range(300):
            await send(f"{number}")
            if number % 10 == 0:
                await asyncio.sleep(0.004)
        await exchange.until(has("299"))
    assert data_of(exchange) == ["begun", *map(str, range(300))]
    assert exchange.chunks.count(KEEP_ALIVE) > 10


async def test_h2_every_consumer_of_a_group_gets_every_message_of_its_own() -> None:
    class Changing(Room):
        async def chat_message(self, message: Message) -> None:
            message["text"] += "!"
            await super().chat_message(message)

    async with asking_all(Changing, 3) as exchanges:
        for number in range(20):
            await send(f"{number}")
        for exchange in exchanges:
            await exchange.until(has("19!"))
            assert data_of(exchange) == ["begun", *[f"{number}!" for number in range(20)]]


class asking_all:  # noqa: N801
    """Make so many requests to a consumer, and wait until their streams have begun."""

    def __init__(self, consumer: Any, number: int) -> None:
        self.exchanges = [Exchange(consumer.as_asgi()) for _ in range(number)]

    async def __aenter__(self) -> list[Exchange]:
        for exchange in self.exchanges:
            await exchange.until(has_begun)
        return self.exchanges

    async def __aexit__(self, *exc_info: object) -> None:
        for exchange in self.exchanges:
            exchange.leave()
            await exchange.finish()
        assert left_behind() == {}


async def test_h2_what_is_sent_before_the_streams_first_step_is_not_missed() -> None:
    """The groups are joined when the stream begins, so what it reads then and what comes later are all there is."""

    class Early(Room):
        async def stream(self) -> AsyncIterator[Any]:
            await send("early")
            async for chunk in super().stream():
                yield chunk

    async with asking(Early) as exchange:
        await exchange.until(has("early"))
    assert sorted(data_of(exchange)) == ["begun", "early"]


async def test_h2_the_groups_may_depend_on_the_request() -> None:
    class OfRegion(Room):
        async def get_groups(self) -> list[str]:
            await asyncio.sleep(0)
            return [self.request.GET["region"], "all"]

    async with asking(OfRegion, scope={"query_string": b"region=eu"}) as exchange:
        await exchange.until(has_begun)
        for group in ("us", "room", "eu", "all"):
            await send(f"to {group}", group=group)
            await asyncio.sleep(0)
        await exchange.until(has("to eu"))
        await exchange.until(has("to all"))
    assert sorted(data_of(exchange)) == ["begun", "to all", "to eu"]


@pytest.mark.parametrize("groups", [(), ("room",)])
async def test_h2_what_is_sent_to_its_channel_arrives(groups: tuple[str, ...]) -> None:
    class Private(Room):
        async def stream(self) -> AsyncIterator[Any]:
            names.append(self.channel_name)
            async for chunk in super().stream():
                yield chunk

    names: list[str | None] = []
    async with asking(Private.as_asgi(groups=groups)) as exchange:
        await exchange.until(has_begun)
        await get_channel_layer().send(names[0], {"type": "chat.message", "text": "private"})
        await exchange.until(has("private"))


async def test_h2_it_may_join_and_leave_groups_by_itself() -> None:
    class Joining(Room):
        groups = ()

        async def stream(self) -> AsyncIterator[Any]:
            await self.channel_layer.group_add("own", self.channel_name)
            async for chunk in super().stream():
                yield chunk

        async def chat_leave(self, message: Message) -> None:
            await self.channel_layer.group_discard("own", self.channel_name)
            await self.send_event(ServerSentEvent("left"))

    async with asking(Joining) as exchange:
        await exchange.until(has_begun)
        await send("to my own", group="own")
        await exchange.until(has("to my own"))
        await send("", group="own", type="chat.leave")
        await exchange.until(has("left"))
        await send("too late", group="own")
    assert data_of(exchange) == ["begun", "to my own", "left"]


async def test_h2_handlers_run_one_at_a_time_and_in_order() -> None:
    class Slow(Room):
        async def chat_message(self, message: Message) -> None:
            running.append(message["text"])
            assert len(running) == 1
            await asyncio.sleep(0.005 if message["text"] == "0" else 0)
            await super().chat_message(message)
            running.remove(message["text"])

    running: list[str] = []
    async with asking(Slow) as exchange:
        await exchange.until(has_begun)
        for number in range(20):
            await send(f"{number}")
        await exchange.until(has("19"))
    assert data_of(exchange) == ["begun", *map(str, range(20))]


def test_h2_consumers_in_two_loops_are_nothing_to_each_other() -> None:
    def in_a_loop_of_its_own(group: str) -> None:
        async def main() -> None:
            exchange = Exchange(Room.as_asgi(groups=[group]))
            await exchange.until(has_begun)
            barrier.wait(TIME_LIMIT)
            for number in range(20):
                await send(f"{group} {number}", group=group)
            await exchange.until(has(f"{group} 19"))
            barrier.wait(TIME_LIMIT)
            exchange.leave()
            await exchange.finish()
            barrier.wait(TIME_LIMIT)
            left.append(left_behind())
            received[group] = data_of(exchange)

        asyncio.run(main())

    barrier = threading.Barrier(2)
    received: dict[str, list[str]] = {}
    left: list[dict[str, object]] = []
    threads = [threading.Thread(target=in_a_loop_of_its_own, args=[group]) for group in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIME_LIMIT)
    assert received == {group: ["begun", *[f"{group} {number}" for number in range(20)]] for group in ("one", "two")}
    assert left == [{}, {}]


# H1: send_event.


@pytest.mark.parametrize("sender", ["a handler", "a task"])
async def test_h1_an_event_is_never_sent_inside_of_another(sender: str) -> None:
    class Halves(Room):
        async def stream(self) -> AsyncIterator[Any]:
            task = asyncio.create_task(self.in_a_task()) if sender == "a task" else None
            yield BEGUN
            yield "data: first "
            half.set()
            await go_on.wait()
            yield "and second half\n\n"
            await asyncio.Event().wait()
            assert task

        async def in_a_task(self) -> None:
            await half.wait()
            sent.append(await self.send_event(ServerSentEvent("between")))

        async def chat_message(self, message: Message) -> None:
            sent.append(await self.send_event(ServerSentEvent("between")))

    half, go_on = asyncio.Event(), asyncio.Event()
    sent: list[bool] = []
    async with asking(Halves.as_asgi(interval=0.002, frame="EVENT")) as exchange:
        async with asyncio.timeout(TIME_LIMIT):
            await half.wait()
        if sender == "a handler":
            await send("")
        for _ in range(10):
            await asyncio.sleep(0.002)
        assert exchange.body.endswith(b"data: first ")
        assert sent == []
        go_on.set()
        await exchange.until(has("between"))
        async with asyncio.timeout(TIME_LIMIT):
            while not sent:
                await asyncio.sleep(0)
    events = [data for data in data_of(exchange) if data != "{}"]  # which is a keep-alive
    assert events[:3] == ["begun", "first and second half", "between"]
    assert sent == [True]


async def test_h1_the_stream_itself_may_send_an_event() -> None:
    class Both(Room):
        async def stream(self) -> AsyncIterator[Any]:
            yield "data: 1\n\n"
            sent.append(await self.send_event(ServerSentEvent("2")))
            yield "data: 3\n\n"
            sent.append(await self.send_event(ServerSentEvent("4", id=4)))

    sent: list[bool] = []
    exchange = await ask(Both)
    assert exchange.body == b"data: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\nid: 4\n\n"
    assert (exchange.is_complete, sent) == (True, [True, True])


async def test_h1_send_event_returns_when_the_server_has_taken_it() -> None:
    class Waiting(Room):
        async def chat_message(self, message: Message) -> None:
            await super().chat_message(message)
            returned.set()

    returned = asyncio.Event()
    blocked = Blocked(lambda message: message.get("body") == b"data: x\n\n")
    async with asking(Waiting, before_send=blocked) as exchange:
        await exchange.until(has_begun)
        await send("x")
        await blocked.reached.wait()
        await asyncio.sleep(0.01)
        assert not returned.is_set()
        blocked.released.set()
        async with asyncio.timeout(TIME_LIMIT):
            await returned.wait()
        assert has("x")(exchange)


@pytest.mark.parametrize("event", ["data: x\n\n", b"", None, {}], ids=repr)
async def test_h1_send_event_takes_nothing_but_an_event(event: Any) -> None:
    class Wrong(Room):
        async def stream(self) -> AsyncIterator[Any]:
            with pytest.raises(TypeError, match=f"takes a ServerSentEvent, not {type(event).__name__}"):
                await self.send_event(event)
            yield BEGUN

    assert (await ask(Wrong)).body == BEGUN


@pytest.mark.parametrize("where", ["handle", "get_groups"])
async def test_h1_send_event_before_the_stream_was_begun_is_an_error(where: str) -> None:
    class Early(Room):
        async def handle(self, body: bytes) -> None:
            if where == "handle":
                await self.attempt()
            await super().handle(body)

        async def get_groups(self) -> list[str]:
            if where == "get_groups":
                await self.attempt()
            return []

        async def attempt(self) -> None:
            with pytest.raises(RuntimeError, match="no stream"):
                async with asyncio.timeout(TIME_LIMIT / 10):
                    await self.send_event(ServerSentEvent("too early"))
            attempted.append(where)

        async def stream(self) -> AsyncIterator[Any]:
            yield BEGUN

    attempted: list[str] = []
    exchange = await ask(Early)
    assert exchange.task.exception() is None
    assert (attempted, exchange.body) == ([where], BEGUN)


async def test_h1_send_event_says_that_the_stream_has_ended() -> None:
    class Late(Room):
        async def stream(self) -> AsyncIterator[Any]:
            yield BEGUN

        async def disconnect(self) -> None:
            sent.append(await self.send_event(ServerSentEvent("too late")))

    sent: list[bool] = []
    exchange = await ask(Late)
    assert (exchange.body, sent) == (BEGUN, [False])


async def test_h1_whoever_waits_to_send_is_told_when_the_client_leaves() -> None:
    class Waiting(Room):
        async def stream(self) -> AsyncIterator[Any]:
            tasks.append(asyncio.create_task(self.send_event(ServerSentEvent("2"))))
            yield "data: a part of 1"
            parked.set()
            await asyncio.Event().wait()

    tasks: list[asyncio.Task[bool]] = []
    parked = asyncio.Event()
    async with asking(Waiting) as exchange, asyncio.timeout(TIME_LIMIT):
        await parked.wait()
        exchange.leave()
        await exchange.finish()
        assert await tasks[0] is False


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("what", ["a refusal", "a stop", "a head"])
async def test_h2_nothing_is_joined_where_nothing_is_streamed(method: str, what: str) -> None:
    class Refusing(Room):
        async def handle(self, body: bytes) -> None:
            await self.send_response(403, b"")

    class Named(Room):
        async def get_groups(self) -> list[str]:
            joined.append("room")
            return []

    joined: list[str] = []
    if what == "a head":
        exchange = await ask(Named, method="HEAD")
    elif what == "a stop":
        with operator(is_open=False):
            exchange = await ask(Named, method=method)
    else:
        exchange = await ask(Refusing, method=method)
    assert (exchange.is_complete, joined) == (True, [])
