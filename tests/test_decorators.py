"""``sse_keepalive``: on every kind of view that streams, together with other decorators, and on views that do not."""

import asyncio
import json
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial, wraps
from io import BytesIO
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseForbidden,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import COMMENT, EVENT, LINE
from sse_keepalive.http import EventStreamResponse
from tests.asgi import TIME_LIMIT, get, serving

KEEP_ALIVE = COMMENT.encode()
EVENTS = b"data: 1\n\ndata: 2\n\n"

#: The views' seconds of silence before a keep-alive. Each view waits until it has seen that one was sent.
INTERVAL = 0.002

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


async def two_events() -> AsyncIterator[str]:
    """Yield two events with a silence of many intervals between them."""
    yield "data: 1\n\n"
    await asyncio.sleep(20 * INTERVAL)
    yield "data: 2\n\n"


def plain_stream(content_type: str = "text/event-stream", **options: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(two_events(), content_type=content_type, **options)


async def assert_streams(view: Callable[..., Any]) -> None:
    """Assert that Django serves the view as an event stream that is kept alive."""
    exchange = await get(view, SSE_KEEPALIVE_INTERVAL=INTERVAL)
    await exchange.finish()
    assert exchange.status == 200
    assert exchange.headers["content-type"].lower().startswith("text/event-stream")
    assert exchange.headers["x-accel-buffering"] == "no"
    assert KEEP_ALIVE in exchange.chunks
    assert exchange.body.replace(KEEP_ALIVE, b"") == EVENTS
    # HEAD is known through the request, so the decorator must have found it.
    exchange = await get(view, method="HEAD")
    await exchange.finish()
    assert exchange.status == 200
    assert exchange.body == b""


# D1, D2: what it can be put on.


async def generator_view(request: HttpRequest) -> AsyncIterator[str]:
    async for event in two_events():
        yield event


async def iterator_view(request: HttpRequest) -> AsyncIterator[str]:
    return two_events()


def synchronous_iterator_view(request: HttpRequest) -> AsyncIterator[str]:
    return two_events()


async def event_stream_view(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(two_events())


def synchronous_event_stream_view(request: HttpRequest) -> EventStreamResponse:
    return EventStreamResponse(two_events())


async def streaming_view(request: HttpRequest) -> StreamingHttpResponse:
    return plain_stream()


def synchronous_streaming_view(request: HttpRequest) -> StreamingHttpResponse:
    return plain_stream("Text/Event-Stream ; charset=utf-8")


class CallableView:
    async def __call__(self, request: HttpRequest) -> StreamingHttpResponse:
        return plain_stream()


class CallableGeneratorView:
    async def __call__(self, request: HttpRequest) -> AsyncIterator[str]:
        async for event in two_events():
            yield event


async def view_of_more(more: str, request: HttpRequest) -> AsyncIterator[str]:
    assert more == "more"
    async for event in two_events():
        yield event


VIEWS = [
    generator_view,
    iterator_view,
    synchronous_iterator_view,
    event_stream_view,
    synchronous_event_stream_view,
    streaming_view,
    synchronous_streaming_view,
]
FORMS: list[Decorator] = [sse_keepalive, sse_keepalive()]


@pytest.mark.parametrize("form", FORMS, ids=["bare", "called"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
async def test_d1_d2_every_kind_of_view_streams(view: Callable[..., Any], form: Decorator) -> None:
    decorated = form(view)
    assert decorated.__name__ == view.__name__
    await assert_streams(decorated)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_d3_a_view_that_is_asynchronous_stays_so(view: Callable[..., Any]) -> None:
    is_generator = view is generator_view
    assert iscoroutinefunction(sse_keepalive(view)) == (iscoroutinefunction(view) or is_generator)


async def test_d3_a_partial_streams() -> None:
    decorated = sse_keepalive(partial(view_of_more, "more"))
    assert iscoroutinefunction(decorated)
    await assert_streams(decorated)


@pytest.mark.parametrize("view", [CallableView(), CallableGeneratorView()], ids=["coroutine", "generator"])
async def test_d3_an_object_with_an_asynchronous_call_streams(view: Callable[..., Any]) -> None:
    decorated = sse_keepalive(view)
    assert iscoroutinefunction(decorated)
    await assert_streams(decorated)


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "TEXT/EVENT-STREAM", "text/event-stream; charset=utf-8; a=b"]
)
async def test_d2_the_content_type_may_be_of_any_case_and_have_parameters(
    content_type: str, rf: RequestFactory
) -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return plain_stream(content_type)

    response = await view(rf.get("/"))
    assert response["Content-Type"] == content_type
    assert response["X-Accel-Buffering"] == "no"


async def test_d2_arguments_of_the_url_reach_the_view(rf: RequestFactory) -> None:
    @sse_keepalive
    async def view(request: HttpRequest, first: int, *, second: str) -> AsyncIterator[str]:
        yield f"data: {first} {second}\n\n"

    response = await view(rf.get("/"), 1, second="two")
    assert [chunk async for chunk in response] == [b"", b"data: 1 two\n\n"]


# D2: what passes through.


class SubclassOfStream(StreamingHttpResponse):
    """A view's own class of response, with what Django gives to responses later."""

    mark = "of its class"

    def own_method(self) -> str:
        return self.mark


def already_compressed() -> StreamingHttpResponse:
    return plain_stream(headers={"Content-Encoding": "gzip"})


UNTOUCHED: list[Callable[[], Any]] = [
    lambda: HttpResponseRedirect("/login/"),
    lambda: JsonResponse({"error": "no such channel"}, status=400),
    lambda: HttpResponse("data: x\n\n", content_type="text/event-stream"),
    lambda: plain_stream("application/x-ndjson"),
    lambda: plain_stream("text/event-stream-of-another-kind"),
    HttpResponseForbidden,
    lambda: FileResponse(BytesIO(b"x"), filename="x.txt"),
    already_compressed,
    lambda: None,
    lambda: "text",
    lambda: ["a", "list"],
    lambda: {"a": "dictionary"},
]


@pytest.mark.parametrize("make", UNTOUCHED)
@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "synchronous"])
async def test_d2_anything_else_passes_through_untouched(
    make: Callable[[], Any], is_async: bool, rf: RequestFactory
) -> None:
    result = make()
    before = (type(result), dict(result.headers) if isinstance(result, HttpResponse | StreamingHttpResponse) else None)

    async def view(request: HttpRequest) -> Any:
        return result

    def synchronous_view(request: HttpRequest) -> Any:
        return result

    returned = sse_keepalive(view if is_async else synchronous_view)(rf.get("/"))
    returned = await returned if is_async else returned
    assert returned is result
    if isinstance(result, HttpResponse | StreamingHttpResponse):
        assert (type(result), dict(result.headers)) == before
        result.close()


