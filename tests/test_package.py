"""What the package needs to be there and what it does when it is imported, seen from fresh interpreters."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: A site without the app, without a database, and where nothing optional can be imported.
BARE_SITE = """
import asyncio, sys

for name in ("channels", "daphne", "twisted", "uvicorn", "channels_redis"):
    sys.modules[name] = None  # an import of it fails

from django.conf import settings

settings.configure(SECRET_KEY="not a secret", ROOT_URLCONF=None, ALLOWED_HOSTS=["*"])
"""


def run(program: str) -> str:
    """Run a program in a fresh interpreter, with warnings as errors, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("room", ["frames", "silence", "keepalive"])
def test_c_the_lower_rooms_load_no_django(room: str) -> None:
    program = f"""
import sys

import sse_keepalive.{room}

print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"django", "asgiref"}}))
"""
    assert run(program).strip() == "[]"


def test_s1_views_stream_in_a_site_that_has_neither_the_app_nor_anything_optional() -> None:
    program = (
        BARE_SITE
        + """
import django
django.setup()

from django.http import HttpRequest
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.http import EventStreamResponse

@sse_keepalive(interval=0.002)
async def view(request):
    yield "data: 1\\n\\n"
    await asyncio.sleep(0.1)
    yield "data: 2\\n\\n"

async def main():
    return b"".join([chunk async for chunk in await view(HttpRequest())])

print(asyncio.run(main()))
"""
    )
    body = run(program)
    assert "data: 1" in body
    assert "keep-alive" in body
    assert "data: 2" in body


def test_s1_without_the_app_there_is_no_table_no_query_and_no_thread() -> None:
    """Though there is a database, and streams that an operator could switch."""
    program = """
import asyncio, sys, threading

from django.conf import settings

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(SECRET_KEY="not a secret", DATABASES={"default": database}, SSE_KEEPALIVE_REFRESH=0.001)

import django
django.setup()

from django.core.management import call_command
from django.db import connection
from django.db.backends.signals import connection_created
from django.http import HttpRequest
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.switches import AS_IN_CODE, switches
from sse_keepalive.testing import override_switch

connections = []
connection_created.connect(lambda **kwargs: connections.append(kwargs), weak=False)
started = []
start = threading.Thread.start
threading.Thread.start = lambda thread: (started.append(thread), start(thread))

@sse_keepalive(endpoint="named", interval=0.002)
async def view(request):
    yield "data: 1\\n\\n"
    await asyncio.sleep(0.1)
    yield "data: 2\\n\\n"

async def main():
    chunks = aiter(await view(HttpRequest()))
    assert [await anext(chunks), await anext(chunks)] == [b"", b"data: 1\\n\\n"]
    timers = [timer._callback for timer in asyncio.get_running_loop()._scheduled]
    assert not any(type(getattr(timer, "__self__", None)).__name__ == "LoopStreams" for timer in timers)
    await chunks.aclose()
    for _ in range(3):
        body = b"".join([chunk async for chunk in await view(HttpRequest())])
        assert body.endswith(b"data: 2\\n\\n") and b"keep-alive" in body
    with override_switch("named", is_open=False):
        assert (await view(HttpRequest())).status_code == 503
    await switches.until_recent()

asyncio.run(main())
switches.block_until_recent()
switches.note("named")
assert switches.get("named") == AS_IN_CODE
assert (connections, started) == ([], [])
assert "sse_keepalive.models" not in sys.modules
call_command("migrate", verbosity=0)
print(connection.introspection.table_names())
"""
    assert run(program).strip() in ("[]", "['django_migrations']")


@pytest.mark.parametrize("room", ["conf", "switches", "options", "streams", "http", "decorators", "checks", "testing"])
def test_s1_a_room_can_be_imported_before_there_are_settings(room: str) -> None:
    """As urls.py and views.py are, by whatever imports them first."""
    program = f"""
import sse_keepalive.{room}

from django.conf import settings

print(settings.configured)
"""
    assert run(program).strip() == "False"


def test_nothing_is_started_by_an_import() -> None:
    program = (
        BARE_SITE
        + """
import signal, threading

before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
import sse_keepalive.decorators
print(threading.active_count(), before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])
print(sorted({name.split(".")[0] for name, module in sys.modules.items() if module} & {"channels", "daphne"}))
"""
    )
    assert run(program).split("\n")[:2] == ["1 True", "[]"]


def test_the_app_can_be_installed() -> None:
    program = """
import django
from django.conf import settings

settings.configure(SECRET_KEY="not a secret", INSTALLED_APPS=["sse_keepalive"])
django.setup()

from django.apps import apps
from django.core.management import call_command

print(apps.get_app_config("sse_keepalive").verbose_name)
call_command("check")
"""
    assert run(program).splitlines() == ["SSE keep-alive", "System check identified no issues (0 silenced)."]


def test_the_map_of_the_rooms_names_every_room() -> None:
    import sse_keepalive

    rooms = {path.stem for path in Path(sse_keepalive.__file__).parent.glob("*.py")} - {"__init__"}
    assert sse_keepalive.__doc__ is not None
    missing = {room for room in rooms if f"``{room}``" not in sse_keepalive.__doc__}
    assert missing == set()
    assert (Path(sse_keepalive.__file__).parent / "py.typed").exists()
