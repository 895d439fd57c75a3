"""
The live site with operators: its servers, which share a database, and those who use them.

A listener hears a stream, and an operator works in the admin, with the forms and buttons that its pages have.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, Self

import httpx

from .http import Connection, CutError, Piece
from .play import PATIENCE, Diary, Entry, Line, Stream
from .servers import LIFETIME, ROOT, Server, running

#: The two servers differ in all that matters here: the loop, how they write, and what the end of a stream means.
SERVERS: Final = ("uvicorn", "daphne")

#: Who may change everything, and who may only look.
OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
PASSWORD: Final = "a password"

#: The interval of the site's settings, in seconds, and how long a stream has to be silent to be called so.
INTERVAL: Final = 0.25
SILENCE: Final = 1.5

#: S4: so many seconds after a click every stream of every process obeys.
LIMIT: Final = 5.0

#: As long as a server lives, and longer than any test takes.
NOTHING: Final[Sequence[Line]] = [None, None, None, None, None]

COMMENT: Final = b": keep-alive\n\n"
LINE: Final = b": keep-alive\n"
EVENT: Final = b"event: keep-alive\ndata: {}\n\n"


class Listener:
    """A client of one stream, which reads in a thread of its own and notes what it hears when."""

    def __init__(self, server: Server, stream: Stream) -> None:
        self.server = server
        self.diary = stream.diary
        self.pieces: list[Piece] = []
        #: How the stream has ended, if it has: "whole", "cut", or "left" by us.
        self.end = ""
        self.ended_at = 0.0
        self._connection = Connection(server.port)
        self.response = self._connection.get(stream.path)
        self.opened_at = self.response.at
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        end = "whole"
        try:
            for piece in self.response.pieces(within=LIFETIME):
                self.pieces.append(piece)
        except (CutError, OSError):
            end = "cut"
        self.ended_at = time.monotonic()
        self.end = self.end or end

    @property
    def body(self) -> bytes:
        """What has come so far."""
        return b"".join(piece.data for piece in self.pieces)

    def heard_since(self, moment: float) -> list[Piece]:
        """Return what has come from a moment on."""
        return [piece for piece in self.pieces if piece.at >= moment]

    def wait_for(self, data: bytes, *, times: int) -> None:
        """Wait until a piece has come so many times."""
        until(lambda: [piece.data for piece in self.pieces].count(data) >= times, f"{times} times {data!r}")

    def leave(self) -> None:
        """Close the connection; harmless if the stream has ended."""
        self.end = self.end or "left"
        with contextlib.suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing would not
        self._thread.join(PATIENCE)
        self._connection.leave()


#: Tells when a stream has obeyed, once it has.
Obeyed = Callable[[Listener], float | None]


def is_silent(listener: Listener) -> float | None:
    """When did the stream fall silent?"""
    last = listener.pieces[-1].at if listener.pieces else listener.opened_at
    return last if not listener.end and time.monotonic() - last >= SILENCE else None


def hears(frame: bytes, since: float) -> Obeyed:
    """When did such a keep-alive come for the first time since a moment?"""
    return lambda listener: next((piece.at for piece in listener.heard_since(since) if piece.data == frame), None)


def has_ended(listener: Listener) -> float | None:
    """When was the last byte of a whole body there?"""
    return listener.ended_at if listener.end == "whole" else None


def assert_obeyed(what: str, click: float, listeners: Iterable[Listener], obeyed: Obeyed) -> dict[str, float]:
    """Assert S4 for each of these streams, and return the longest time that it took on each server."""
    waiting = list(listeners)
    taken: dict[str, float] = {}
    deadline = click + LIMIT + SILENCE + 1  # a silence is known for one when it has lasted
    while waiting and time.monotonic() < deadline:
        for listener in list(waiting):
            moment = obeyed(listener)
            if moment is not None:
                name = listener.server.name
                taken[name] = max(taken.get(name, 0), round(moment - click, 2))
                waiting.remove(listener)
        time.sleep(0.02)
    missing = [(listener.server.name, listener.end, listener.pieces[-3:]) for listener in waiting]
    assert not missing, f"{what}: obeyed after {taken} s, but these never within {LIMIT} s: {missing}"
    assert max(taken.values()) <= LIMIT, f"{what}: obeyed after {taken} s"
    return taken


def until(condition: Callable[[], Any], what: str, *, within: float = PATIENCE) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"Not within {within} s: {what}"
        time.sleep(0.02)


class Site:
    """The site, with a database that is ready, and servers that run."""

    def __init__(self, directory: Path, database: Mapping[str, Any]) -> None:
        self.servers: dict[str, Server] = {}
        self._directory = directory
        self._database = database
        self._listeners: list[Listener] = []
        self._count = itertools.count()

    def environment(self, name: str) -> dict[str, str]:
        """Return what makes a process one of this site; its name is what PostgreSQL calls its connections."""
        database = dict(self._database)
        if database["ENGINE"].endswith("postgresql"):
            database["OPTIONS"] = {"application_name": name}
        return {"DJANGO_SETTINGS_MODULE": "tests.live.operated", "LIVE_DATABASE": json.dumps(database)}

    def run(self, *command: str) -> None:
        """Run a module of Python's with the settings of the site."""
        result = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **self.environment("command"), "LIVE_DIARIES": str(self._directory)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}: {result.stderr}"

    @contextlib.contextmanager
    def fresh(self, name: str) -> Iterator[Server]:
        """Run one more server in the block."""
        directory = self._directory / f"{name}-{next(self._count)}"
        with running(name, directory, environment=self.environment(name)) as server:
            yield server

    def listen(self, endpoint: str, play: Sequence[Line] = NOTHING, **query: float | str) -> list[Listener]:
        """Open a stream of an endpoint on each server."""
        return [
            self.listen_to(server, server.stream("stream", play, endpoint=endpoint, **query))
            for server in self.servers.values()
        ]

    def listen_to(self, server: Server, stream: Stream) -> Listener:
        """Open one stream."""
        listener = Listener(server, stream)
        self._listeners.append(listener)
        return listener

    def leave_all(self) -> None:
        """Close every stream, and wait until each upstream has been left too."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.leave()
        for listener in listeners:
            if listener.diary.path.exists():
                listener.diary.wait_for("cleaned up")

    def queries(self, server: Server, since: float) -> list[Entry]:
        """Return what a server has asked the database since a moment, and in which thread."""
        diary = Diary(server.directory / "diaries", "queries")
        return [entry for entry in diary.entries() if entry.at >= since]

    def wait_for_queries(self, count: int, since: float) -> None:
        """Wait until each server has asked the database so many times since a moment."""
        servers = self.servers.values()
        until(
            lambda: all(len(self.queries(server, since)) >= count for server in servers),
            f"{count} queries of each server",
        )


class Complaints:
    """What the switches of each server log from now on."""

    def __init__(self, site: Site) -> None:
        self._servers = list(site.servers.values())
        self._before = [len(server.log) for server in self._servers]

    def all(self) -> list[list[str]]:
        """Return the lines of each server."""
        logs = [server.log[before:] for server, before in zip(self._servers, self._before, strict=True)]
        return [[line for line in log.splitlines() if " sse_keepalive." in line] for log in logs]

    def wait_for(self, count: int) -> None:
        """Wait until each server has logged so many lines."""
        until(lambda: all(len(lines) >= count for lines in self.all()), f"{count} lines in each log")


@contextlib.contextmanager
def operated_site(directory: Path, database: Mapping[str, Any]) -> Iterator[Site]:
    """Make the tables and the users in an empty database, and run the servers until the end of the block."""
    directory.mkdir(exist_ok=True)
    site = Site(directory, database)
    site.run("tests.live.operated_site")
    with contextlib.ExitStack() as stack:
        for name in SERVERS:
            site.servers[name] = stack.enter_context(site.fresh(name))
        yield site


class Operator:
    """Someone in the admin, whose every page is read before it is used; a session lasts on all servers."""

    def __init__(self, site: Site, *, user: str = OPERATOR) -> None:
        self.site = site
        self._client = httpx.Client(follow_redirects=True, trust_env=False, timeout=PATIENCE)
        login = self._get(site.servers[SERVERS[0]], "login/")
        form = login.form("login-form")
        self._send(login, form, {**form.values, "username": user, "password": PASSWORD})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._client.close()

    def list(self, server: Server, search: str) -> "Page":
        """Return the list of the endpoints whose name has this in it."""
        return self._get(server, f"sse_keepalive/endpoint/?q={search}")

    def wait_for_row(self, endpoint: str) -> None:
        """Wait until an endpoint is in the list."""
        server = self.site.servers[SERVERS[0]]
        until(lambda: self.list(server, endpoint).keys, f"an endpoint {endpoint} in the list")

    def press(self, server: Server, endpoint: str, state: str) -> float:
        """Press the button that sets a state; return when that was."""
        page = self.list(server, endpoint)
        form = page.form("changelist-form")
        (button,) = (button for button in form.buttons if button.get("name") == "state" and button["value"] == state)
        return self._send(page, form, {**form.values, "state": state}, button["formaction"])

    def act(self, server: Server, search: str, action: str) -> float:
        """Choose an action for all endpoints whose name has this in it; return when it was started."""
        page = self.list(server, search)
        form = page.form("changelist-form")
        values = {**form.values, "action": action, "_selected_action": page.keys, "index": "0"}
        return self._send(page, form, values)

    def change(self, server: Server, endpoint: str, **fields: str) -> float:
        """Change fields in the form; return when it was saved."""
        (key,) = self.list(server, endpoint).keys
        page = self._get(server, f"sse_keepalive/endpoint/{key}/change/")
        form = page.form("endpoint_form")
        assert fields.keys() <= form.values.keys()
        return self._send(page, form, {**form.values, **fields, "_save": "Save"})

    def _get(self, server: Server, path: str) -> "Page":
        response = self._client.get(f"http://127.0.0.1:{server.port}/admin/{path}")
        assert response.status_code == 200, f"{response.status_code} for {path}: {response.text[:500]}"
        return Page(response)

    def _send(self, page: "Page", form: "Form", values: dict[str, Any], action: str = "") -> float:
        url = httpx.URL(page.url).join(action or form.action or page.url)
        moment = time.monotonic()
        response = self._client.post(url, data=values)
        errors = Page(response).errors
        assert response.status_code == 200, f"{response.status_code} for {url}: {response.text[:500]}"
        assert response.history, f"No redirect from {url}, but {errors}"
        return moment


class Form:
    """A form of a page, as it would be sent if nothing was touched, but for its buttons."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.values: dict[str, str] = {}
        self.buttons: list[dict[str, str]] = []