async def test_d2_a_stream_that_says_that_it_is_not_encoded_is_kept_alive() -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return plain_stream(headers={"Content-Encoding": "identity"})  # as views do to keep GZipMiddleware off

    await assert_streams(view)


async def test_d2_a_views_own_response_survives_with_all_that_it_has(rf: RequestFactory) -> None:
    journal: list[str] = []
    made: list[SubclassOfStream] = []

    @sse_keepalive
    async def view(request: HttpRequest) -> SubclassOfStream:
        response = SubclassOfStream(
            two_events(),
            content_type="text/event-stream",
            status=203,
            reason="By another",
            headers={"X-Own": "1", "Cache-Control": "private"},
        )
        response.set_cookie("seen", "yes")
        response._resource_closers.append(lambda: journal.append("closed"))  # type: ignore[attr-defined]
        response.mark = "of its own"
        made.append(response)
        return response

    response = await view(rf.get("/"))
    assert response is made[0]
    assert isinstance(response, SubclassOfStream)
    assert type(response).__name__ == "SubclassOfStream"
    assert response.own_method() == "of its own"
    assert (response.status_code, response.reason_phrase) == (203, "By another")
    assert response.cookies["seen"].value == "yes"
    assert response["X-Own"] == "1"
    assert response["Cache-Control"] == "private"
    assert response["X-Accel-Buffering"] == "no"
    assert b"".join([chunk async for chunk in response]) == EVENTS
    response.close()
    assert journal == ["closed"]


# D3: class-based views.


def on_get(decorator: Any) -> type[View]:
    class OnGet(View):
        @method_decorator(decorator)
        async def get(self, request: HttpRequest) -> StreamingHttpResponse:
            return plain_stream()

    return OnGet


def on_dispatch(decorator: Any) -> type[View]:
    @method_decorator(decorator, name="dispatch")
    class OnDispatch(View):
        async def get(self, request: HttpRequest) -> StreamingHttpResponse:
            return plain_stream()

    return OnDispatch


def on_generator(decorator: Any) -> type[View]:
    class OnGenerator(View):
        @method_decorator(decorator)
        async def get(self, request: HttpRequest) -> AsyncIterator[str]:
            async for event in two_events():
                yield event

    return OnGenerator


