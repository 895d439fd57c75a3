"""The views of the live site with operators; and a diary of what its process asks the database."""

import mimetypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.staticfiles import finders
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import include, path

from sse_keepalive.decorators import sse_keepalive

from .play import Diary
from .urls import bare, ping


def decorated(view: Callable[..., Any], request: HttpRequest) -> Callable[..., Any]:
    """Decorate a view with the options that the query string has."""
    options: dict[str, Any] = {name: request.GET[name] for name in ("endpoint", "frame") if name in request.GET}
    if "interval" in request.GET:
        options["interval"] = float(request.GET["interval"])
    decorate: Callable[[Any], Callable[..., Any]] = sse_keepalive(**options)
    return decorate(view)


async def stream(request: HttpRequest) -> HttpResponse:
    """Stream what the query string asks for, under the name that it asks for."""
    response: HttpResponse = await decorated(bare, request)(request)
    return response


def stream_from_a_thread(request: HttpRequest) -> HttpResponse:
    """Stream the same from a synchronous view."""
    response: HttpResponse = decorated(async_to_sync(bare), request)(request)
    return response


def static(request: HttpRequest, name: str) -> HttpResponse:
    """Serve the admin's own files; Django's view for that makes streams, which warn of themselves under ASGI."""
    found = finders.find(name)
    if found is None:
        raise Http404(name)
    return HttpResponse(Path(found).read_bytes(), content_type=mimetypes.guess_type(name)[0])


def note_queries(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Note whatever is asked over a connection from now on."""
    if note_query not in connection.execute_wrappers:
        connection.execute_wrappers.append(note_query)


def note_query(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
    """Note one query, and in which thread it is."""
    Diary.here("queries").write(f"{threading.current_thread().name}: {sql}")
    return execute(sql, *arguments)


connection_created.connect(note_queries)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("static/<path:name>", static),
    path("ping", ping),
    path("stream", stream),
    path("stream_from_a_thread", stream_from_a_thread),
    path("", include(([path("news", sse_keepalive(bare), name="news")], "paper"))),
]
