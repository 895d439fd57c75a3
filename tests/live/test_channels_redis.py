"""Groups across the processes of a site, whose channel layer is in a real Redis."""

import asyncio
import contextlib
import functools
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from channels.layers import get_channel_layer
from django.utils.module_loading import import_string
from pytest_django import Settings

from sse_keepalive.layers import group_messages

from .crowd import Crowd, Guest, crowd
from .http import Connection
from .redis import Redis, redis_server
from .servers import Server, running

pytestmark = pytest.mark.peers

APPLICATION: Final = "tests.live.channels_asgi:application"

#: Two processes each of the two servers that differ in all that matters here.
SERVERS: Final = ("daphne", "daphne", "uvicorn", "uvicorn")

CORE: Final = "channels_redis.core.RedisChannelLayer"
PUBSUB: Final = "channels_redis.pubsub.RedisPubSubChannelLayer"

LAYERS: Final = {"core": CORE, "pubsub": PUBSUB}

#: How each is configured. The layers themselves throw away what comes while so many messages wait for a process, and a
#: busy machine lets some wait. The core layer blocks in Redis for 5 s, which is when redis-py gives up by default.
CONFIGURATIONS: Final[dict[str, dict[str, Any]]] = {
    CORE: {"capacity": 1000, "socket_timeout": 15},
    PUBSUB: {},
}

#: Both ways to hear a group.
KINDS: Final = ("view", "consumer")

MESSAGES: Final = 300

#: Groups of one client each by each way on each server.
ROOMS: Final = ("hall", "first", "second", "third", "fourth")

#: Within so many seconds all messages have come, and a stream has got over a Redis that has come back.
PATIENCE: Final = 40.0

#: A task that the layer itself starts once in each process, and that goes on for ever.
OF_THE_LAYER: Final = "RedisSingleShardConnection._do_receiving"


class Site:
    """Some processes on one Redis."""

    def __init__(self, layer: str, redis: Redis, directory: Path) -> None:
        self.layer = layer
        self.redis = redis
        self.servers: list[Server] = []
        self._directory = directory
        self._tasks: list[Counter[str]] = []

    def start(self, stack: contextlib.ExitStack, names: Sequence[str]) -> None:
        """Start these servers, which end with the stack."""
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.live.channels_settings",
            "LIVE_CHANNEL_LAYER": json.dumps({"BACKEND": self.layer, "CONFIG": self.configuration()}),
        }
        for number, name in enumerate(names):
            directory = self._directory / f"{name}-{number}"
            server = running(name, directory, application=APPLICATION, environment=environment)
            self.servers.append(stack.enter_context(server))
        self._tasks = [tasks_of(server) for server in self.servers]

    def configuration(self) -> dict[str, Any]:
        """Return the arguments of the channel layer."""
        options = dict(CONFIGURATIONS[self.layer])
        host = {"address": self.redis.address}
        if "socket_timeout" in options:
            host["socket_timeout"] = options.pop("socket_timeout")
        return {"hosts": [host], **options}

    @contextlib.asynccontextmanager
    async def sender(self) -> AsyncIterator[Callable[[str, int], Any]]:
        """Connect this process to the channel layer as well; return what sends a number to a group."""
        layer = import_string(self.layer)(**self.configuration())

        async def send(group: str, number: int) -> None:
            await layer.group_send(group, {"type": "chat.message", "text": str(number)})

        try:
            yield send
        finally:
            await (layer.close_pools() if self.layer == CORE else layer.flush())

    def assert_nothing_is_left(self) -> None:
        """Wait until the servers run no more tasks than before they had clients, and Redis knows no groups."""
        for server, before in zip(self.servers, self._tasks, strict=True):
            settle(functools.partial(tasks_of, server), before, f"the tasks of {server.name}")
        with self.redis.client() as client:
            settle(client.pubsub_channels, [], "the subscriptions")
            settle(client.keys, [], "the keys")


def settle(look: Callable[[], Any], wanted: object, what: str) -> None:
    """Wait until something has come to be what is wanted."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"After {PATIENCE} s {what} are {found}, not {wanted}."
        time.sleep(0.05)


def tasks_of(server: Server) -> Counter[str]:
    """Return how many tasks of each kind run on a server's loop."""
    with Connection(server.port) as connection:
        tasks = Counter(json.loads(connection.get("/tasks").read()))
    del tasks[OF_THE_LAYER]
    return tasks


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """Return the function that gives a running site by its channel layer."""
    sites: dict[str, Site] = {}
    with contextlib.ExitStack() as stack:

        def started(layer: str) -> Site:
            if layer not in sites:
                directory = tmp_path_factory.mktemp("channels-redis")
                redis = stack.enter_context(redis_server(directory / "redis"))
                sites[layer] = Site(layer, redis, directory)
                sites[layer].start(stack, SERVERS)
            return sites[layer]

        yield started


