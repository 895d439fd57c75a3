"""Responses and decorators under an operator's switches: what is sent, what is refused, and who has the last word."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import ResolverMatch
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from sse_keepalive import endpoints
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.endpoints import endpoint_of, remember, said_in_code
from sse_keepalive.frames import COMMENT, EVENT, LINE
from sse_keepalive.http import EventStreamResponse
from sse_keepalive.models import Endpoint
from sse_keepalive.options import Options, Source
from sse_keepalive.streams import AT_ONCE, OpenStream
from sse_keepalive.switches import AS_IN_CODE, LONGEST_NAME, MOST_NAMES, Switch, switches
from tests.asgi import TIME_LIMIT, WRAPPING, Blocked, Exchange, answering, get, has_body, is_start, serving
from tests.clock import run

KEEP_ALIVE = COMMENT.encode()
BROWSER = {"Accept": "text/event-stream"}
GZIP = "django.middleware.gzip.GZipMiddleware"

#: Seconds between two keep-alives where nobody waits for them for real.
QUICK = 0.005


@contextmanager
def operator(name: str = "named", **values: Any) -> Iterator[None]:
    """Be an operator who may also have intervals that are too short for a real one."""
    override = switches.override(name, Switch(**values))
    try:
        yield
    finally:
        switches.cancel(override)


class Witness:
    """A stream that keeps account of itself: two events, and in between it waits to be told to go on."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.go_on = asyncio.Event()

    async def events(self) -> AsyncIterator[str]:
        self.journal.append("started")
        try:
            yield "data: 1\n\n"
            await self.go_on.wait()
            yield "data: 2\n\n"
        finally:
            await asyncio.sleep(0)
            self.journal.append("cleaned up")

    def view(self, **options: Any) -> Callable[..., Any]:
        @sse_keepalive(endpoint="named", **options)
        async def view(request: HttpRequest) -> AsyncIterator[str]:
            return self.events()

        return view


def has(chunk: bytes, times: int = 1) -> Callable[[Exchange], bool]:
    """Return whether a chunk was sent so often."""
    return lambda exchange: exchange.chunks.count(chunk) >= times


# S2, D4: what is in force.


async def silence(seconds: float = 100.0) -> AsyncIterator[str]:
    await asyncio.sleep(seconds)
    yield "data: 1\n\n"


def frames_of(view: Callable[[HttpRequest], Any], seconds: float = 100.0) -> list[tuple[float, bytes]]:
    """Return what a silent stream sends before its first event, and when, in virtual time."""

    async def main() -> list[tuple[float, bytes]]:
        loop = asyncio.get_running_loop()
        response = await view(RequestFactory().get("/"))
        sent = [(round(loop.time(), 3), chunk) async for chunk in response]
        assert (sent[0][1], sent[-1][1]) == (b"", b"data: 1\n\n")
        return sent[1:-1]

    return run(main)


def layered(
    *, response: dict[str, Any] | None = None, inner: dict[str, Any] | None = None, outer: dict[str, Any] | None = None
) -> Callable[[HttpRequest], Any]:
    """Return a view with what is said in each of three places."""

    @sse_keepalive(**(outer or {}))
    @sse_keepalive(**(inner or {}))
    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(silence(), endpoint="named", **(response or {}))

    return view


