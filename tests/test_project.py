"""The demo site: its streams, its page, and the command that starts it."""

import json
import os
import re
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client
from pytest_django import Settings

from project import chat, views
from project import settings as project_settings
from sse_keepalive.http import EventStreamResponse

from .live.browser import chromium
from .live.redis import redis_server

ROOT = Path(__file__).resolve().parent.parent
KEEP_ALIVE = ": keep-alive"
CHAT = {"model": "canned", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
TIME_LIMIT = 60.0


@pytest.fixture(autouse=True)
def demo_site(settings: Settings) -> None:
    """Run the tests' own Django on the demo's settings, as far as one process can have both."""
    # Daphne puts Twisted's reactor into a process for good; only the subprocesses below may do that.
    settings.INSTALLED_APPS = [app for app in project_settings.INSTALLED_APPS if app != "daphne"]
    settings.MIDDLEWARE = project_settings.MIDDLEWARE
    settings.TEMPLATES = project_settings.TEMPLATES
    settings.ROOT_URLCONF = "project.urls"
    settings.SSE_KEEPALIVE_INTERVAL = 0.01


async def frames(response: HttpResponseBase) -> AsyncGenerator[str]:
    """Yield what a client reads, cut at blank lines."""
    assert isinstance(response, EventStreamResponse)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    text = ""
    async with aclosing(aiter(response)) as chunks:
        async for chunk in chunks:
            text += chunk.decode()
            *whole, text = text.split("\n\n")
            for frame in whole:
                yield frame
    assert text == ""


async def events(response: HttpResponseBase) -> list[dict[str, str]]:
    """Return the fields of all events of a stream that ends."""
    return [
        dict(line.split(": ", 1) for line in frame.splitlines())
        async for frame in frames(response)
        if not frame.startswith(":")
    ]


async def first(count: int, response: HttpResponseBase, wanted: Callable[[str], bool]) -> list[str]:
    """Return the first frames that are wanted, and leave."""
    found: list[str] = []
    async with aclosing(frames(response)) as stream:
        async for frame in stream:
            if wanted(frame):
                found.append(frame)
            if len(found) == count:
                break
    return found


def is_keep_alive(frame: str) -> bool:
    return frame == KEEP_ALIVE


def is_event(frame: str) -> bool:
    return not frame.startswith(":")


async def test_report_is_kept_alive_while_it_is_made(async_client: AsyncClient) -> None:
    response = await async_client.get("/report/", {"seconds": views.MAX_SECONDS})
    async with aclosing(frames(response)) as stream:
        assert [await anext(stream) for _ in range(3)] == [KEEP_ALIVE] * 3


async def test_report_answers_with_one_event(async_client: AsyncClient) -> None:
    [event] = await events(await async_client.get("/report/", {"seconds": "0"}))
    assert event.keys() == {"data"}
    assert json.loads(event["data"])["title"] == "Passengers by ferry"


@pytest.mark.parametrize("path", ["/report/", "/v1/chat/completions"])
@pytest.mark.parametrize("seconds", ["", "soon", "-1", "nan", "inf", "301", "1e9", "9" * 5000])
async def test_seconds_out_of_bounds_are_refused_before_the_stream_begins(
    async_client: AsyncClient, path: str, seconds: str
) -> None:
    if path == "/report/":
        response = await async_client.get(path, {"seconds": seconds})
        message = response.json()["error"]
    else:
        response = await async_client.post(
            path, CHAT, content_type="application/json", query_params={"seconds": seconds}
        )
        message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert message == "'seconds' must be a number from 0 to 300."


@pytest.mark.parametrize("path", ["/", "/report/", "/ticker/"])
async def test_pages_and_streams_are_only_for_reading(async_client: AsyncClient, path: str) -> None:
    response = await async_client.post(path)
    assert response.status_code == 405


async def post_chat(client: AsyncClient, body: Any, *, query: dict[str, Any] | None = None) -> HttpResponseBase:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    query_params = {"seconds": 0} if query is None else query
    response = await client.post(
        "/v1/chat/completions",
        body,
        content_type="application/json",
        query_params=query_params,
    )
    assert isinstance(response, HttpResponseBase)
    return response


@pytest.fixture
def quick_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "REPLY", "Good morning,\n  Zoë.")