def on_dispatch_of_generator(decorator: Any) -> type[View]:
    @method_decorator(decorator, name="dispatch")
    class OnDispatchOfGenerator(View):
        async def get(self, request: HttpRequest) -> AsyncIterator[str]:
            async for event in two_events():
                yield event

    return OnDispatchOfGenerator


def on_synchronous_get(decorator: Any) -> type[View]:
    class OnSynchronousGet(View):
        @method_decorator(decorator)
        def get(self, request: HttpRequest) -> StreamingHttpResponse:
            return plain_stream()

    return OnSynchronousGet


def without_method_decorator(decorator: Any) -> type[View]:
    class WithoutMethodDecorator(View):
        @decorator  # type: ignore[untyped-decorator]
        async def get(self, request: HttpRequest) -> AsyncIterator[str]:
            async for event in two_events():
                yield event

    return WithoutMethodDecorator


@pytest.mark.parametrize("form", FORMS, ids=["bare", "called"])
@pytest.mark.parametrize(
    "make",
    [on_get, on_dispatch, on_generator, on_dispatch_of_generator, on_synchronous_get, without_method_decorator],
    ids=lambda make: make.__name__,
)
async def test_d3_class_based_views_stream(make: Callable[[Any], type[View]], form: Decorator) -> None:
    await assert_streams(make(form).as_view())


@pytest.mark.parametrize("make", [on_get, on_dispatch], ids=lambda make: make.__name__)
def test_d3_a_class_based_view_stays_asynchronous(make: Callable[[Any], type[View]]) -> None:
    assert make(sse_keepalive).view_is_async
    assert iscoroutinefunction(make(sse_keepalive).as_view())


async def test_d3_as_view_streams_and_keeps_what_django_puts_on_it() -> None:
    class Plain(View):
        async def get(self, request: HttpRequest) -> StreamingHttpResponse:
            return plain_stream()

    view = sse_keepalive(Plain.as_view())
    assert iscoroutinefunction(view)
    assert view.view_class is Plain  # type: ignore[attr-defined]
    await assert_streams(view)


@pytest.mark.parametrize("make", [on_get, on_dispatch, on_synchronous_get], ids=lambda make: make.__name__)
async def test_d3_other_methods_of_a_class_based_view_are_answered_as_ever(make: Callable[[Any], type[View]]) -> None:
    exchange = await get(make(sse_keepalive).as_view(), method="POST")
    await exchange.finish()
    assert exchange.status == 405


# D3: with other decorators.


#: What login_required needs to be able to redirect.
AUTH = ["django.contrib.auth", "django.contrib.contenttypes", "sse_keepalive"]


def as_user(view: Callable[..., Any], *, is_authenticated: bool) -> Callable[..., Any]:
    """Put on the request what AuthenticationMiddleware would, without a database."""
    user = SimpleNamespace(is_authenticated=is_authenticated)

    async def auser() -> SimpleNamespace:
        return user

    @wraps(view)
    def with_user(request: Any) -> Any:
        request.user, request.auser = user, auser
        return view(request)

    return markcoroutinefunction(with_user) if iscoroutinefunction(view) else with_user


OTHERS = [login_required, require_GET, csrf_exempt, never_cache]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
@pytest.mark.parametrize("order", ["under", "over"])
@pytest.mark.parametrize("view", [streaming_view, generator_view], ids=lambda view: view.__name__)
async def test_d3_it_works_under_and_over_other_decorators(view: Any, order: str, other: Any) -> None:
    if other is never_cache and order == "over":
        view = streaming_view  # a generator is no response, whose headers never_cache could set
    decorated = other(sse_keepalive(view)) if order == "under" else sse_keepalive(other(view))
    if other is require_GET:
        exchange = await get(decorated, method="POST")
        assert exchange.status == 405
        exchange = await get(decorated, SSE_KEEPALIVE_INTERVAL=INTERVAL)
        assert exchange.body.replace(KEEP_ALIVE, b"") == EVENTS
        return
    if other is csrf_exempt:
        assert getattr(decorated, "csrf_exempt", False)
    if other is login_required:
        exchange = await get(as_user(decorated, is_authenticated=False), INSTALLED_APPS=AUTH)
        assert exchange.status == 302
        assert exchange.headers["location"].startswith("/accounts/login/")
    await assert_streams(as_user(decorated, is_authenticated=True))
    if other is never_cache:
        exchange = await get(decorated)
        assert "no-store" in exchange.headers["cache-control"]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