@pytest.fixture(params=list(LAYERS.values()), ids=list(LAYERS))
def site(request: pytest.FixtureRequest, start: Callable[[str], Site]) -> Site:
    """Return a site with each of the channel layers in turn."""
    return start(request.param)


@pytest.fixture(params=list(LAYERS.values()), ids=list(LAYERS))
def fresh_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Return one whose Redis may be killed: to its processes, something of that sticks."""
    with contextlib.ExitStack() as stack:
        site = Site(request.param, stack.enter_context(redis_server(tmp_path / "redis")), tmp_path)
        site.start(stack, ["daphne", "uvicorn"])
        yield site


async def fill(site: Site, crowd: Crowd, room: str, each: int) -> list[Guest]:
    """Let so many guests into a room by each way on each server, and return them when nothing is missed any more."""
    ways = list(itertools.product(site.servers, KINDS, range(each)))
    guests = [await crowd.join(server, f"/{kind}/{room}") for server, kind, _ in ways]
    await crowd.until(lambda guest: guest.is_ready, "ready")
    return guests


async def send_all(send: Callable[[str, int], Any], room: str, seed: str) -> None:
    """Send the numbers of all messages, at random moments."""
    moments = random.Random(seed)
    for number in range(MESSAGES):
        await send(room, number)
        await asyncio.sleep(moments.uniform(0, 0.015))


async def assert_all_have_come(send: Callable[[str, int], Any], crowd: Crowd, room: str, guests: list[Guest]) -> None:
    """Assert that each has heard all numbers in order, each once, and is still there."""
    await send(room, MESSAGES)  # behind which none can come any more
    await crowd.until(lambda guest: MESSAGES in guest.numbers or guest.end, "the last message", within=PATIENCE)
    wrong = [guest for guest in guests if guest.numbers != list(range(MESSAGES + 1)) or guest.strange or guest.end]
    assert not wrong, f"{len(wrong)} of {len(guests)} have not heard all once and in order: {wrong[:8]}"


async def test_h3_every_message_comes_once_and_in_order_to_every_client_of_every_process(site: Site) -> None:
    """Cases 15, 16: while keep-alives fire every few milliseconds; and when all have left, nothing of it is left."""
    async with site.sender() as send, crowd() as gathered:
        guests = await fill(site, gathered, "hall", 10)
        await send_all(send, "hall", "calm")
        await assert_all_have_come(send, gathered, "hall", guests)
        assert all(guest.keep_alives > 50 for guest in guests), guests
    site.assert_nothing_is_left()


async def test_h3_clients_that_come_and_go_take_no_message_from_those_who_stay(site: Site) -> None:
    """
    Case 16: some in the same group, some in groups of their own.

    When one of them leaves, a `receive` of the process ends, and what it has just taken may be meant for others.
    """
    async with site.sender() as send, crowd() as gathered, crowd() as passing:
        guests = await fill(site, gathered, "hall", 5)
        visits = Counter[str]()
        rooms = [(server, kind, room) for server in site.servers for kind in KINDS for room in ("hall", "own")]
        visitors = [asyncio.create_task(come_and_go(passing, visits, *room)) for room in rooms]
        await send_all(send, "hall", "busy")
        for visitor in visitors:
            visitor.cancel()
        results = await asyncio.gather(*visitors, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
        await passing.leave()
        await assert_all_have_come(send, gathered, "hall", guests)
        assert min(visits.values()) > 20, visits
        assert len(visits) == 2
    site.assert_nothing_is_left()


async def come_and_go(passing: Crowd, visits: Counter[str], server: Server, kind: str, room: str) -> None:
    """Come, stay for some milliseconds, and leave, again and again; in a room of its own each time if asked to."""
    moments = random.Random(f"{server.port} {kind} {room}")
    for number in itertools.count():
        place = room if room == "hall" else f"{kind}-{server.port}-{number}"
        guest = await passing.join(server, f"/{kind}/{place}")
        while not guest.is_ready:
            assert not guest.end, guest
            await asyncio.sleep(0.002)
        await asyncio.sleep(moments.uniform(0, 0.03))
        await guest.leave()
        passing.guests.remove(guest)
        visits[room] += 1


@pytest.mark.parametrize("seconds", [1, 8])
async def test_h3_no_stream_is_silent_for_ever_when_redis_comes_back(fresh_site: Site, seconds: int) -> None:
    """
    A stream whose messages are lost ends, and the log says why; one that goes on hears what is sent from then on.

    In any case, who comes afterwards hears everything, and when all have left, nothing is left of it.
    """
    site = fresh_site
    async with crowd() as gathered:
        for room in ROOMS:  # each takes a connection or two, which the layer keeps
            await fill(site, gathered, room, 1)
        await gathered.leave()
        guests = await fill(site, gathered, "hall", 5)
        async with site.sender() as send:
            await send("hall", 0)
            await gathered.until(lambda guest: guest.numbers == [0], "the message before")
        site.redis.kill()
        await asyncio.sleep(seconds)
        site.redis.start()
        back = time.monotonic()
        async with site.sender() as send:
            numbers = itertools.count(1)

            def is_over_it(guest: Guest) -> bool:
                return bool(guest.end) or guest.numbers[-1] > 0

            while time.monotonic() < back + PATIENCE and not all(map(is_over_it, guests)):
                await send("hall", next(numbers))
                await asyncio.sleep(0.05)
            silent = [guest for guest in guests if not is_over_it(guest)]
            assert not silent, f"{len(silent)} of {len(guests)} are silent for ever: {silent[:8]}"
        for guest in guests:
            assert guest.numbers == sorted(set(guest.numbers)), guest
            assert guest.end in ("", "whole" if guest.server.name == "daphne" else "cut"), guest
        assert_each_end_is_logged(site, guests)
        await gathered.leave()
        async with site.sender() as send:
            ways = itertools.product(site.servers, KINDS, ROOMS)
            hearing = asyncio.gather(
                *(hear_something(gathered, server, f"/{kind}/{room}") for server, kind, room in ways)
            )
            while not hearing.done():
                for room in ROOMS:
                    await send(room, MESSAGES)
                await asyncio.sleep(0.05)
            await hearing
    site.assert_nothing_is_left()


async def hear_something(crowd: Crowd, server: Server, path: str) -> None:
    """
    Come, and when the stream ends come again as an ``EventSource`` does, until a message is heard.

    What is tried first may fail still: redis-py keeps connections that broke with the Redis that was killed.
    """
    deadline = time.monotonic() + PATIENCE
    guest = await crowd.join(server, path)
    while not guest.numbers:
        assert time.monotonic() < deadline, f"Nothing was heard within {PATIENCE} s: {guest}"
        if guest.end:
            guest = await crowd.join(server, path)
        await asyncio.sleep(0.02)
    assert not guest.end, guest


def assert_each_end_is_logged(site: Site, guests: list[Guest]) -> None:
    """Assert that there is one error in the log for each stream that has ended, and none for the others."""
    for server in site.servers:
        ended = Counter(guest.path for guest in guests if guest.server is server and guest.end)
        settle(functools.partial(errors_of, server), ended, f"the errors logged by {server.name}")


def errors_of(server: Server) -> Counter[str]:
    """Return how many errors a server has logged for the streams of each path."""
    heads = [record.splitlines()[0] for record in server.request_records() if record.startswith("ERROR")]
    return Counter(head.split("'")[1] for head in heads)


async def test_h3_a_stream_outlasts_a_long_silence(site: Site) -> None:
    """Nothing comes for longer than any time-out of the layer's own: 5 s."""
    async with site.sender() as send, crowd() as gathered:
        await fill(site, gathered, "hall", 1)
        await asyncio.sleep(6)
        await send("hall", 1)
        await gathered.until(lambda guest: guest.numbers == [1] or guest.end, "the message")
        assert not [guest for guest in gathered.guests if guest.end]
    site.assert_nothing_is_left()


async def test_h2_a_group_is_left_at_once_on_several_hosts(tmp_path: Path, settings: Settings) -> None:
    """What is sent to a channel goes to another host than its `receive` waits at, but not what is sent to a group."""
    with redis_server(tmp_path / "one") as one, redis_server(tmp_path / "other") as other:
        hosts = [{"address": redis.address, "socket_timeout": 15} for redis in (one, other)]
        settings.CHANNEL_LAYERS = {"default": {"BACKEND": CORE, "CONFIG": {"hosts": hosts}}}
        layer: Any = get_channel_layer()
        for number in range(20):
            room = f"room-{number}"
            async with group_messages(room) as messages:
                await layer.group_send(room, {"type": "chat.message", "text": room})
                assert (await anext(messages))["text"] == room
            left = [task for task in asyncio.all_tasks() if "Relay._run" in repr(task)]
            assert left == []
        await layer.close_pools()
