"""The consumers of the live site with Channels."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from sse_keepalive.consumers import EventStreamConsumer
from sse_keepalive.frames import ServerSentEvent

from .play import FOR_EVER, Diary, perform, read

Message = dict[str, Any]

#: Set in the first step of a play, and reset in its last.
on_stage: ContextVar[bool] = ContextVar("on_stage", default=False)


class Room(EventStreamConsumer):
    """Streams what is sent to the group that its path names, after an event that tells that it has joined it."""

    async def get_groups(self) -> Sequence[str]:
        return [self.scope["url_route"]["kwargs"]["room"]]

    async def stream(self) -> AsyncGenerator[ServerSentEvent]:
        yield ServerSentEvent("joined", event="ready")
        while True:
            await asyncio.sleep(FOR_EVER)

    async def chat_message(self, message: Message) -> None:
        """Send its text on."""
        await self.send_event(ServerSentEvent(message["text"]))


class Player(EventStreamConsumer):
    """Streams the play in its query string, in a group of its own, and notes in the diary how all went."""

    @property
    def diary(self) -> Diary:
        """The diary of this stream."""
        return Diary.here(self.request.GET["name"])

    async def get_groups(self) -> Sequence[str]:
        return [self.request.GET["name"]]

    async def stream(self) -> AsyncGenerator[str]:
        token = on_stage.set(True)
        try:
            async with aclosing(perform(read(self.request.GET["play"]), self.diary)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            on_stage.reset(token)
            self.diary.write("token reset")

    async def chat_message(self, message: Message) -> None:
        """Send its text on."""
        await self.send_event(ServerSentEvent(message["text"]))
        self.diary.write(f"sent {message['text']}")

    async def chat_failure(self, message: Message) -> None:
        """Fail with its text."""
        raise RuntimeError(message["text"])

    async def disconnect(self) -> None:
        self.diary.write("disconnected")


class Doorkeeper(Player):
    """Lets in who knows the word."""

    async def handle(self, body: bytes) -> None:
        if self.request.GET.get("word") == "please":
            await super().handle(body)
        else:
            await self.send_response(403, b"No.")