def test_d3_under_and_over_other_decorators_a_view_stays_asynchronous(other: Any) -> None:
    assert iscoroutinefunction(other(sse_keepalive(generator_view)))
    assert iscoroutinefunction(sse_keepalive(other(streaming_view)))


@pytest.mark.parametrize("make", [on_get, on_dispatch, on_dispatch_of_generator], ids=lambda make: make.__name__)
async def test_d3_anonymous_users_are_redirected_from_a_class_based_view(make: Callable[[Any], type[View]]) -> None:
    view = login_required(make(sse_keepalive).as_view())
    exchange = await get(as_user(view, is_authenticated=False), INSTALLED_APPS=AUTH)
    assert exchange.status == 302
    await assert_streams(as_user(view, is_authenticated=True))


# D4: precedence.


async def first_frame_of(view: Callable[..., Any], request: HttpRequest) -> bytes:
    response = await view(request)
    async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as chunks:
        assert await anext(chunks) == b""
        return cast("bytes", await anext(chunks))


async def silent() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


NEAREST = {
    "the response's": ("COMMENT", "LINE", "EVENT", "EVENT", COMMENT),
    "the inner decorator's": (None, "LINE", "EVENT", "EVENT", LINE),
    "the outer decorator's": (None, None, "EVENT", "COMMENT", EVENT),
    "the setting's": (None, None, None, "LINE", LINE),
    "the default": (None, None, None, None, COMMENT),
}


@pytest.mark.parametrize(
    ("kind", "response", "inner", "outer", "setting", "first"),
    [
        pytest.param(kind, *values, id=f"{kind}, {winner}")
        for kind in ("event stream", "plain stream", "generator")
        for winner, values in NEAREST.items()
        if kind == "event stream" or values[0] is None  # the others have no options
    ],
)
async def test_d4_what_is_nearest_to_the_stream_wins(
    kind: str,
    response: str | None,
    inner: str | None,
    outer: str | None,
    setting: str | None,
    first: str,
    rf: RequestFactory,
) -> None:
    async def view(request: HttpRequest) -> Any:
        if kind == "event stream":
            return EventStreamResponse(silent(), **({"frame": response} if response else {}))  # type: ignore[arg-type]
        if kind == "plain stream":
            return StreamingHttpResponse(silent(), content_type="text/event-stream")
        return silent()

    def frame(name: str | None) -> Any:
        return {"frame": name} if name else {}

    decorated = sse_keepalive(**frame(outer))(sse_keepalive(**frame(inner))(view))
    settings: dict[str, Any] = {"SSE_KEEPALIVE_FRAME": setting} if setting else {}
    with override_settings(SSE_KEEPALIVE_INTERVAL=INTERVAL, **settings):
        assert await first_frame_of(decorated, rf.get("/")) == first.encode()


async def test_d4_each_option_is_looked_for_by_itself(rf: RequestFactory) -> None:
    """What the response leaves open comes from the decorators, one option from here, one from there."""

    @sse_keepalive(first_interval=3600, frame="LINE", interval=3600)
    @sse_keepalive(first_interval=0)
    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(silent(), interval=1800)

    assert await first_frame_of(view, rf.get("/")) == LINE.encode()


@pytest.mark.parametrize("off", [None, 0, False])
async def test_d4_off_is_an_answer_too(off: Any, rf: RequestFactory) -> None:
    @sse_keepalive(interval=INTERVAL)
    @sse_keepalive(interval=off)
    async def view(request: HttpRequest) -> AsyncIterator[str]:
        async for event in two_events():
            yield event

    with override_settings(SSE_KEEPALIVE_INTERVAL=INTERVAL):
        response = await view(rf.get("/"))
    assert [chunk async for chunk in response] == [b"", b"data: 1\n\n", b"data: 2\n\n"]


async def test_d4_applied_twice_there_is_one_stream_with_one_keep_alive(rf: RequestFactory) -> None:
    inner = sse_keepalive(streaming_view)
    outer = sse_keepalive(inner)
    made = await inner(rf.get("/"))
    stream = made._stream

    @sse_keepalive
    async def view(request: HttpRequest) -> Any:
        return made

    assert await view(rf.get("/")) is made
    assert made._stream is stream
    assert type(made).__mro__.count(StreamingHttpResponse) == 1
    made.close()
    await assert_streams(outer)


