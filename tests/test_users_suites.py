"""
The test suites of users: nothing complains in them, and nothing goes on behind their backs (S5).

Each is that of a small site, which is written to a folder and tested there as its owner would test it.
"""

import json
import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests.background import DATABASE, ROOT, run_python

MANAGE: Final = """
import os, sys

os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""

SETTINGS: Final = """
import atexit, json, os, threading

SECRET_KEY = "not a secret"
INSTALLED_APPS = ["sse_keepalive"]
DATABASES = {"default": json.loads(os.environ["SWITCHES_DATABASE"])}
ROOT_URLCONF = "site_views"
STATIC_URL = "static/"
USE_TZ = True
SSE_KEEPALIVE_REFRESH = 0.001  # whatever goes on in the background goes on all the time

started = []
start = threading.Thread.start


def noted_start(thread):
    started.append(thread.name)
    start(thread)


threading.Thread.start = noted_start
atexit.register(lambda: print("started:", [name for name in started if "sse" in name]))
"""

VIEWS: Final = """
import asyncio

from django.http import HttpResponse
from django.urls import path
from sse_keepalive.decorators import sse_keepalive


@sse_keepalive
async def brief(request):
    yield "data: 1\\n\\n"


@sse_keepalive(interval=0.002)
async def endless(request):
    while True:
        await asyncio.sleep(0.1)
        yield "data: 1\\n\\n"


def page(request):
    return HttpResponse("a page")


urlpatterns = [
    path("brief", brief, name="brief"), path("endless", endless, name="endless"), path("page", page, name="page"),
]
"""

SHARED: Final = """
import asyncio
import threading
import urllib.error
import urllib.request

from django.core.handlers.asgi import ASGIHandler
from django.test import AsyncClient, Client

from sse_keepalive.models import Endpoint
from sse_keepalive.switches import AS_IN_CODE, switches
from sse_keepalive.testing import override_switch

BROWSER = {"Accept": "text/event-stream"}


async def read(path="/brief", times=None):
    response = await AsyncClient().get(path, headers=BROWSER)
    if response.status_code == 204:
        return 204
    chunks = aiter(response)
    body = b""
    async for chunk in chunks:
        body += chunk
        if times is not None and body.count(b"keep-alive") >= times:
            await chunks.aclose()
            break
    return body


async def every_kind():
    assert await read() == b"data: 1\\n\\n"
    assert b"keep-alive" in await read("/endless", 3)
    with override_switch("brief", is_open=False):
        assert await read() == 204
    dropped = aiter(await AsyncClient().get("/endless"))
    assert await anext(dropped) == b""
    assert b"keep-alive" in await anext(dropped)


class Server:
    \"\"\"A server in a thread, as that of a live test, with one stream open on it.\"\"\"

    def __init__(self):
        self.body = b""
        self.is_open = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()))
        self.thread.start()

    async def serve(self):
        async def receive():
            if not self.body:
                self.body = b"read "
                return {"type": "http.request", "body": b"", "more_body": False}
            await asyncio.Event().wait()

        async def send(message):
            self.body += message.get("body", b"")
            if b"keep-alive" in self.body:
                self.is_open.set()

        scope = {"type": "http", "method": "GET", "path": "/endless", "query_string": b"", "headers": []}
        await ASGIHandler()(scope, receive, send)


def ends_when_it_is_stopped():
    row = Endpoint.objects.create(name="endless")
    server = Server()
    assert server.is_open.wait(20)
    row.is_open = False
    row.save()
    server.thread.join(20)
    assert not server.thread.is_alive()


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def refuses(url):
    assert status(url + "/page") == 200
    with override_switch("brief", is_open=False):
        assert status(url + "/brief") == 503
    Endpoint.objects.create(name="brief", is_open=False)
    assert status(url + "/brief") == 503
"""

UNITTEST: Final = """
from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase

from shared import *


class Without(SimpleTestCase):
    async def test_streams(self):
        await every_kind()

    def test_streams_from_a_function(self):
        asyncio.run(every_kind())

    @override_switch("brief", is_open=False)
    def test_refusal(self):
        assert Client().get("/brief").status_code == 503


