"""A client and a server in one: Django's own ASGI handler gets a request, and the test rules over every message."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from types import ModuleType
from typing import IO, Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, StreamingHttpResponse
from django.test import override_settings
from django.urls import path

Message = dict[str, Any]
View = Callable[..., Any]

#: Seconds. No test takes nearly as long; it only ends one that hangs.
TIME_LIMIT: Final = 30.0

GZIP: Final = "django.middleware.gzip.GZipMiddleware"
WRAPPING: Final = "tests.asgi.wrapping_middleware"


class Handler(ASGIHandler):
    """Django's handler, which closes the request's body, as Django before 6.1 does not where the stream raises."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[IO[bytes]] = []

    async def read_body(self, receive: Any) -> IO[bytes]:
        body = await super().read_body(receive)
        self.bodies.append(body)
        return body


@contextmanager
def serving(view: View, *, middleware: Iterable[str] = (), **options: Any) -> Iterator[Handler]:
    """Yield a handler of a site that has one view, at its root."""
    urls = ModuleType("urls of a test")
    urls.urlpatterns = [path("", view, name="the-view")]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=list(middleware), **options):
        handler = Handler()
        try:
            yield handler
        finally:
            for body in handler.bodies:
                body.close()


class Exchange:
    """
    One request, and what was sent in answer to it.

    :param before_send: what `send` awaits with each message before it takes it; it may block or raise.
    :param journal: gets the entry "handler returned" when it has.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        before_send: Callable[[Message], Awaitable[None]] | None = None,
        journal: list[str] | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self.journal = [] if journal is None else journal
        self._handler = handler
        self._scope: Message = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": "/",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        self.before_send = before_send
        self._is_read = False
        self._has_left = asyncio.Event()
        self._news = asyncio.Condition()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._handler(self._scope, self._receive, self._send)
        finally:
            self.journal.append("handler returned")
            async with self._news:
                self._news.notify_all()

    async def _receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        message = dict(message)
        if self.before_send is not None:
            await self.before_send(message)
        self.messages.append(message)
        async with self._news:
            self._news.notify_all()

    def leave(self) -> None:
        """Be a client that closes its connection."""
        self._has_left.set()

    async def until(self, is_so: Callable[["Exchange"], bool]) -> None:
        """Wait until something is so, looking again after each message."""
        async with asyncio.timeout(TIME_LIMIT), self._news:
            await self._news.wait_for(lambda: is_so(self) or "handler returned" in self.journal)
        assert is_so(self), f"The handler returned before that. It sent {self.messages}."

    async def abandon(self) -> None:
        """Leave if the handler has not returned yet, and wait for it."""
        if not self.task.done():
            self.leave()
            await asyncio.wait([self.task], timeout=TIME_LIMIT)

    async def finish(self) -> None:
        """
        Wait for the handler.

        :raises BaseException: what the handler has raised.
        """
        async with asyncio.timeout(TIME_LIMIT):
            await self.task

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def chunks(self) -> list[bytes]:
        """The bodies of the messages so far, without the last, empty one that ends the response."""
        return [message.get("body", b"") for message in self.messages[1:] if message.get("more_body")]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def is_complete(self) -> bool:
        return len(self.messages) > 1 and not self.messages[-1].get("more_body", False)


@asynccontextmanager
async def answering(view: View, **options: Any) -> AsyncIterator[Exchange]:
    """Make a request and yield it while it is answered. ``options`` are those of :class:`Exchange` and settings."""
    names = ("method", "headers", "before_send", "journal")
    of_exchange = {name: options.pop(name) for name in names if name in options}
    with serving(view, **options) as handler:
        exchange = Exchange(handler, **of_exchange)
        try:
            yield exchange
        finally:
            await exchange.abandon()


async def get(view: View, **options: Any) -> Exchange:
    """Make a request and return it when it is answered, whatever the handler raised; ``options`` as above."""
    async with answering(view, **options) as exchange:
        with suppress(Exception):
            await exchange.finish()
    return exchange


class Blocked:
    """A client that stops reading: `send` holds up the messages that ``at`` picks until it is released."""

    def __init__(self, at: Callable[[Message], object]) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self._at = at

    async def __call__(self, message: Message) -> None:
        if self._at(message):
            self.reached.set()
            async with asyncio.timeout(TIME_LIMIT):
                await self.released.wait()


class Broken:
    """A `send` that raises when it is given the messages that ``at`` picks."""

    def __init__(self, at: Callable[[Message], object], error: BaseException) -> None:
        self._at = at
        self._error = error

    async def __call__(self, message: Message) -> None:
        if self._at(message):
            raise self._error


def is_start(message: Message) -> bool:
    """Pick the message with the headers."""
    return bool(message["type"] == "http.response.start")


def has_body(message: Message) -> bool:
    """Pick the messages with something in their body."""
    return bool(message.get("body"))


def other_tasks() -> set[asyncio.Task[Any]]:
    """Return the tasks of the loop that are neither the test's own nor done."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def settle() -> None:
    """Give the loop some turns, for what Python finalises by itself: Django's own generators around a stream."""
    for _ in range(10):
        await asyncio.sleep(0)


# Middleware that wraps the stream, as many sites have: to count bytes, to add something, to translate.


def wrapping_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Put a generator around every stream."""
    assert iscoroutinefunction(get_response)

    async def middleware(request: HttpRequest) -> Any:
        response = await get_response(request)
        if isinstance(response, StreamingHttpResponse):
            response.streaming_content = passed_on(response.streaming_content)
        return response

    markcoroutinefunction(middleware)
    return middleware


wrapping_middleware.async_capable = True  # type: ignore[attr-defined]
wrapping_middleware.sync_capable = False  # type: ignore[attr-defined]


async def passed_on(content: Any) -> Any:
    """Yield the content as it comes, as the middleware's own generator."""
    async for chunk in content:
        yield chunk


@contextmanager
def running_daphne() -> Iterator[None]:
    """Make it look as if Daphne served this process: its module is loaded, and Twisted's reactor runs."""
    names = ("daphne.server", "twisted.internet.reactor")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    reactor = ModuleType("twisted.internet.reactor")
    reactor.running = True  # type: ignore[attr-defined]
    sys.modules.update({"daphne.server": ModuleType("daphne.server"), "twisted.internet.reactor": reactor})
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


class Resource:
    """An asynchronous iterator that is no generator, and has something to close even before its first step."""

    def __init__(self, *, error: BaseException | None = None) -> None:
        self.journal: list[str] = []
        self._error = error

    def __aiter__(self) -> "Resource":
        return self

    async def __anext__(self) -> str:
        self.journal.append("started")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.journal.append("closed")
        if self._error is not None:
            raise self._error