async def test_d4_on_error_of_the_decorator_is_used_where_the_response_has_none(rf: RequestFactory) -> None:
    told: list[str] = []

    async def failing() -> AsyncIterator[str]:
        yield ""
        raise KeyError

    for own in (False, True):

        @sse_keepalive(on_error=lambda error: told.append("decorator's"))
        async def view(request: HttpRequest, own: bool = own) -> EventStreamResponse:
            options: Any = {"on_error": lambda error: told.append("response's")} if own else {}
            return EventStreamResponse(failing(), **options)

        with pytest.raises(KeyError):
            [chunk async for chunk in await view(rf.get("/"))]
    assert told == ["decorator's", "response's"]


async def test_d1_settings_are_those_of_the_request(rf: RequestFactory) -> None:
    async def silent_view(request: HttpRequest) -> AsyncIterator[str]:
        async for event in silent():
            yield event

    view = sse_keepalive(silent_view)
    for name, wire in (("LINE", LINE), ("EVENT", EVENT)):
        with override_settings(SSE_KEEPALIVE_INTERVAL=INTERVAL, SSE_KEEPALIVE_FRAME=name):
            assert await first_frame_of(view, rf.get("/")) == wire.encode()


# D2: what cannot be streamed yet says so.


def test_d2_a_synchronous_generator_function_is_refused_where_it_is_decorated() -> None:
    def view(request: HttpRequest) -> Iterator[str]:
        yield "data: x\n\n"

    with pytest.raises(TypeError, match=r"view.*synchronous generator.*async generator"):
        sse_keepalive(view)
    with pytest.raises(TypeError, match="synchronous generator"):
        sse_keepalive(interval=1)(partial(view))


@pytest.mark.parametrize("is_response", [False, True], ids=["iterator", "response"])
@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "synchronous"])
async def test_d2_a_synchronous_iterator_is_refused_when_it_is_returned(
    is_async: bool, is_response: bool, rf: RequestFactory
) -> None:
    def result() -> Any:
        iterator = iter(["data: x\n\n"])
        return StreamingHttpResponse(iterator, content_type="text/event-stream") if is_response else iterator

    async def view(request: HttpRequest) -> Any:
        return result()

    def synchronous_view(request: HttpRequest) -> Any:
        return result()

    async def call(decorated: Callable[..., Any]) -> None:
        returned = decorated(rf.get("/"))
        if is_async:
            await returned

    with pytest.raises(TypeError, match=r"asynchronous iterable.*not list_iterator"):
        await call(sse_keepalive(view if is_async else synchronous_view))


def test_under_wsgi_a_stream_fails_with_what_to_do() -> None:
    with serving(sse_keepalive(synchronous_streaming_view)):
        response = cast("Any", WSGIHandler)()(RequestFactory().get("/").environ, lambda status, headers: None)
        with pytest.raises(ImproperlyConfigured, match=r"WSGI.*ASGI server"):
            iter(response)
        response.close()


@pytest.mark.parametrize("view", [synchronous_streaming_view, streaming_view], ids=lambda view: view.__name__)
def test_under_wsgi_the_test_client_fails_with_what_to_do(view: Any) -> None:
    with serving(sse_keepalive(view)):
        response = cast("StreamingHttpResponse", Client().get("/"))
        with pytest.raises(ImproperlyConfigured, match=r"WSGI.*ASGI server"):
            list(response)
        response.close()


async def test_the_asynchronous_test_client_reads_a_stream() -> None:
    with serving(sse_keepalive(generator_view), SSE_KEEPALIVE_INTERVAL=INTERVAL):
        response: Any = await AsyncClient().get("/")
        assert response.status_code == 200
        assert response["Content-Type"] == "text/event-stream"
        body = b"".join([chunk async for chunk in response.streaming_content])
        assert KEEP_ALIVE in body
        assert body.replace(KEEP_ALIVE, b"") == EVENTS


async def test_the_asynchronous_test_client_may_ask_for_the_headers_alone() -> None:
    with serving(sse_keepalive(generator_view)):
        response: Any = await AsyncClient().head("/")
        assert response["Content-Type"] == "text/event-stream"
        assert list(response.streaming_content) == []
        response.close()


async def test_the_asynchronous_test_client_sees_what_passes_through() -> None:
    @sse_keepalive
    async def view(request: HttpRequest) -> JsonResponse:
        return JsonResponse({"a": 1})

    with serving(view):
        response = await AsyncClient().get("/")
        assert json.loads(response.content) == {"a": 1}