@pytest.mark.usefixtures("quick_model")
async def test_chat_streams_as_openai_does(async_client: AsyncClient) -> None:
    *chunks, done = [event["data"] for event in await events(await post_chat(async_client, CHAT))]
    assert done == "[DONE]"
    objects = [json.loads(chunk) for chunk in chunks]
    assert {item["object"] for item in objects} == {"chat.completion.chunk"}
    assert {item["model"] for item in objects} == {"canned"}
    assert len({(item["id"], item["created"]) for item in objects}) == 1
    choices = [choice for item in objects for choice in item["choices"]]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant", None, None, None]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == chat.REPLY
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


async def test_chat_is_kept_alive_before_its_first_token(async_client: AsyncClient) -> None:
    response = await post_chat(async_client, CHAT, query={"seconds": 300})
    async with aclosing(frames(response)) as stream:
        assert [await anext(stream) for _ in range(3)] == [KEEP_ALIVE] * 3


@pytest.mark.usefixtures("quick_model")
@pytest.mark.parametrize("stream", [{"stream": False}, {"stream": None}, {}])
async def test_chat_without_stream_answers_with_one_object(async_client: AsyncClient, stream: dict[str, Any]) -> None:
    body = {"model": "canned", "messages": CHAT["messages"]} | stream
    response = await async_client.post("/v1/chat/completions?seconds=0", body, content_type="application/json")
    assert response.headers["Content-Type"] == "application/json"
    answer = response.json()
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": chat.REPLY}
    assert choice["finish_reason"] == "stop"


async def test_chat_needs_no_csrf_token() -> None:
    response = await post_chat(AsyncClient(enforce_csrf_checks=True), CHAT)
    assert response.status_code == 200
    response.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'"\xff"', "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b" " * 3_000_000, "DATA_UPLOAD_MAX_MEMORY_SIZE"),
        ([], "JSON object"),
        (None, "JSON object"),
        ({"messages": CHAT["messages"]}, "'model'"),
        (CHAT | {"model": 7}, "'model'"),
        (CHAT | {"model": ""}, "'model'"),
        ({"model": "canned"}, "'messages'"),
        (CHAT | {"messages": []}, "'messages'"),
        (CHAT | {"messages": {}}, "'messages'"),
        (CHAT | {"messages": ["Hello!"]}, "'messages'"),
        (CHAT | {"messages": [{"content": "Hello!"}]}, "'messages'"),
        (CHAT | {"stream": "yes"}, "'stream'"),
        (CHAT | {"stream": 1}, "'stream'"),
    ],
    ids=range(19),
)
async def test_chat_refuses_bad_requests_as_openai_does(async_client: AsyncClient, body: Any, message: str) -> None:
    response = await post_chat(async_client, body)
    assert response.status_code == 400
    assert isinstance(response, HttpResponseBase)
    error = json.loads(response.content)["error"]  # type: ignore[attr-defined]
    assert message in error.pop("message")
    assert error == {"type": "invalid_request_error", "param": None, "code": None}


