"""The wheel, in an environment where there is nothing but Django and a server: no channels, no installed app."""

import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.live.http import Connection
from tests.live.servers import ROOT, free_port, start_guarded, stop_group

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

SITE = """
import asyncio

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import path

from sse_keepalive.decorators import sse_keepalive

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x", SSE_KEEPALIVE_INTERVAL=0.2)


@sse_keepalive
async def answer(request):
    await asyncio.sleep(1)
    yield "data: 42\\n\\n"


urlpatterns = [path("", answer)]
application = get_asgi_application()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, for a build leaves files in its tree, which the next would pack as well
    shutil.copytree(ROOT / "sse_keepalive", source / "sse_keepalive")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source))
    (path,) = folder.glob("*.whl")
    return path


def run(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_the_wheel_holds_the_app_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    for needed in (
        "py.typed",
        "management/commands/sse_endpoints.py",
        "migrations/0001_initial.py",
        "static/sse_keepalive/admin.css",
    ):
        assert f"sse_keepalive/{needed}" in names
    assert "sse_keepalive/http.py" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sse_keepalive", "django_sse_keepalive"}
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line]
    assert {line.split()[1].split(">")[0] for line in required} == {"asgiref", "django"}


def test_decorate_and_serve_with_daphne_without_channels_and_without_the_installed_app(
    wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel), "daphne")
    assert "channels" not in run(python, "-m", "pip", "list", "--disable-pip-version-check")
    (tmp_path / "site_without_channels.py").write_text(SITE)
    port = free_port()
    server = start_guarded(
        [python, "-m", "daphne", "--port", str(port), "site_without_channels:application"],
        tmp_path / "log",
        {"PYTHONPATH": str(tmp_path)},
    )
    try:
        wait_until_it_listens(port, tmp_path / "log")
        with Connection(port) as connection:
            body = b"".join(piece.data for piece in connection.get("/").pieces())
    finally:
        stop_group(server)
    assert body.startswith(b": keep-alive\n\n")
    assert body.endswith(b"data: 42\n\n")


def wait_until_it_listens(port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