# Wrong options: refused at once, where they are written.


@pytest.mark.parametrize("option", ["interval", "first_interval"])
@pytest.mark.parametrize("value", ["15", "x", True, b"1", [1], 1j])
def test_d1_an_interval_that_is_none_is_refused_where_it_is_written(option: str, value: Any) -> None:
    with pytest.raises(TypeError, match="neither a number of seconds nor a timedelta"):
        sse_keepalive(**{option: value})
    with pytest.raises(TypeError, match="neither a number of seconds nor a timedelta"):
        EventStreamResponse(silent(), **{option: value})


@pytest.mark.parametrize("value", ["ping", "data: x", "id: 1\n\n", ""])
def test_f6_a_frame_that_is_none_is_refused_where_it_is_written(value: str) -> None:
    with pytest.raises(ValueError, match="keep-alive frame"):
        sse_keepalive(frame=value)
    with pytest.raises(ValueError, match="keep-alive frame"):
        EventStreamResponse(silent(), frame=value)


def test_f6_a_frame_that_is_no_text_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="str or bytes"):
        sse_keepalive(frame=cast("Any", 1))


def test_nothing_is_warned_of_when_a_view_is_only_decorated() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for view in VIEWS:
            sse_keepalive(view)


async def text_and_bytes() -> AsyncIterator[Any]:
    yield "data: 1\n\n"
    yield b"data: 2\n\n"


class Shouting(StreamingHttpResponse):
    """A view's own response class, with names that the app uses too, and with its own way to make bytes."""

    def __init__(self) -> None:
        super().__init__(text_and_bytes(), content_type="text/event-stream")
        self.stream = "its own"

    def complete(self) -> str:
        return "its own"

    def make_bytes(self, value: Any) -> bytes:
        return super().make_bytes(value).upper()


class Doubled(StreamingHttpResponse):
    """A view's own response class that makes something else of its content."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in super().__aiter__():
            yield chunk + chunk


async def test_d2_the_views_own_response_class_keeps_its_names_and_its_methods(rf: RequestFactory) -> None:
    @sse_keepalive
    async def shouting(request: HttpRequest) -> Shouting:
        return Shouting()

    response = await shouting(rf.get("/"))
    assert (response.stream, response.complete()) == ("its own", "its own")
    assert [chunk async for chunk in response] == [b"", b"DATA: 1\n\n", b"DATA: 2\n\n"]

    @sse_keepalive
    async def doubled(request: HttpRequest) -> Doubled:
        return Doubled(two_events(), content_type="text/event-stream")

    response = await doubled(rf.get("/"))
    assert [chunk async for chunk in response] == [b"", b"data: 1\n\ndata: 1\n\n", b"data: 2\n\ndata: 2\n\n"]


async def test_d2_an_adopted_stream_is_sent_in_utf_8_whatever_the_sites_charset(rf: RequestFactory) -> None:
    async def umlaut() -> AsyncIterator[str]:
        yield "data: ü\n\n"

    @sse_keepalive
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(umlaut(), content_type="text/event-stream")

    with override_settings(DEFAULT_CHARSET="iso-8859-1"):
        response = await view(rf.get("/"))
        assert [chunk async for chunk in response] == [b"", "data: ü\n\n".encode()]


@pytest.mark.parametrize("misuse", [20, "EVENT", Doubled])
def test_d1_what_is_no_view_is_refused_with_a_hint(misuse: Any) -> None:
    with pytest.raises(TypeError, match=r"interval=20.*method_decorator"):
        sse_keepalive(misuse)


async def test_d4_what_a_view_tells_its_stream_is_not_undone_by_a_decorator_that_adds_nothing(
    rf: RequestFactory,
) -> None:
    async def silent() -> AsyncIterator[str]:
        await asyncio.sleep(0.1)
        yield "data: 1\n\n"

    @sse_keepalive
    async def view(request: HttpRequest) -> EventStreamResponse:
        response = EventStreamResponse(silent())
        response.stream.use(0.01, "LINE")
        return response

    assert LINE.encode() in [chunk async for chunk in await view(rf.get("/"))]


async def test_d3_the_request_of_a_framework_is_seen_through(rf: RequestFactory) -> None:
    class FrameworkRequest:
        def __init__(self, request: HttpRequest) -> None:
            self._request = request

    @sse_keepalive
    async def view(request: FrameworkRequest) -> Any:
        return two_events()

    assert [chunk async for chunk in await view(FrameworkRequest(rf.head("/")))] == [b""]
