"""Behind a real nginx, whose patience with a silent stream is cut down to 2 s."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from .conftest import Start
from .http import Connection
from .play import PATIENCE, Cue, Fail, Line
from .servers import Server, free_port, start_guarded, stop_group

pytestmark = pytest.mark.peers

#: Debian keeps it where only root's PATH leads.
SEARCH_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])

CONFIGURATION: Final = """
daemon off;
worker_processes 1;
{user}
pid {directory}/pid;
error_log {directory}/error.log info;
events {{
    worker_connections 128;
}}
http {{
    access_log off;
    client_body_temp_path {directory}/client_body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_read_timeout 2s;
        }}
        location /patient/ {{
            proxy_pass http://127.0.0.1:{upstream}/;
            proxy_read_timeout 60s;
        }}
    }}
}}
"""

SILENCE: Final = 6.0


@dataclass(frozen=True)
class Nginx:
    """A running nginx and the server behind it."""

    port: int
    directory: Path
    server: Server

    @property
    def error_log(self) -> str:
        """What nginx has complained about."""
        return (self.directory / "error.log").read_text(errors="replace")


@contextlib.contextmanager
def nginx_before(server: Server, directory: Path) -> Iterator[Nginx]:
    """Run an nginx in front of a server."""
    program = shutil.which("nginx", path=SEARCH_PATH)
    if program is None:
        pytest.fail("There is no nginx on this machine. `make live` installs what the tests marked `peers` need.")
    port = free_port()
    # Started by root it would hand its worker to a user who may not enter our directory.
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = directory / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(user=user, directory=directory, port=port, upstream=server.port))
    process = start_guarded(
        [program, "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(configuration)],
        directory / "output",
    )
    try:
        _wait_until_it_listens(process, port, directory)
        yield Nginx(port, directory, server)
    finally:
        stop_group(process)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"nginx did not start:\n{(directory / 'output').read_text()}")


@pytest.fixture(scope="session")
def start_nginx(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Nginx]]:
    """Return the function that gives an nginx before the server of that name."""
    running: dict[str, tuple[Nginx, contextlib.ExitStack]] = {}

    def started(name: str) -> Nginx:
        server = start(name)
        if name in running:
            nginx, stack = running[name]
            if nginx.server is server:
                return nginx
            stack.close()
        stack = contextlib.ExitStack()
        nginx = stack.enter_context(nginx_before(server, tmp_path_factory.mktemp(f"nginx-{name}")))
        running[name] = nginx, stack
        return nginx

    yield started
    for _, stack in running.values():
        stack.close()


@pytest.fixture(params=["daphne", "uvicorn"])
def nginx(request: pytest.FixtureRequest, start_nginx: Callable[[str], Nginx]) -> Nginx:
    """Return an nginx before each of two servers in turn."""
    return start_nginx(request.param)


def test_a_silent_stream_is_cut_by_nginx_without_keep_alives(nginx: Nginx) -> None:
    """What the package is for; if this one fails, the next one proves nothing."""
    stream = nginx.server.stream("bare", ["data: a\n\n", SILENCE, "data: b\n\n"])
    with Connection(nginx.port) as connection:
        response = connection.get(stream.path)
        assert response.status == 200
        assert b"data: b" not in response.read_to_the_cut()
    stream.diary.wait_for("cleaned up")
    assert "ended by CancelledError in its own task" in stream.diary.texts()
    assert "upstream timed out (110: Connection timed out) while reading upstream" in nginx.error_log


def test_a_silent_stream_lives_through_nginx_with_keep_alives(nginx: Nginx) -> None:
    """C2: idle frames reach a proxy in time, and the client gets the whole stream."""
    stream = nginx.server.stream("alive", ["data: a\n\n", SILENCE, "data: b\n\n"], interval=1)
    with Connection(nginx.port) as connection:
        body = connection.get(stream.path).read(within=SILENCE + PATIENCE)
    assert body.replace(b": keep-alive\n\n", b"") == b"data: a\n\ndata: b\n\n"
    assert "ended by its end in its own task" in stream.diary.texts()


def test_a_stream_silent_from_the_start_lives_through_nginx(nginx: Nginx) -> None:
    """C2: keep-alives come before the first chunk too; nginx would answer 504 otherwise."""
    stream = nginx.server.stream("alive", [SILENCE / 2, "data: a\n\n"], interval=1)
    with Connection(nginx.port) as connection:
        response = connection.get(stream.path)
        assert response.status == 200
        assert response.read(within=SILENCE + PATIENCE).replace(b": keep-alive\n\n", b"") == b"data: a\n\n"


def test_events_pass_at_once_through_the_default_buffering(nginx: Nginx) -> None:
    """R1: X-Accel-Buffering. The stream goes on only when the client has got what it sent."""
    first, second = Cue("first"), Cue("second")
    play: list[Line] = ["data: a\n\n", first, "data: b\n\n", second, "data: c\n\n"]
    stream = nginx.server.stream("alive", play, interval=60)
    with Connection(nginx.port) as connection:
        response = connection.get(f"/patient{stream.path}")
        assert response.read_until(b"\n\n") == b"data: a\n\n"
        stream.diary.give(first)
        assert response.read_until(b"\n\n") == b"data: b\n\n"
        stream.diary.give(second)
        assert response.read() == b"data: c\n\n"


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_a_client_that_leaves_nginx_during_silence_is_noticed(nginx: Nginx, reset: bool) -> None:
    """R3: with neither a keep-alive nor the proxy's time-out near, the upstream is closed at once."""
    stream = nginx.server.stream("alive", ["data: a\n\n", None], interval=60)
    with Connection(nginx.port) as connection:
        connection.get(f"/patient{stream.path}").read_until(b"\n\n")
        connection.leave(reset=reset)
        stream.diary.wait_for("cleaned up")
    assert "ended by CancelledError in its own task" in stream.diary.texts()


def test_a_failed_stream_is_seen_as_cut_through_nginx(start_nginx: Callable[[str], Nginx]) -> None:
    """R5: a truncated stream is no whole one, behind a proxy either."""
    nginx = start_nginx("uvicorn")
    stream = nginx.server.stream("alive", ["data: a\n\n", Fail("told to")])
    with Connection(nginx.port) as connection:
        assert connection.get(stream.path).read_to_the_cut() == b"data: a\n\n"