class Page(HTMLParser):
    """What a browser knows of a page of the admin."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.url = str(response.url)
        self.errors: list[str] = []
        #: The primary keys of the rows of a list.
        self.keys: list[str] = []
        self._forms: dict[str, Form] = {}
        self._form = Form("")
        self._select = ""
        self._is_error = False
        self.feed(response.text)

    def form(self, name: str) -> Form:
        """Return the form with that id."""
        return self._forms[name]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        name, value = attributes.get("name", ""), attributes.get("value", "")
        if tag == "form":
            self._form = self._forms[attributes.get("id", "")] = Form(attributes.get("action", ""))
        elif tag == "select":
            self._select = name
            self._form.values[name] = ""
        elif tag == "option" and "selected" in attributes:
            self._form.values[self._select] = value
        elif tag == "button":
            self._form.buttons.append(attributes)
        elif tag == "input" and name == "_selected_action":
            self.keys.append(value)
        elif tag == "input" and name and attributes.get("type") not in ("checkbox", "submit", "file"):
            self._form.values[name] = value
        self._is_error = "error" in attributes.get("class", "")

    def handle_data(self, data: str) -> None:
        if self._is_error and data.strip():
            self.errors.append(data.strip())


def prepare() -> None:
    """Make the tables and the users; runs in a process of its own."""
    import django

    django.setup()
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    User.objects.create_superuser(OPERATOR, password=PASSWORD)
    viewer = User.objects.create_user(VIEWER, password=PASSWORD, is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_endpoint"))


if __name__ == "__main__":
    prepare()