@pytest.mark.parametrize(
    ("said", "interval"),
    [
        (["operator", "response", "inner", "outer", "settings"], 30.0),
        (["response", "inner", "outer", "settings"], 20.0),
        (["inner", "outer", "settings"], 25.0),
        (["outer", "settings"], 35.0),
        (["settings"], 40.0),
        ([], 15.0),
        (["operator", "settings"], 30.0),
        (["operator"], 30.0),
    ],
    ids=lambda value: " over ".join(value) if isinstance(value, list) else str(value),
)
def test_d4_the_operator_wins_over_the_response_over_decorators_over_settings(
    said: list[str], interval: float
) -> None:
    places = {"response": (20, "LINE"), "inner": (25, "EVENT"), "outer": (35, ": outer\n\n")}
    frames = {30.0: EVENT, 20.0: LINE, 25.0: EVENT, 35.0: ": outer\n\n", 40.0: ": settings\n\n", 15.0: COMMENT}
    options = {name: {"interval": places[name][0], "frame": places[name][1]} for name in places if name in said}
    in_settings = {"SSE_KEEPALIVE_INTERVAL": 40, "SSE_KEEPALIVE_FRAME": ": settings\n\n"} if "settings" in said else {}
    decided: dict[str, Any] = {"interval": 30.0, "frame": "EVENT"} if "operator" in said else {}
    with override_settings(**in_settings), operator(**decided):
        sent = frames_of(layered(**options))
    assert sent[0] == (interval, frames[interval].encode())
    assert len(sent) == (100 - 1) // interval


@pytest.mark.parametrize("place", ["response", "inner", "outer", "settings"])
def test_s2_each_of_what_the_operator_says_counts_by_itself(place: str) -> None:
    options = {place: {"interval": 20, "frame": "LINE"}} if place != "settings" else {}
    in_settings = {"SSE_KEEPALIVE_INTERVAL": 20, "SSE_KEEPALIVE_FRAME": "LINE"} if place == "settings" else {}
    with override_settings(**in_settings):
        with operator(interval=40.0):
            assert frames_of(layered(**options)) == [(40.0, LINE.encode()), (80.0, LINE.encode())]
        with operator(frame="EVENT"):
            assert frames_of(layered(**options)) == [(seconds, EVENT.encode()) for seconds in (20, 40, 60, 80)]
        with operator():
            assert frames_of(layered(**options)) == [(seconds, LINE.encode()) for seconds in (20, 40, 60, 80)]


@pytest.mark.parametrize("place", ["response", "inner", "outer", "settings"])
@pytest.mark.parametrize("decided", [{}, {"interval": 2.0, "frame": "EVENT"}], ids=["", "with an interval"])
def test_s2_off_is_final_whatever_arguments_say(place: str, decided: dict[str, Any]) -> None:
    said = {"interval": 1, "first_interval": 0, "frame": "LINE"}
    in_settings = {f"SSE_KEEPALIVE_{name.upper()}": value for name, value in said.items()}
    with (
        override_settings(**(in_settings if place == "settings" else {})),
        operator(keep_alive=False, **decided),
    ):
        assert frames_of(layered(**({place: said} if place != "settings" else {}))) == []


@pytest.mark.parametrize("off", [0, None, -1, timedelta(0)], ids=repr)
@pytest.mark.parametrize("place", ["response", "inner", "outer", "settings"])
def test_s2_an_operators_interval_turns_on_what_code_or_settings_have_turned_off(place: str, off: Any) -> None:
    options = {place: {"interval": off}} if place != "settings" else {}
    with override_settings(**({"SSE_KEEPALIVE_INTERVAL": off} if place == "settings" else {})):
        with operator(interval=30.0):
            assert [seconds for seconds, _ in frames_of(layered(**options))] == [30.0, 60.0, 90.0]
        with operator(keep_alive=True):
            assert frames_of(layered(**options)) == []


def test_s2_an_operators_interval_leaves_the_first_interval_to_the_code() -> None:
    with operator(interval=40.0):
        assert [seconds for seconds, _ in frames_of(layered(inner={"first_interval": 2}))] == [2.0, 42.0, 82.0]


def test_d4_what_a_view_tells_its_stream_holds_until_an_operator_says_something() -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> EventStreamResponse:
        response = EventStreamResponse(silence(), interval=20, endpoint="named")
        response.stream.use(40, "LINE")
        return response

    assert frames_of(view) == [(40.0, LINE.encode()), (80.0, LINE.encode())]
    with operator(interval=30.0, frame="EVENT"):
        assert frames_of(view) == [(seconds, EVENT.encode()) for seconds in (30, 60, 90)]
    with operator(keep_alive=False):
        assert frames_of(view) == []


