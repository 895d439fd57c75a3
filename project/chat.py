"""A canned chat model, and OpenAI's wire format around it."""

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

REPLY = (
    "While I read your prompt there was nothing to send. A proxy takes such a silence for a dead connection "
    "and cuts it after a minute or so. The comments that came meanwhile kept this one open, and your client "
    "skipped them, as the specification of event streams asks it to."
)


async def generate(prefill: float) -> AsyncIterator[str]:
    """
    Say :data:`REPLY` token by token, as slowly as a real model.

    :param prefill: for how many seconds the model is silent before its first token.
    """
    await asyncio.sleep(prefill)
    for token in re.findall(r"\s*\S+", REPLY):
        yield token
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Completion:
    """One request to the model, and the objects that answer it."""

    model: str
    stream: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def from_body(cls, body: bytes) -> Self:
        """
        Read the JSON that a client has sent.

        :raises ValueError: for what is no chat request; the text is meant for the client.
        """
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("The body is not valid JSON.") from None
        if not isinstance(data, dict):
            raise ValueError("The body must be a JSON object.")
        model, messages, stream = (data.get(name) for name in ("model", "messages", "stream"))
        if not isinstance(model, str) or not model:
            raise ValueError("'model' must be a string that is not empty.")
        if (
            not isinstance(messages, list)
            or not messages
            or not all(isinstance(message, dict) and "role" in message for message in messages)
        ):
            raise ValueError("'messages' must be a list of at least one message with a 'role'.")
        if not isinstance(stream, bool | None):
            raise ValueError("'stream' must be true or false.")
        return cls(model=model, stream=bool(stream))

    def chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        """Return one event's object in a streamed answer."""
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }

    def whole(self, content: str) -> dict[str, Any]:
        """Return the one object of an answer that is not streamed."""
        message = {"role": "assistant", "content": content}
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }


def error(message: str) -> dict[str, Any]:
    """Return the object that tells a client what is wrong with its request."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
