"""A real Redis for a test, which keeps nothing on disk, and can be killed and started again in between."""

import contextlib
import os
import random
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from .servers import START_WITHIN, start_guarded, stop_group

if TYPE_CHECKING:
    import subprocess

    from redis import Redis as Client

#: The system gives away ports above these by itself. While Redis is down, one of a client's own connections could
#: take such a port, or a client that keeps trying to reach it could be connected to itself.
PORTS: Final = range(20_000, 30_000)

#: It has a few keys at a time. What does not fit into so much is refused.
OPTIONS: Final = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "maxmemory": "64mb"}


class Redis:
    """A Redis and its process, if it runs; made by :func:`redis_server`."""

    def __init__(self, directory: Path) -> None:
        self.port = unused_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = directory
        self._starts = 0

    @property
    def address(self) -> str:
        """Where its clients find it, whenever it runs."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What each of its processes has written so far."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._directory.iterdir()))

    def start(self) -> None:
        """Start it on its port, and wait until it answers; it then has a lifetime as the servers have."""
        assert self.process is None, "It runs already."
        self._starts += 1
        options = {**OPTIONS, "port": str(self.port), "dir": str(self._directory)}
        command = [program(), *(part for name, value in options.items() for part in (f"--{name}", value))]
        process = self.process = start_guarded(command, self._directory / f"server-{self._starts:03}")
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline and process.poll() is None:
            if self._answers(process.pid):
                return
            time.sleep(0.02)
        raise AssertionError(f"Redis was not ready within {START_WITHIN} s:\n{self.log}")

    def kill(self) -> None:
        """End it as a machine that fails does: with SIGKILL, and all it knew is gone. Harmless if it does not run."""
        process, self.process = self.process, None
        if process is not None:
            stop_group(process)

    @contextlib.contextmanager
    def client(self) -> Iterator["Client"]:
        """Connect to it for as long as the block lasts."""
        from redis import Redis as Client  # `make test` does without, and collects who imports this module

        with contextlib.closing(Client.from_url(self.address, decode_responses=True)) as client:
            yield client

    def _answers(self, pid: int) -> bool:
        # The process number tells ours from one that took the port between our look and its start.
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(b"INFO server\r\nQUIT\r\n")
            return f"\r\nprocess_id:{pid}\r\n".encode() in answer.read()
        return False


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[Redis]:
    """
    Run a Redis, which ends with the block.

    :param directory: an empty one, or none yet, that keeps the logs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    redis = Redis(directory)
    try:
        redis.start()
        yield redis
    finally:
        redis.kill()


def unused_port() -> int:
    """Return one of :data:`PORTS` on which nobody listens."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"No port of {PORTS} is free.")


def program() -> str:
    """Return the path of the program."""
    found = shutil.which("redis-server", path=os.environ.get("PATH", os.defpath))
    if found is None:
        pytest.fail(
            "There is no redis-server on this machine. `make live` installs what the tests marked `peers` need."
        )
    return found