def test_s2_a_frame_that_the_code_does_not_know_says_nothing() -> None:
    with operator(frame="GONE"):
        assert frames_of(layered(inner={"frame": "LINE", "interval": 60})) == [(60.0, LINE.encode())]
    with operator(frame=": ping\n\n"):
        assert frames_of(layered(inner={"interval": 60})) == [(60.0, KEEP_ALIVE)]


@pytest.mark.parametrize(
    ("options", "switch", "interval", "frame"),
    [
        (Options(), AS_IN_CODE, (15.0, Source.SETTINGS), (COMMENT, Source.SETTINGS)),
        (Options(interval=20, frame="LINE"), AS_IN_CODE, (20.0, Source.CODE), ("LINE", Source.CODE)),
        (Options(interval=None), AS_IN_CODE, (0.0, Source.CODE), (COMMENT, Source.SETTINGS)),
        (Options(interval=20), Switch(keep_alive=False), (0.0, Source.OPERATOR), (COMMENT, Source.SETTINGS)),
        (Options(), Switch(keep_alive=False, interval=5.0), (0.0, Source.OPERATOR), (COMMENT, Source.SETTINGS)),
        (Options(frame="LINE"), Switch(interval=5.0), (5.0, Source.OPERATOR), ("LINE", Source.CODE)),
        (Options(frame="LINE"), Switch(frame="EVENT"), (15.0, Source.SETTINGS), ("EVENT", Source.OPERATOR)),
    ],
)
def test_d4_it_is_known_who_has_said_what_is_in_force(
    options: Options, switch: Switch, interval: tuple[float, Source], frame: tuple[str, Source]
) -> None:
    assert options.interval_in_force(switch) == interval
    assert options.frame_in_force(switch) == frame


@pytest.mark.parametrize("middleware", [[], [WRAPPING], [GZIP]], ids=["", "a generator around it", "GZip"])
async def test_s2_a_stream_obeys_from_its_beginning(middleware: list[str]) -> None:
    witness = Witness()
    with operator(interval=QUICK, frame="LINE"):
        async with answering(witness.view(interval=3600, frame="EVENT"), middleware=middleware) as exchange:
            await exchange.until(has(LINE.encode(), 2))
            witness.go_on.set()
            await exchange.finish()
    assert exchange.body.replace(LINE.encode(), b"") == b"data: 1\n\ndata: 2\n\n"
    assert switches.get("named") == AS_IN_CODE


