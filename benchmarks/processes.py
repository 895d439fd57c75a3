"""Servers in processes of their own: started, read from, and their CPU time told."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"

#: Arguments of the interpreter, by server; each runs in a single process and logs no requests.
COMMANDS: Final = {
    "uvicorn": (
        "-m uvicorn {site}:application --host {host} --port {port} --loop uvloop"
        " --http httptools --lifespan off --no-access-log --log-level warning"
    ),
    "daphne": "-m daphne {site}:application -b {host} -p {port} -v 0",
}

#: Packages that a server cannot be measured without.
NEEDS: Final = {"uvicorn": ["uvicorn", "uvloop", "httptools"], "daphne": ["daphne"]}

#: Seconds in which a server has to listen, to answer and to exit.
PATIENCE: Final = 60.0

#: Seconds in which a server that rests uses next to no CPU.
REST: Final = 0.01


@dataclass(frozen=True)
class Server:
    """A server process on a port of the loopback interface."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu_time(self) -> float:
        """Return the seconds of CPU, user and system, of all threads, as soon as the process rests."""
        # A response is not over for the server when the client has its last byte.
        deadline = time.monotonic() + PATIENCE
        spent = self._cpu_time()
        while time.monotonic() < deadline:
            time.sleep(REST)
            before, spent = spent, self._cpu_time()
            if spent - before < REST / 100:
                return spent
        raise TimeoutError("The server does not come to rest.")

    def _cpu_time(self) -> float:
        clock = ctypes.c_int()
        error = ctypes.CDLL(None).clock_getcpuclockid(self.process.pid, ctypes.byref(clock))
        if error:
            raise OSError(error, os.strerror(error))
        return time.clock_gettime(clock.value)

    def read(self, path: str) -> int:
        """Return the length of a response, read to its end and thrown away."""
        request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
        buffer = bytearray(1 << 18)
        head = end = b""
        length = 0
        with socket.create_connection((HOST, self.port), timeout=PATIENCE) as connection:
            connection.sendall(request.encode())
            while received := connection.recv_into(buffer):
                head = head or bytes(buffer[:received])
                end = (end + buffer[max(0, received - 5) : received])[-5:]
                length += received
        if not head.startswith(b"HTTP/1.1 200 ") or end != b"0\r\n\r\n":
            raise RuntimeError(f"{path} was not answered in full: {head[:100]!r} ... {end!r}")
        return length


def missing(server: str) -> list[str]:
    """Return the packages that a server lacks here."""
    return [package for package in NEEDS[server] if find_spec(package) is None]


@contextmanager
def serving(server: str, site: str) -> Iterator[Server]:
    """Run a server with the site of a module until the block ends."""
    port = free_port()
    arguments = COMMANDS[server].format(site=site, host=HOST, port=port).split()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a process group of its own, to be stopped as a whole
    )
    try:
        wait_until_listening(process, port)
        yield Server(process, port)
    finally:
        stop(process)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    """Return once a connection is accepted."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((HOST, port), timeout=PATIENCE).close()
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server with its process group."""
    for wish in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, wish)
        try:
            process.wait(PATIENCE / 4)
        except subprocess.TimeoutExpired:
            continue
        return