@pytest.mark.parametrize("method", ["get", "head", "put", "delete", "options"])
async def test_chat_refuses_other_methods_as_openai_does(async_client: AsyncClient, method: str) -> None:
    response = await getattr(async_client, method)("/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["Allow"] == "POST"
    if method != "head":
        assert response.json()["error"]["message"] == "Use POST."


@pytest.mark.usefixtures("quick_model")
async def test_chat_echoes_a_strange_model_name_undamaged(async_client: AsyncClient) -> None:
    model = "\ud800\u2028\r\n\n"
    chunk, *_ = await events(await post_chat(async_client, CHAT | {"model": model}))
    assert json.loads(chunk["data"])["model"] == model


@pytest.fixture
def quick_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAUSES", (0.0,))


@pytest.mark.usefixtures("quick_news")
async def test_ticker_numbers_its_news(async_client: AsyncClient) -> None:
    news = await first(12, await async_client.get("/ticker/"), is_event)
    assert [re.findall("^id: (.*)$", frame, re.M) for frame in news] == [[str(number)] for number in range(1, 13)]


async def test_ticker_is_kept_alive_between_news(async_client: AsyncClient) -> None:
    response = await async_client.get("/ticker/")
    async with aclosing(frames(response)) as stream:
        assert is_event(await anext(stream))
        assert is_keep_alive(await anext(stream))


@pytest.mark.usefixtures("quick_news")
async def test_ticker_goes_on_after_the_event_seen_last(async_client: AsyncClient) -> None:
    without = await first(5, await async_client.get("/ticker/"), is_event)
    response = await async_client.get("/ticker/", headers={"last-event-id": "3"})
    assert await first(2, response, is_event) == without[3:]


@pytest.mark.usefixtures("quick_news")
@pytest.mark.parametrize("last", ["", "x", "-4", "1.5", "²", "9" * 5000, "\0"])
async def test_ticker_starts_anew_after_an_id_it_never_sent(async_client: AsyncClient, last: str) -> None:
    response = await async_client.get("/ticker/", headers={"last-event-id": last})
    [news] = await first(1, response, is_event)
    assert "id: 1" in news.splitlines()


def test_page_offers_every_stream(client: Client) -> None:
    page = client.get("/").content.decode()
    for path in ["/report/", "/v1/chat/completions", "/ticker/"]:
        assert f'type="radio" name="stream" value="{path}"' in page
    assert 'href="/admin/sse_keepalive/endpoint/"' in page
    assert "<html lang=" in page
    assert 'role="status"' in page


async def test_an_order_reaches_the_board(async_client: AsyncClient) -> None:
    response = await async_client.get("/orders/events/")
    async with aclosing(frames(response)) as board:
        joined = await anext(frame async for frame in board if not is_keep_alive(frame))
        assert joined == f'event: joined\ndata: {{"process": {os.getpid()}}}'
        placed = await async_client.post("/orders/place/", {"dish": "Fish & <soup>", "table": "7"})
        assert (placed.status_code, placed.headers["Location"]) == (302, "/orders/")
        order = await anext(frame async for frame in board if not is_keep_alive(frame))
    fields = json.loads(order.removeprefix("data: "))
    assert (fields["dish"], fields["table"]) == ("Fish & <soup>", 7)


@pytest.mark.parametrize("order", [{}, {"dish": "", "table": "1"}, {"dish": "Soup", "table": "0"}, {"dish": "x" * 61}])
async def test_an_order_that_cannot_be_is_refused(async_client: AsyncClient, order: dict[str, str]) -> None:
    answer = await async_client.post("/orders/place/", order)
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "text/plain"


def test_the_board_places_orders_with_a_csrf_token(client: Client) -> None:
    page = client.get("/orders/").content.decode()
    assert 'action="/orders/place/" method="post"' in page
    assert 'name="csrfmiddlewaretoken"' in page
    assert Client(enforce_csrf_checks=True).post("/orders/place/", {"dish": "Soup", "table": "1"}).status_code == 403


# From here on the project runs in processes of its own, under its own settings.

SETTINGS = """
from project.settings import *

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": %r}}
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a process needs to run the project on a database of its own."""
    (tmp_path / "demo_settings.py").write_text(SETTINGS % str(tmp_path / "db.sqlite3"))
    inherited = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    return inherited | {
        "DJANGO_SETTINGS_MODULE": "demo_settings",
        "PYTHONPATH": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
    }


def manage(*arguments: str, environment: dict[str, str]) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("debug", ["true", "false"])
def test_system_checks_find_nothing(environment: dict[str, str], debug: str) -> None:
    environment["DJANGO_DEBUG"] = debug
    manage("check", "--fail-level", "WARNING", environment=environment)


def test_no_migration_is_missing(environment: dict[str, str]) -> None:
    manage("makemigrations", "--check", "--dry-run", environment=environment)


class Demo:
    """A running ``manage.py demo``."""

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "demo", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return the match of a pattern in what the command prints."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + TIME_LIMIT
        while not (match := re.search(pattern, self.output, re.M)):
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            part = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert part, f"no {pattern!r} in:\n{self.output}"
            self.output += part.decode()
        return match

    @property
    def url(self) -> str:
        return self.read_until(r"^  Open +(http://\S+/)$")[1]

    def wait_for_server(self) -> None:
        """Return once the server answers."""
        address = httpx.URL(self.url)
        deadline = time.monotonic() + TIME_LIMIT
        while True:
            try:
                socket.create_connection((address.host, address.port or 80), TIME_LIMIT).close()
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.output
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status, with all that was printed in ``output``."""
        os.killpg(self.process.pid, signal.SIGINT)
        rest, _ = self.process.communicate(timeout=TIME_LIMIT)
        self.output += rest.decode()
        return self.process.returncode


@pytest.fixture
def demo(environment: dict[str, str]) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*arguments: str, **more: str) -> Demo:
        started.append(Demo(*arguments, environment=environment | more))
        return started[-1]

    yield start
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


def log_in(url: str, password: str) -> bool:
    with httpx.Client(base_url=url, follow_redirects=True, timeout=TIME_LIMIT) as browser:
        form = browser.get("admin/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text)
        assert token
        data = {
            "username": "admin",
            "password": password,
            "csrfmiddlewaretoken": token[1],
            "next": "/admin/",
        }
        page = browser.post("admin/login/", data=data)
        return page.url.path == "/admin/" and "Site administration" in page.text


PASSWORD = r"\(user admin, password (\S+)\)$"


def test_demo_serves_a_stream_and_the_admin_and_ends_at_ctrl_c(demo: Callable[..., Demo]) -> None:
    site = demo("--port", "0")
    password = site.read_until(PASSWORD)[1]
    site.wait_for_server()
    assert log_in(site.url, password)
    assert httpx.head(f"{site.url}ticker/", timeout=TIME_LIMIT).status_code == 200
    with (
        httpx.Client(base_url=site.url, timeout=TIME_LIMIT) as client,
        client.stream("GET", "report/") as report,
        client.stream("GET", "ticker/") as ticker,
    ):
        assert report.headers["Content-Type"].startswith("text/event-stream")
        # Kept in names: a line iterator that is dropped closes its response.
        report_lines, ticker_lines = report.iter_lines(), ticker.iter_lines()
        assert next(report_lines) == KEEP_ALIVE
        assert next(ticker_lines).startswith("data: ")
        assert site.interrupt() == 0
    assert "Traceback" not in site.output
    assert len(re.findall("password", site.output)) == 1


def test_demo_started_again_sets_a_new_password(demo: Callable[..., Demo]) -> None:
    site = demo("--port", "0")
    old = site.read_until(PASSWORD)[1]
    site.wait_for_server()
    assert site.interrupt() == 0
    site = demo("--port", "0")
    new = site.read_until(PASSWORD)[1]
    site.wait_for_server()
    assert log_in(site.url, new)
    assert not log_in(site.url, old)


def test_demo_takes_the_next_port_when_one_is_taken(demo: Callable[..., Demo]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        site = demo("--port", str(port))
        site.read_until(f"Port {port} is taken; [0-9]+ is used instead")
        assert (httpx.URL(site.url).port or 80) > port
        site.wait_for_server()


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--address", "127.0.0.1"], {"DJANGO_DEBUG": "false", "DJANGO_ALLOWED_HOSTS": "127.0.0.1"}),
        (["--address", "0.0.0.0"], {}),
    ],
    ids=["without DEBUG", "reachable from outside"],
)
def test_demo_sets_no_password_that_others_could_use(
    demo: Callable[..., Demo], arguments: list[str], more: dict[str, str], tmp_path: Path
) -> None:
    site = demo("--port", "0", *arguments, **more)
    site.read_until("no password is set")
    site.wait_for_server()
    assert site.interrupt() == 0
    assert "user admin" not in site.output
    assert user_count(tmp_path / "db.sqlite3") == 0


def user_count(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT count(*) FROM auth_user").fetchone()[0])


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_demo_refuses_what_is_no_port(demo: Callable[..., Demo], port: str) -> None:
    site = demo(f"--port={port}")
    assert site.process.wait(TIME_LIMIT) == 1
    site.read_until("CommandError")


@pytest.mark.peers
def test_h3_an_order_reaches_every_browser_on_every_process(demo: Callable[..., Demo], tmp_path: Path) -> None:
    """With REDIS_URL set: two processes, and on each a window that listens to the view and one to the consumer."""
    with redis_server(tmp_path / "redis") as redis, chromium() as browser:
        sites = []
        pages = []
        for _ in range(2):
            site = demo("--port", "0", REDIS_URL=redis.address)
            sites.append(site)
            site.wait_for_server()
            for kind in ("a view", "a consumer of Channels"):
                page = browser.new_page()
                page.goto(f"{site.url}orders/")
                page.get_by_label("The stream comes from").select_option(kind)
                pages.append(page)
        for page in pages:
            page.wait_for_function("document.querySelector('[role=status]').textContent.startsWith('Connected')")
        pages[0].get_by_label("Dish").fill("Fish & chips")
        pages[0].get_by_role("button").click()
        for page in pages:
            page.get_by_text("Fish & chips").wait_for()
            assert page.locator("li").count() == 1
        for site in sites:
            assert site.interrupt() == 0, site.output
            assert "Traceback" not in site.output, site.output
