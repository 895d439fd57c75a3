"""``EventStreamConsumer``: its options, its switch, and the request that it answers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings as django_settings
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.http import BadHeaderError
from django.test import Client, override_settings
from django.urls import path
from pytest_django import Settings

from sse_keepalive.consumers import EventStreamConsumer
from sse_keepalive.endpoints import said_in_code
from sse_keepalive.frames import COMMENT, EVENT, LINE, ServerSentEvent
from sse_keepalive.options import Options
from sse_keepalive.testing import override_switch
from tests.asgi import Message, has_body
from tests.clock import run
from tests.test_consumers import (
    BOTH,
    IN_MEMORY,
    ask,
    asking,
    consumer_of,
    one_event,
)
from tests.test_handler import Witness
from tests.test_switched_streams import operator


@pytest.fixture(autouse=True)
def channel_layer(settings: Settings) -> None:
    """Give each test a layer of its own."""
    settings.CHANNEL_LAYERS = IN_MEMORY


# S, D: the switch and the options.


async def test_s1_an_endpoint_is_named_after_its_class_or_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sse_keepalive.endpoints._said", {})
    noted: list[str] = []
    monkeypatch.setattr("sse_keepalive.switches.switches.note", noted.append)

    class News(EventStreamConsumer):
        interval = 20

        async def stream(self) -> AsyncIterator[Any]:
            yield ""

    name = f"{__name__}.{News.__qualname__}"
    await ask(News)
    await ask(News.as_asgi(endpoint="news", frame="LINE"))
    assert noted == [name, "news"]
    assert said_in_code(name) == Options(interval=20, endpoint=name)
    assert said_in_code("news") == Options(interval=20, frame="LINE", endpoint="news")
    with override_switch(name, is_open=False):
        assert (await ask(News)).status == 503


async def test_s1_a_name_that_is_too_long_is_cut() -> None:
    consumer = type("N" * 300, (EventStreamConsumer,), {"stream": lambda self: one_event()})
    with override_switch(f"{__name__}.{'N' * 300}"[:255], is_open=False):
        assert (await ask(consumer)).status == 503


def frames_of(consumer: Any, seconds: float = 100.0) -> list[tuple[float, bytes]]:
    """Return what a silent consumer sends in so many seconds, and when, in virtual time."""

    async def main() -> list[tuple[float, bytes]]:
        sent: list[tuple[float, bytes]] = []
        loop = asyncio.get_running_loop()

        async def note(message: Message) -> None:
            if has_body(message):
                sent.append((round(loop.time(), 3), message["body"]))

        async with asking(consumer, before_send=note) as exchange:
            while not exchange.messages:
                await asyncio.sleep(0)  # time stands still while Channels looks at database connections in a thread
            await asyncio.sleep(seconds)
        return sent

    return run(main)


class Silent(EventStreamConsumer):
    interval = 20
    frame = "LINE"
    endpoint = "named"


def test_d4_arguments_win_over_attributes_over_settings_and_the_operator_over_all() -> None:
    class Plain(EventStreamConsumer):
        endpoint = "named"

    in_settings = {"SSE_KEEPALIVE_INTERVAL": 40, "SSE_KEEPALIVE_FRAME": ": s\n\n"}
    plain, silent = Plain.as_asgi(), Silent.as_asgi()
    assert frames_of(plain)[0] == (15.0, COMMENT.encode())
    with override_settings(**in_settings):  # at the time of the request
        assert frames_of(plain) == [(40.0, b": s\n\n"), (80.0, b": s\n\n")]
        assert frames_of(silent)[:2] == [(20.0, LINE.encode()), (40.0, LINE.encode())]
        assert frames_of(Silent.as_asgi(interval=25, frame="EVENT"))[0] == (25.0, EVENT.encode())
        assert frames_of(Silent.as_asgi(interval=timedelta(seconds=30)))[0] == (30.0, LINE.encode())
        assert frames_of(Silent.as_asgi(interval=None)) == []
        assert [when for when, _ in frames_of(Silent.as_asgi(first_interval=1))] == [1.0, 21.0, 41.0, 61.0, 81.0]
        with operator(interval=45.0, frame="EVENT"):
            assert frames_of(Silent.as_asgi(interval=25)) == [(45.0, EVENT.encode()), (90.0, EVENT.encode())]
        with operator(keep_alive=False):
            assert frames_of(silent) == []
    assert frames_of(silent)[0] == (20.0, LINE.encode())


@BOTH
async def test_s4_what_an_operator_decides_reaches_an_open_stream(asking_either: Any) -> None:
    witness = Witness()
    async with asking_either(witness.stream, {}, journal=witness.journal) as exchange:
        await exchange.until(lambda exchange: b"data: 1\n\n" in exchange.chunks)
        with operator(interval=0.005, frame="LINE"):
            await exchange.until(lambda exchange: exchange.chunks.count(LINE.encode()) > 2)
        with operator(is_open=False):
            await exchange.finish()
    assert exchange.is_complete
    assert witness.journal == ["CancelledError", "cleaned up", "handler returned"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"interval": "20"}, TypeError, "'20'"),
        ({"first_interval": []}, TypeError, "seconds"),
        ({"frame": "data: x"}, ValueError, "frame"),
        ({"frame": 1}, TypeError, "frame"),
        ({"endpoint": ""}, ValueError, "endpoint must"),
        ({"endpoint": 1}, TypeError, "endpoint must"),
        ({"endpoint": None}, TypeError, "endpoint must"),
        ({"groups": "room"}, TypeError, "groups must be"),
        ({"groups": None}, TypeError, "groups must be"),
        ({"groups": iter(["room"])}, TypeError, "groups must be"),
        ({"headers": {"X-Own": "a\nb"}}, BadHeaderError, "newlines"),
    ],
)
@pytest.mark.parametrize("how", ["argument", "attribute"])
def test_d1_a_wrong_option_is_refused_when_the_site_starts(
    options: dict[str, Any], error: type[Exception], match: str, how: str
) -> None:
    arguments = options if how == "argument" else {}
    consumer = EventStreamConsumer if how == "argument" else consumer_of(one_event, **options)
    with pytest.raises(error, match=match):
        consumer.as_asgi(**arguments)


@pytest.mark.parametrize("name", ["intervall", "stream", "on_error", "request"])
def test_d1_an_unknown_option_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(TypeError, match=f"Silent has no option '{name}'. There are interval, "):
        Silent.as_asgi(**{name: 1})


def test_h1_a_stream_that_does_not_yield_is_refused_when_the_site_starts() -> None:
    class Coroutine(EventStreamConsumer):
        async def stream(self) -> Any:  # type: ignore[override]
            return None

    class Synchronous(EventStreamConsumer):
        def stream(self) -> Any:
            yield ""

    class SynchronousGroups(EventStreamConsumer):
        def get_groups(self) -> Any:
            return ["room"]

    with pytest.raises(TypeError, match=r"SynchronousGroups.get_groups\(\) must be a coroutine function"):
        SynchronousGroups.as_asgi()
    for consumer in (Coroutine, Synchronous):
        with pytest.raises(TypeError, match=rf"{consumer.__name__}.stream\(\) must be an async generator"):
            consumer.as_asgi()


async def test_h1_groups_without_a_layer_are_refused_and_without_groups_no_layer_is_needed(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def get_groups(self: EventStreamConsumer) -> list[str]:
        return ["room"]

    settings.CHANNEL_LAYERS = {}
    with pytest.raises(ImproperlyConfigured, match="'default'"):
        consumer_of(one_event, groups=("room",)).as_asgi()
    exchange = await ask(consumer_of(one_event))
    assert (exchange.body, exchange.is_complete) == (b"data: 1\n\n", True)
    assert caplog.records == []
    exchange = await ask(consumer_of(one_event, get_groups=get_groups))
    assert isinstance(exchange.task.exception(), ImproperlyConfigured)
    assert exchange.body == b""
    assert len(caplog.records) == 1


def test_h1_a_layer_of_another_name_may_be_used(settings: Settings) -> None:
    settings.CHANNEL_LAYERS = {"other": IN_MEMORY["default"]}
    with pytest.raises(ImproperlyConfigured, match="'default'"):
        consumer_of(one_event, groups=("room",)).as_asgi()
    consumer_of(one_event, groups=("room",), channel_layer_alias="other").as_asgi()


# H1: the request and the scope.


async def test_h1_the_request_is_as_views_have_it_under_a_router_and_a_prefix() -> None:
    class News(EventStreamConsumer):
        async def stream(self) -> AsyncIterator[Any]:
            request = self.request
            seen.update(
                method=request.method,
                path=request.path,
                path_info=request.path_info,
                page=request.GET["page"],
                header=request.headers["X-Own"],
                cookie=request.COOKIES["name"],
                kwargs=self.scope["url_route"]["kwargs"],
                user=hasattr(request, "user"),
            )
            yield "data: 1\n\n"

    seen: dict[str, Any] = {}
    news: Any = News.as_asgi()
    application = URLRouter([path("news/<slug:region>/", news, {"extra": 1})])
    scope = {"path": "/prefix/news/eu/", "root_path": "/prefix", "query_string": b"page=%C3%A9"}
    exchange = await ask(application, scope=scope, headers={"X-Own": "1", "Cookie": "name=value"})
    assert exchange.is_complete
    assert seen == {
        "method": "GET",
        "path": "/prefix/news/eu/",
        "path_info": "/news/eu/",
        "page": "é",
        "header": "1",
        "cookie": "value",
        "kwargs": {"region": "eu", "extra": 1},
        "user": False,
    }


async def test_h1_the_request_is_there_where_it_may_be_refused() -> None:
    class Refusing(EventStreamConsumer):
        async def handle(self, body: bytes) -> None:
            if "page" in self.request.GET:
                await super().handle(body)
            else:
                await self.send_response(403, b"")

        async def stream(self) -> AsyncIterator[Any]:
            yield "data: 1\n\n"

    assert (await ask(Refusing, scope={"query_string": b"page=1"})).status == 200
    assert (await ask(Refusing)).status == 403


@pytest.mark.django_db(transaction=True)
def test_h1_the_user_is_that_of_the_session_under_an_auth_middleware_stack() -> None:
    class News(EventStreamConsumer):
        async def stream(self) -> AsyncIterator[Any]:
            seen.append((self.scope["user"], getattr(self.request, "user", None)))
            session = getattr(self.request, "session", None)
            assert session is self.scope["session"]
            yield "data: 1\n\n"

    async def main() -> None:
        application = AuthMiddlewareStack(News.as_asgi())
        for headers in ({"Cookie": cookie}, {}):
            assert (await ask(application, headers=headers)).is_complete

    user = User.objects.create_user("somebody")
    client = Client()
    client.force_login(user)
    cookie = f"{django_settings.SESSION_COOKIE_NAME}={client.cookies[django_settings.SESSION_COOKIE_NAME].value}"
    seen: list[Any] = []
    asyncio.run(main())
    assert seen[0] == (user, user)
    assert seen[1] == (AnonymousUser(), AnonymousUser())


async def test_h1_a_subclass_may_have_an_init_of_its_own() -> None:
    class News(EventStreamConsumer):
        def __init__(self, region: str = "eu", **options: Any) -> None:
            super().__init__(**options)
            self.region = region

        async def stream(self) -> AsyncIterator[Any]:
            yield ServerSentEvent(self.region)

    assert (await ask(News.as_asgi(region="us", endpoint="named"))).body == b"data: us\n\n"
    with override_switch("named", is_open=False):
        assert (await ask(News.as_asgi(region="us", endpoint="named"))).status == 503


def test_h1_an_application_names_its_consumer_as_those_of_channels_do() -> None:
    application: Any = Silent.as_asgi(interval=25)
    assert (application.consumer_class, application.consumer_initkwargs) == (Silent, {"interval": 25})
    assert application.__name__ == "Silent"
