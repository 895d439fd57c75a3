"""The processes that are measured: two servers for each of those who stream, one Redis, and one that sends to all."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.processes import HOST, Server, free_port, serving, stop, wait_until_listening

SITE: Final = "benchmarks.fanout.asgi"

#: Server processes that share a room.
PROCESSES: Final = 2

#: Who can stream a room, as the tables call them.
TITLES: Final = {
    "view": "ours, view",
    "consumer": "ours, consumer",
    "plain": "plain loop",
    "eventstream": "django-eventstream",
}

#: The channel layers; django-eventstream speaks to Redis itself.
LAYERS: Final = ("core", "pubsub")


@dataclass(frozen=True)
class Fleet:
    """All that runs."""

    servers: Mapping[str, Sequence[Server]]
    sender: "Sender"


class Sender:
    """The process that sends."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def send(self, who: str, layer: str, room: str, first: int, last: int) -> None:
        """Ask for messages. They are sent in the order in which they are asked for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([who, layer, room, first, last]).encode() + b"\n")

    def check(self) -> None:
        """Complain unless the process is there."""
        if self._process.poll() is not None:
            raise RuntimeError("The process that sends has ended.")


@contextmanager
def running(names: Sequence[str]) -> Iterator[Fleet]:
    """Run what is needed for these to stream until the block ends."""
    with ExitStack() as stack:
        # For the servers, and for the process that sends.
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.fanout.settings"
        os.environ["BENCHMARK_REDIS_PORT"] = str(stack.enter_context(redis()))
        servers = {who: [stack.enter_context(serving("uvicorn", SITE)) for _ in range(PROCESSES)] for who in names}
        yield Fleet(servers, stack.enter_context(sender()))


@contextmanager
def redis() -> Iterator[int]:
    """Run a Redis that keeps nothing, and tell its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            ["redis-server", "--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until_listening(process, port)
            yield port
        finally:
            stop(process)


@contextmanager
def sender() -> Iterator[Sender]:
    """Run the process that sends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fanout.sender"],
        cwd=Path(__file__).parent.parent.parent,
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield Sender(process)
    finally:
        stop(process)