@pytest.mark.parametrize("by", ["decorator", "response", "adopted response"])
async def test_s2_every_kind_of_stream_is_found_by_its_name(by: str) -> None:
    witness = Witness()

    async def by_hand(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(witness.events(), request=request, interval=None)

    async def adopted(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(witness.events(), content_type="text/event-stream")

    decorate = sse_keepalive(interval=None)
    view = {"decorator": decorate(witness.view()), "response": by_hand, "adopted response": decorate(adopted)}[by]
    with operator("named" if by == "decorator" else "the-view", interval=QUICK):
        async with answering(view) as exchange:
            await exchange.until(has(KEEP_ALIVE))
            witness.go_on.set()
            await exchange.finish()


# Changes.


async def test_s4_an_open_stream_falls_silent_speaks_again_and_changes_its_frames() -> None:
    witness = Witness()
    blocked = Blocked(lambda message: False)
    async with answering(witness.view(interval=QUICK), before_send=blocked) as exchange:
        await exchange.until(has(KEEP_ALIVE))
        with operator(keep_alive=False):
            await asyncio.sleep(0)  # its turn
            sent = len(exchange.chunks)
            await asyncio.sleep(20 * QUICK)
            assert len(exchange.chunks) <= sent + 1
            with operator(interval=2 * QUICK, frame="EVENT"):
                await exchange.until(has(EVENT.encode(), 2))
        sent = exchange.chunks.count(KEEP_ALIVE)
        await exchange.until(has(KEEP_ALIVE, sent + 1))
        witness.go_on.set()
        await exchange.finish()
    assert witness.journal == ["started", "cleaned up"]
    assert exchange.body.replace(KEEP_ALIVE, b"").replace(EVENT.encode(), b"") == b"data: 1\n\ndata: 2\n\n"


async def test_s4_a_change_of_another_endpoint_changes_nothing() -> None:
    witness = Witness()
    async with answering(witness.view(interval=QUICK)) as exchange:
        await exchange.until(has(KEEP_ALIVE))
        with operator("other", is_open=False), operator("the-view", is_open=False):
            sent = exchange.chunks.count(KEEP_ALIVE)
            await exchange.until(has(KEEP_ALIVE, sent + 2))
        witness.go_on.set()
        await exchange.finish()
    assert b"data: 2" in exchange.body


async def test_s4_while_many_streams_obey_the_loop_serves_others_too() -> None:
    assert AT_ONCE <= 500
    told: list[Switch] = []
    opened = [OpenStream("named", told.append) for _ in range(5 * AT_ONCE // 2)]
    assert told == [AS_IN_CODE] * len(opened)
    told.clear()
    with operator(keep_alive=False):
        for _ in range(5):
            before = len(told)
            await asyncio.sleep(0)
            assert len(told) <= before + AT_ONCE
        assert told == [Switch(keep_alive=False)] * len(opened)
    for stream in opened:
        stream.close()


async def test_s4_streams_that_are_closed_or_dropped_meanwhile_are_not_told_any_more() -> None:
    told: list[Switch] = []
    opened = [OpenStream("named", told.append) for _ in range(2 * AT_ONCE)]
    told.clear()
    with operator(keep_alive=False):
        async with asyncio.timeout(TIME_LIMIT):
            while not told:
                await asyncio.sleep(0)
        closed = opened[AT_ONCE // 2 :]
        for stream in closed:
            stream.close()
        opened.clear()
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(told) == AT_ONCE


@pytest.mark.parametrize("middleware", [[], [WRAPPING], [GZIP]], ids=["", "a generator around it", "GZip"])
async def test_s3_an_open_stream_ends_in_order(middleware: list[str]) -> None:
    witness = Witness()
    async with answering(witness.view(), middleware=middleware, journal=witness.journal) as exchange:
        await exchange.until(has(b"data: 1\n\n"))
        with operator(is_open=False):
            await exchange.finish()
    assert exchange.is_complete
    assert exchange.body == b"data: 1\n\n"
    assert witness.journal == ["started", "cleaned up", "handler returned"]


async def test_s3_every_open_stream_ends_and_new_ones_open_again() -> None:
    witnesses = [Witness() for _ in range(20)]
    exchanges: list[Exchange] = []
    for witness in witnesses:
        with serving(witness.view()) as handler:
            exchanges.append(Exchange(handler))
            await exchanges[-1].until(has(b"data: 1\n\n"))
    with operator(is_open=False):
        for exchange in exchanges:
            await exchange.finish()
    assert {tuple(witness.journal) for witness in witnesses} == {("started", "cleaned up")}
    again = Witness()
    again.go_on.set()
    assert (await get(again.view())).body == b"data: 1\n\ndata: 2\n\n"


async def test_s3_a_stream_that_was_stopped_ends_even_if_it_is_opened_again_at_once() -> None:
    """Its end has been promised to whoever has pressed the button; its client comes again by itself."""
    witness = Witness()
    async with answering(witness.view(interval=QUICK)) as exchange:
        await exchange.until(has(KEEP_ALIVE))
        with operator(is_open=False):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await exchange.finish()
    assert exchange.is_complete


async def test_s3_a_stream_that_is_stopped_while_its_headers_go_out_ends_without_being_started() -> None:
    witness = Witness()
    blocked = Blocked(is_start)
    async with answering(witness.view(), before_send=blocked) as exchange:
        await blocked.reached.wait()
        with operator(is_open=False):
            blocked.released.set()
            await exchange.finish()
    assert exchange.status == 200
    assert exchange.is_complete
    assert exchange.body == b""
    assert witness.journal == []


# S3: what new requests are told.


def fail(what: str) -> None:
    raise AssertionError(what)


async def of_a_generator(request: HttpRequest) -> AsyncIterator[str]:
    fail("The view was called.")
    yield ""


async def of_an_iterator(request: HttpRequest) -> AsyncIterator[str]:
    raise AssertionError("The view was called.")


def of_a_thread(request: HttpRequest) -> AsyncIterator[str]:
    raise AssertionError("The view was called.")


class OfAMethod(View):
    async def get(self, request: HttpRequest) -> AsyncIterator[str]:
        raise AssertionError("The view was called.")


class OfAThreadsMethod(View):
    def get(self, request: HttpRequest) -> AsyncIterator[str]:
        raise AssertionError("The view was called.")


def decorated(view_class: type[View], method: str, times: int = 1) -> Callable[..., Any]:
    """Return the view of a subclass whose method is decorated, as often as that."""
    subclass: Any = type(view_class.__name__, (view_class,), {})
    for _ in range(times):
        subclass = method_decorator(NAMED, name=method)(subclass)
    view: Callable[..., Any] = subclass.as_view()
    return view


class FrameworkRequest:
    """A request of Django REST framework, as far as it can be told from Django's."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


NAMED = sse_keepalive(endpoint="named")


@NAMED
def of_a_framework(request: FrameworkRequest) -> AsyncIterator[str]:
    raise AssertionError("The view was called.")


@NAMED
async def of_an_asynchronous_framework(request: FrameworkRequest) -> AsyncIterator[str]:
    raise AssertionError("The view was called.")


async def asynchronous_api_view(request: HttpRequest) -> Any:
    return await of_an_asynchronous_framework(FrameworkRequest(request))


async def made_by_hand(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(refused_events(), request=request, endpoint="named", headers={"X-Secret": "1"})


async def made_by_hand_for_a_framework(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(refused_events(), request=FrameworkRequest(request), endpoint="named")  # type: ignore[arg-type]


@sse_keepalive(endpoint="named")
def called_by_another(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(refused_events(), headers={"X-Secret": "1"})


async def made_in_a_function_on_the_loop(request: HttpRequest) -> EventStreamResponse:
    response: EventStreamResponse = called_by_another(request)
    return response


async def made_by_hand_without_a_request(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(refused_events(), endpoint="named")


def made_by_hand_in_a_thread(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(refused_events(), request=request, endpoint="named")


async def refused_events() -> AsyncIterator[str]:
    fail("The stream was started.")
    yield ""


NEVER_CALLED = [
    pytest.param(NAMED(of_a_generator), id="a generator"),
    pytest.param(NAMED(of_an_iterator), id="a coroutine function"),
    pytest.param(NAMED(of_a_thread), id="a function"),
    pytest.param(NAMED(OfAMethod.as_view()), id="as_view"),
    pytest.param(decorated(OfAMethod, "dispatch"), id="dispatch"),
    pytest.param(decorated(OfAMethod, "dispatch", 2), id="dispatch, twice"),
    pytest.param(decorated(OfAThreadsMethod, "dispatch"), id="dispatch in a thread"),
    pytest.param(decorated(OfAMethod, "get"), id="a method"),
    pytest.param(decorated(OfAThreadsMethod, "get"), id="a method in a thread"),
    pytest.param(sse_keepalive(NAMED(of_a_generator)), id="an inner decorator"),
    pytest.param(lambda request: of_a_framework(FrameworkRequest(request)), id="a framework"),
    pytest.param(asynchronous_api_view, id="an asynchronous framework"),
]
MADE = [
    pytest.param(made_by_hand, id="made by hand"),
    pytest.param(made_by_hand_for_a_framework, id="made by hand for a framework"),
    pytest.param(made_by_hand_in_a_thread, id="made by hand in a thread"),
    pytest.param(made_in_a_function_on_the_loop, id="made in a function on the loop"),
    pytest.param(sse_keepalive(made_by_hand), id="made by hand and decorated"),
    pytest.param(sse_keepalive(endpoint="other")(made_by_hand), id="made by hand and decorated with another name"),
    pytest.param(
        sse_keepalive(endpoint="other")(made_by_hand_without_a_request),
        id="made by hand without a request and decorated",
    ),
]


@pytest.mark.parametrize("view", [*NEVER_CALLED, *MADE])
@pytest.mark.parametrize("middleware", [[], [WRAPPING, GZIP]], ids=["", "with middleware"])
async def test_s3_a_stopped_endpoint_refuses_without_having_done_anything(
    view: Callable[..., Any], middleware: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    gzip = {"Accept-Encoding": "gzip"}
    with operator(is_open=False):
        to_browsers = await get(view, headers={**BROWSER, **gzip}, middleware=middleware)
        to_others = await get(view, headers={"Accept": "*/*", **gzip}, middleware=middleware)
        head = await get(view, method="HEAD", headers={**BROWSER, **gzip}, middleware=middleware)
    assert [exchange.status for exchange in (to_browsers, to_others, head)] == [204, 503, 204]
    for exchange in (to_browsers, to_others, head):
        assert exchange.is_complete
        assert exchange.body == b""
        assert exchange.headers["cache-control"] == "no-store"
        assert "x-secret" not in exchange.headers
        assert "x-accel-buffering" not in exchange.headers
        assert "content-encoding" not in exchange.headers
    assert int(to_others.headers["retry-after"]) > 0
    assert "retry-after" not in to_browsers.headers
    assert "content-type" not in to_browsers.headers
    assert caplog.records == []


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/event-stream", 204),
        ("Text/Event-Stream", 204),
        ("text/event-stream, */*", 204),
        ("application/json, text/event-stream", 204),
        ("application/json,text/event-stream;q=0.5", 204),
        ("text/event-stream; charset=utf-8", 204),
        ("text/event-stream ;q=0.9", 204),
        ("text/event-stream;q=nonsense", 204),
        ("text/event-stream;q=0", 503),
        ("*/*", 503),
        ("text/*", 503),
        ("application/json", 503),
        ("text/event-stream-of-mine", 503),
        ("x-text/event-stream", 503),
        ("", 503),
        (",", 503),
        (None, 503),
    ],
)
@pytest.mark.parametrize("view", [pytest.param(NAMED(of_a_generator), id="decorated"), made_by_hand])
async def test_s3_clients_of_event_streams_get_204_and_all_others_503(
    accept: str | None, status: int, view: Callable[..., Any]
) -> None:
    with operator(is_open=False):
        exchange = await get(view, headers={} if accept is None else {"Accept": accept})
    assert exchange.status == status


async def test_s3_a_refusal_is_no_error_and_sends_no_mail(
    caplog: pytest.LogCaptureFixture, mailoutbox: list[Any]
) -> None:
    with operator(is_open=False):
        for view in (NAMED(of_a_generator), NAMED(of_a_thread), made_by_hand):
            assert (await get(view, ADMINS=["admin@example.com"], DEBUG=False)).status == 503
    assert caplog.records == []
    assert mailoutbox == []


async def test_s3_an_error_of_the_view_is_still_one(caplog: pytest.LogCaptureFixture) -> None:
    with operator("other", is_open=False):
        assert (await get(NAMED(of_an_iterator))).status == 500
    assert [record.name for record in caplog.records] == ["django.request"] * len(caplog.records)
    assert caplog.records


async def test_s3_what_is_no_stream_is_refused_as_well_for_its_view_is_not_asked() -> None:
    called: list[HttpRequest] = []

    @sse_keepalive
    async def view(request: HttpRequest) -> HttpResponse:
        called.append(request)
        return HttpResponseForbidden("no")

    with operator("the-view", is_open=False):
        assert (await get(view)).status == 503
    assert called == []
    assert (await get(view)).status == 403


async def test_s3_the_name_of_the_response_counts_where_the_decorators_is_another() -> None:
    @sse_keepalive(endpoint="of the decorator")
    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(one_event(), endpoint="of the response")

    with operator("of the response", is_open=False):
        assert (await get(view, headers=BROWSER)).status == 204
    with operator("of the decorator", is_open=False):
        assert (await get(view, headers=BROWSER)).status == 204
    with operator("the-view", is_open=False):
        assert (await get(view, headers=BROWSER)).body == b"data: 1\n\n"


async def one_event() -> AsyncIterator[str]:
    yield "data: 1\n\n"


@pytest.mark.parametrize("between", [lambda view: view, never_cache, csrf_exempt, login_not_required])
async def test_s3_the_name_of_the_inner_decorator_counts_where_the_outers_is_another(between: Any) -> None:
    async def stream(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(one_event())

    view = sse_keepalive(endpoint="outer")(between(sse_keepalive(endpoint="inner")(stream)))
    for name, status in (("inner", 204), ("outer", 200), ("the-view", 200)):
        with operator(name, is_open=False):
            assert (await get(view, headers=BROWSER)).status == status


async def test_s3_the_name_of_the_url_counts_where_only_the_decorator_knows_the_request() -> None:
    @sse_keepalive
    def called_by_another(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(refused_events())

    async def view(request: HttpRequest) -> EventStreamResponse:
        response: EventStreamResponse = called_by_another(request)
        return response

    with operator("the-view", is_open=False):
        assert (await get(view, headers=BROWSER)).status == 204


async def test_s3_a_response_that_says_that_it_is_refused_stays_so() -> None:
    """Though its endpoint has been opened when its status is on the wire."""
    with operator(is_open=False):
        response = EventStreamResponse(refused_events(), endpoint="named")
    assert response.status_code == 503
    assert [chunk async for chunk in response] == [b""]


async def test_s3_a_refused_response_that_gets_another_name_is_itself_again() -> None:
    """A decorator completes what the response has said; then it is the completed name that counts."""
    request = RequestFactory().get("/")
    request.resolver_match = match("stopped")
    with operator("stopped", is_open=False):
        response = EventStreamResponse(one_event(), request=request, headers={"X-Own": "1"}, status=201)
        assert response.status_code == 503

        @sse_keepalive(endpoint="open")
        def view(request: HttpRequest) -> EventStreamResponse:
            return response

        assert view(request) is response
        assert response.status_code == 201
        assert response["X-Own"] == "1"
        assert response["Content-Type"] == "text/event-stream"
        assert "Retry-After" not in response
        assert [chunk async for chunk in response] == [b"", b"data: 1\n\n"]


@pytest.mark.parametrize("times", [1, 2])
async def test_s3_the_coroutine_of_a_view_that_is_refused_is_closed(times: int) -> None:
    """That of a class-based view exists already when its endpoint is found to be stopped."""
    view = decorated(OfAMethod, "dispatch", times)
    with warnings.catch_warnings(record=True) as caught, operator(is_open=False):
        warnings.simplefilter("always")
        response = await view(RequestFactory().get("/", headers=BROWSER))
    assert response.status_code == 204
    assert [str(warning.message) for warning in caught] == []


def test_s3_a_framework_that_gives_an_awaitable_which_is_no_coroutine_is_refused_too() -> None:
    async def main() -> int:
        future = asyncio.get_running_loop().create_future()

        @sse_keepalive(endpoint="named")
        def view(request: HttpRequest) -> "asyncio.Future[Any]":
            return future

        response = await view(RequestFactory().get("/"))
        status: int = response.status_code
        return status

    with operator(is_open=False):
        assert asyncio.run(main()) == 503


def test_s3_under_wsgi_a_stopped_endpoint_refuses_as_well() -> None:
    with operator(is_open=False):
        for view in (NAMED(of_a_generator), NAMED(of_a_thread)):
            with serving(view):
                assert Client().get("/", headers=BROWSER).status_code == 204
                assert Client().get("/", headers={"Accept": "*/*"}).status_code == 503


async def test_s3_the_test_client_sees_it() -> None:
    with serving(NAMED(of_a_generator)), operator(is_open=False):
        assert (await AsyncClient().get("/", headers=BROWSER)).status_code == 204


@pytest.mark.django_db(transaction=True)
def test_s3_a_decision_in_the_table_stops_and_opens_and_its_interval_is_in_force() -> None:
    row = Endpoint.objects.create(name="named", is_open=False)
    view = layered(inner={"interval": 20})
    with serving(NAMED(of_a_generator)):
        assert asyncio.run(get(NAMED(of_a_generator), headers=BROWSER)).status == 204
    row.is_open = True
    row.interval = 45
    row.frame = "LINE"
    row.save()
    assert frames_of(view) == [(45.0, LINE.encode()), (90.0, LINE.encode())]
    row.keep_alive = False
    row.save()
    assert frames_of(view) == []


# S1: names.


def match(name: str | None, namespaces: list[str | None] | None = None) -> ResolverMatch:
    return ResolverMatch(of_a_thread, (), {}, url_name=name, namespaces=namespaces)


@pytest.mark.parametrize(
    ("matched", "options", "name"),
    [
        (match("news"), Options(), "news"),
        (match("news", ["shop", "eu"]), Options(), "shop:eu:news"),
        (match(None), Options(), "tests.test_switched_streams.of_a_thread"),
        (match("news"), Options(endpoint="said"), "said"),
        (None, Options(endpoint="said"), "said"),
        (None, Options(), None),
        (match("x" * 300), Options(), "x" * LONGEST_NAME),
    ],
)
def test_s1_an_endpoint_is_named_by_code_or_else_by_its_url(
    matched: ResolverMatch | None, options: Options, name: str | None, rf: RequestFactory
) -> None:
    request = rf.get("/")
    request.resolver_match = matched
    assert endpoint_of(request, options) == name
    assert endpoint_of(FrameworkRequest(request), options) == name  # type: ignore[arg-type]


def test_s1_without_a_request_there_is_no_name() -> None:
    assert endpoint_of(None, Options()) is None
    assert endpoint_of(None, Options(endpoint="said")) == "said"


@pytest.mark.parametrize("name", ["", "x" * 256, "x\0", "x\ny", "x\ud800", 1, None, b"x"], ids=repr)
def test_s1_a_name_that_no_row_can_have_is_refused_where_it_is_written(name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="endpoint must"):
        sse_keepalive(endpoint=name)
    with pytest.raises((TypeError, ValueError), match="endpoint must"):
        EventStreamResponse(one_event(), endpoint=name)


async def test_s1_what_code_says_is_remembered_for_the_admin_for_a_thousand_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "_said", {})

    @sse_keepalive(interval=20)
    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(one_event(), frame="LINE")

    await get(view)
    assert said_in_code("the-view") == Options(interval=20, frame="LINE")
    assert said_in_code("other") is None
    for number in range(MOST_NAMES):
        remember(f"name {number}", Options())
    assert said_in_code(f"name {MOST_NAMES - 2}") == Options()
    assert said_in_code(f"name {MOST_NAMES - 1}") is None
    remember("the-view", Options(interval=25))
    assert said_in_code("the-view") == Options(interval=25)


async def test_s1_a_stream_that_is_nowhere_known_runs_as_ever() -> None:
    async with asyncio.timeout(TIME_LIMIT):
        assert [chunk async for chunk in EventStreamResponse(one_event())] == [b"", b"data: 1\n\n"]
    blocked = Blocked(has_body)
    witness = Witness()
    async with answering(witness.view(), before_send=blocked) as exchange:
        await blocked.reached.wait()
        with operator(is_open=False):
            blocked.released.set()
            await exchange.finish()
    assert witness.journal == ["started", "cleaned up"]