class RolledBack(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.row = Endpoint.objects.create(name="brief", is_open=False)

    async def test_streams(self):
        await every_kind()

    def test_decisions_stay_uncommitted(self):
        with self.captureOnCommitCallbacks(execute=True):
            Endpoint.objects.filter(name="brief").set_state("off")
            Endpoint.objects.create(name="endless", is_open=False)
        with self.assertNumQueries(0):
            asyncio.run(every_kind())
        assert Endpoint.objects.count() == 2

    def test_refusal(self):
        with self.assertNumQueries(0):
            with override_switch("brief", is_open=False):
                assert self.client.get("/brief").status_code == 503


class Committed(TransactionTestCase):
    def test_decisions(self):
        assert switches.get("brief") == AS_IN_CODE
        row = Endpoint.objects.create(name="brief", is_open=False)
        assert asyncio.run(read()) == 204
        row.delete()
        assert asyncio.run(read()) == b"data: 1\\n\\n"
        Endpoint.objects.create(name="brief", is_open=False)

    def test_decisions_again(self):
        self.test_decisions()

    async def test_streams(self):
        await every_kind()

    def test_streams_of_a_server(self):
        ends_when_it_is_stopped()


class Live(LiveServerTestCase):
    def test_refusal(self):
        refuses(self.live_server_url)
"""

PYTEST: Final = """
import pytest

from shared import *


async def test_streams_without_a_database():
    await every_kind()


def test_streams_without_a_database_from_a_function():
    asyncio.run(every_kind())


def test_queries_of_a_test(db, django_assert_num_queries):
    Endpoint.objects.create(name="brief", is_open=False)
    with django_assert_num_queries(0):
        asyncio.run(every_kind())


def test_callbacks_of_a_test(db, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        Endpoint.objects.create(name="brief", is_open=False)
    asyncio.run(every_kind())


@pytest.mark.django_db
async def test_streams_with_a_database():
    await every_kind()


@pytest.mark.parametrize("number", [1, 2])
def test_decisions(transactional_db, number):
    assert switches.get("brief") == AS_IN_CODE
    Endpoint.objects.create(name="brief", is_open=False)
    assert asyncio.run(read()) == 204


def test_streams_of_a_server(transactional_db):
    ends_when_it_is_stopped()


def test_refusal(live_server):
    refuses(live_server.url)


def test_after_the_decisions():
    asyncio.run(every_kind())
"""

CONFIGURATION: Final = """
[pytest]
DJANGO_SETTINGS_MODULE = site_settings
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return the folder of a site, whose tests nobody has run yet."""
    (tmp_path / "manage.py").write_text(MANAGE)
    (tmp_path / "site_settings.py").write_text(SETTINGS)
    (tmp_path / "site_views.py").write_text(VIEWS)
    (tmp_path / "shared.py").write_text(SHARED)
    (tmp_path / "tests.py").write_text(UNITTEST)
    (tmp_path / "test_with_pytest.py").write_text(PYTEST)
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    return tmp_path


def run(site: Path, *arguments: str) -> str:
    """Run a suite and return what it says, if it succeeds."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(site / "db.sqlite3")}
    database["TEST"] = {"NAME": str(site / "test_db.sqlite3")} if "--parallel" not in arguments else {}  # type: ignore[assignment]
    environment = {DATABASE: json.dumps(database), **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDEVMODE": "1"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    environment.pop("PYTEST_ADDOPTS", None)
    done = run_python(*arguments, cwd=site, environment=environment)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for complaint in ("Warning", "rror", "Traceback", "never awaited", "switches of event streams", "being accessed"):
        assert complaint not in said, said
    assert set(re.findall(r"started: (.*)", said)) == {"[]"}, said
    assert list(site.glob("*.sqlite3*")) == []
    return said


@pytest.mark.parametrize("options", [[], ["--parallel", "2"]], ids=["", "parallel"])
def test_s5_a_suite_of_django_passes_without_a_complaint(site: Path, options: list[str]) -> None:
    said = run(site, "manage.py", "test", "tests", *options)
    assert "Ran 11 tests" in said
    assert "OK" in said


def test_s5_a_suite_of_pytest_passes_without_a_complaint(site: Path) -> None:
    assert "10 passed" in run(site, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q")
