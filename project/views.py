"""Three streams that people really have, and the page that shows them."""

import asyncio
import re
from collections.abc import AsyncIterator

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from project.chat import Completion, error, generate
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import ServerSentEvent
from sse_keepalive.http import json_event

MAX_SECONDS = 300

HEADLINES = (
    "Ferry sails on time",
    "Library stays open all night",
    "Fog expected in the harbour",
    "Lighthouse gets a new lamp",
    "Bridge closed to lorries",
)
#: Seconds between them.
PAUSES = (3.0, 1.0, 9.0, 0.5, 5.0, 14.0)


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The page that opens the streams below and shows what arrives."""
    context = {"interval": settings.SSE_KEEPALIVE_INTERVAL, "max_seconds": MAX_SECONDS}
    return render(request, "index.html", context)


@require_safe
@sse_keepalive
async def report(request: HttpRequest) -> AsyncIterator[str] | HttpResponse:
    """A report that is silent while it is made; ``?seconds=`` says for how long."""
    # What can be refused is refused here. Once the stream has begun its status, 200, is on its way.
    try:
        seconds = seconds_asked(request, default=30)
    except ValueError as refusal:
        return JsonResponse({"error": str(refusal)}, status=400)
    return make_report(seconds)


async def make_report(seconds: float) -> AsyncIterator[str]:
    await asyncio.sleep(seconds)  # stands for slow queries or a call to another service
    # An EventSource asks again whenever a stream ends: close it in JavaScript once the report is there.
    yield json_event({"title": "Passengers by ferry", "rows": [["North", 4210], ["South", 3875]]})


@csrf_exempt  # its clients are programs, and no cookie gives them any right
@sse_keepalive
async def chat_completions(request: HttpRequest) -> AsyncIterator[str] | HttpResponse:
    """A chat model that reads the prompt for a while (``?seconds=``) before it answers."""
    if request.method != "POST":
        return JsonResponse(error("Use POST."), status=405, headers={"Allow": "POST"})
    try:
        seconds = seconds_asked(request, default=20)
        completion = Completion.from_body(request.body)
    except (ValueError, RequestDataTooBig) as refusal:
        return JsonResponse(error(str(refusal)), status=400)
    if completion.stream:
        return stream_completion(completion, seconds)
    # One JSON answer cannot be kept alive: nothing may come before it.
    return JsonResponse(completion.whole("".join([token async for token in generate(seconds)])))


async def stream_completion(completion: Completion, seconds: float) -> AsyncIterator[str]:
    delta = {"role": "assistant"}
    async for token in generate(seconds):
        yield json_event(completion.chunk(delta | {"content": token}))
        delta = {}
    yield json_event(completion.chunk(delta, finish_reason="stop"))
    yield ServerSentEvent("[DONE]")


@require_safe
@sse_keepalive
async def ticker(request: HttpRequest) -> AsyncIterator[str]:
    """News without end, at irregular intervals; a client that comes back gets what follows its last."""
    number = last_event_id(request)
    while True:
        yield json_event({"headline": HEADLINES[number % len(HEADLINES)]}, id=number + 1)
        await asyncio.sleep(PAUSES[number % len(PAUSES)])
        number += 1


def seconds_asked(request: HttpRequest, default: float) -> float:
    """
    Return ``?seconds=``.

    :raises ValueError: for what is no number or too large; the text is meant for the client.
    """
    try:
        seconds = float(request.GET.get("seconds", default))
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= MAX_SECONDS:  # false for NaN too
        raise ValueError(f"'seconds' must be a number from 0 to {MAX_SECONDS}.")
    return seconds


def last_event_id(request: HttpRequest) -> int:
    """Return the id of the last event that the client has seen, 0 if it never saw one of ours."""
    text = request.headers.get("Last-Event-ID", "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
