"""The application that the servers run: Django's, with an eye on `send` where a test asks for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from django.core.asgi import get_asgi_application

from .play import Diary

django = get_asgi_application()

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

#: A `send` that takes longer, in seconds, waits for its client.
PATIENT: Final = 0.5


def watched(inner: Any) -> Any:
    """Return the application that writes, with ``watch`` in the query, into the diary when `send` is blocked."""

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        query = parse_qs(scope.get("query_string", b"").decode())
        if "watch" not in query:
            await inner(scope, receive, send)
            return
        watch = Watch(send, Diary.here(query["name"][0]))
        try:
            await inner(scope, receive, watch.send)
        finally:
            watch.timer.cancel()

    return application


class Watch:
    """
    Notes once that a `send` has not returned for some time.

    One timer looks at the clock now and then. A timer for each `send` would eat all memory where an upstream never
    awaits and `send` returns at once: a loop that gets no turn does not throw cancelled timers away.
    """

    def __init__(self, send: Send, diary: Diary) -> None:
        self.loop = asyncio.get_running_loop()
        self.diary = diary
        self.sends_since: float | None = None
        self.timer = self.loop.call_later(PATIENT, self.look)
        self._send = send

    async def send(self, message: Mapping[str, Any]) -> None:
        """Pass a message on to the server."""
        self.sends_since = self.loop.time()
        await self._send(message)
        self.sends_since = None

    def look(self) -> None:
        """Note a `send` that waits for its client, or look again later."""
        if self.sends_since is not None and self.loop.time() - self.sends_since >= PATIENT:
            self.diary.write("blocked in send")
        else:
            self.timer = self.loop.call_later(PATIENT / 5, self.look)


application = watched(django)
