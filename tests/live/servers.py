"""Real ASGI servers with the live site, each in a process group of its own on a free port of the loopback."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.request import ProxyHandler, build_opener

from .play import RECORD_SEPARATOR, Line, Stream

ROOT: Final = Path(__file__).parents[2]
LAUNCH: Final = Path(__file__).with_name("launch.py")
APPLICATION: Final = "tests.live.asgi:application"

#: How each is started; the port and the application are all that changes.
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "daphne": ["daphne", "--bind", "127.0.0.1", "--port", "{port}", "{application}"],
    "uvicorn": [
        *("uvicorn", "--host", "127.0.0.1", "--port", "{port}"),
        *("--http", "httptools", "--loop", "uvloop", "{application}"),
    ],
    "uvicorn-h11": [
        *("uvicorn", "--host", "127.0.0.1", "--port", "{port}"),
        *("--http", "h11", "--loop", "asyncio", "{application}"),
    ],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:{port}", "{application}"],
    "granian": [
        *("granian", "--host", "127.0.0.1", "--port", "{port}"),
        *("--interface", "asginl", "--workers", "1", "--no-ws", "{application}"),
    ],
}

START_WITHIN: Final = 30.0

#: After so many seconds a program is killed, whatever it does and whatever has become of the tests.
LIFETIME: Final = 300.0


class Server:
    """A running server; made by :func:`running`."""

    def __init__(self, name: str, port: int, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.port = port
        self.directory = directory
        self.process = process
        self.started_at = time.monotonic()

    @property
    def age(self) -> float:
        """How many seconds ago it was started."""
        return time.monotonic() - self.started_at

    def stream(self, view: str, play: Sequence[Line], **query: str | float) -> Stream:
        """Return a stream to ask this server for."""
        return Stream(self.directory / "diaries", view, play, **query)

    @property
    def log(self) -> str:
        """What the server's processes have written to their standard output and error."""
        return (self.directory / "log").read_text(errors="replace")

    def request_records(self) -> list[str]:
        """Return what has been logged on ``django.request``, a record with its traceback each."""
        text = (self.directory / "requests").read_text(errors="replace")
        return text.split(RECORD_SEPARATOR)[1:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's main process, as a process manager does."""
        self.process.send_signal(number)


@contextlib.contextmanager
def running(
    name: str,
    directory: Path,
    *,
    application: str = APPLICATION,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server in an empty directory, from when it answers until the end of the block."""
    (directory / "diaries").mkdir(parents=True)
    port = free_port()
    token = uuid.uuid4().hex
    parts = [part.format(port=port, application=application) for part in COMMANDS[name]]
    command = [sys.executable, "-m", *parts, *options]
    process = start_guarded(
        command,
        directory / "log",
        {
            "DJANGO_SETTINGS_MODULE": "tests.live.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "LIVE_DIARIES": str(directory / "diaries"),
            "LIVE_REQUEST_LOG": str(directory / "requests"),
            "LIVE_TOKEN": token,
            **(environment or {}),
        },
    )
    server = Server(name, port, directory, process)
    try:
        _wait_until_it_answers(server, token)
        yield server
    finally:
        stop_group(process)


def start_guarded(
    command: Sequence[str],
    output: Path,
    environment: Mapping[str, str] | None = None,
    *,
    lifetime: float = LIFETIME,
) -> subprocess.Popen[bytes]:
    """
    Start a program in a process group of its own, within the limits of :mod:`tests.live.launch`.

    It outlives neither the test process nor its lifetime; end it with :func:`stop_group`.
    """
    with output.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", LAUNCH, str(lifetime), *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # never written to: its end tells the guard that we are gone
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def free_port() -> int:
    """Return a port of the loopback on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, and all that are left in that group; a busy server hears nothing else."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _wait_until_it_answers(server: Server, token: str) -> None:
    # The token tells our server from one that took the port between our look and its start.
    opener = build_opener(ProxyHandler({}))
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise AssertionError(f"{server.name} ended with {server.process.returncode}:\n{server.log}")
        url = f"http://127.0.0.1:{server.port}/ping"
        with contextlib.suppress(OSError), opener.open(url, timeout=5) as response:
            if response.read().decode() == token:
                return
        time.sleep(0.05)
    raise AssertionError(f"{server.name} did not answer within {START_WITHIN} s:\n{server.log}")
