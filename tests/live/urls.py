"""The views of the live site; each streams the play in its query string, and notes in its diary how that went."""

import gc
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.signals import got_request_exception
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import FRAMES, ServerSentEvent
from sse_keepalive.http import EventStreamResponse

from .play import Diary, perform, read


def ping(request: HttpRequest) -> HttpResponse:
    """Say which server this is."""
    return HttpResponse(os.environ["LIVE_TOKEN"], content_type="text/plain")


def connections(request: HttpRequest) -> HttpResponse:
    """Say how many requests Daphne believes to have; this one is among them."""
    from daphne.server import Server

    (server,) = (thing for thing in gc.get_objects() if type(thing) is Server)
    return HttpResponse(str(len(server.connections)), content_type="text/plain")


def stream_of(request: HttpRequest) -> AsyncGenerator[str, None]:
    """Return the stream that a request asks for."""
    return perform(read(request.GET["play"]), Diary.here(request.GET["name"]))


def options_of(request: HttpRequest) -> dict[str, Any]:
    """Return the intervals, and the frame by its name, that a request asks for, as arguments."""
    options: dict[str, Any] = {
        name: float(request.GET[name]) for name in ("interval", "first_interval") if name in request.GET
    }
    return {**options, "frame": FRAMES[request.GET["frame"]]} if "frame" in request.GET else options


async def bare(request: HttpRequest) -> StreamingHttpResponse:
    """Stream as Django does by itself."""
    return StreamingHttpResponse(stream_of(request), content_type="text/event-stream")


async def alive(request: HttpRequest) -> HttpResponse:
    """Stream the same, decorated."""
    decorate: Callable[[Any], Callable[..., Any]] = sse_keepalive(**options_of(request))
    response: HttpResponse = await decorate(bare)(request)
    return response


@sse_keepalive
async def generator(request: HttpRequest) -> AsyncGenerator[str, None]:
    """Stream from a view that yields."""
    async with aclosing(stream_of(request)) as stream:
        async for chunk in stream:
            yield chunk


async def response(request: HttpRequest) -> EventStreamResponse:
    """Stream with the response alone, without the decorator."""
    return EventStreamResponse(stream_of(request), request=request, **options_of(request))


@sse_keepalive
async def measured(request: HttpRequest) -> StreamingHttpResponse:
    """Stream with a length that cannot be right."""
    response = await bare(request)
    response["Content-Length"] = "3"
    return response


async def measured_later(request: HttpRequest) -> HttpResponse:
    """Stream with a length that something further out has set."""
    response = await alive(request)
    response["Content-Length"] = "3"
    return response


@sse_keepalive(on_error=lambda error: ServerSentEvent("sorry", event="error"))
async def sorry(request: HttpRequest) -> StreamingHttpResponse:
    """Stream with a last word for those who see it fail."""
    return await bare(request)


@sse_keepalive
async def refused(request: HttpRequest) -> StreamingHttpResponse:
    """Refuse before there is a stream."""
    raise {"Http404": Http404, "PermissionDenied": PermissionDenied}[request.GET["kind"]]("a secret")


def note_exception(sender: Any, request: HttpRequest | None = None, **kwargs: Any) -> None:
    """Note in the stream's diary that Django was told of an error."""
    if request is not None and "name" in request.GET:
        Diary.here(request.GET["name"]).write("got_request_exception")


got_request_exception.connect(note_exception)

urlpatterns = [
    path("ping", ping),
    path("connections", connections),
    path("bare", bare),
    path("alive", alive),
    path("generator", generator),
    path("response", response),
    path("measured", measured),
    path("measured_later", measured_later),
    path("sorry", sorry),
    path("refused", refused),
]
