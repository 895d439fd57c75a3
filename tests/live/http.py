"""
A client for event streams on a bare socket, because the tests look at what libraries hide.

When did the headers come, was the body cut or did it end, which bytes came together; and it can leave with FIN or
RST, or stop reading. Every wait has a deadline: a server that keeps silent fails a test, it does not hang it.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from .play import PATIENCE

#: No response of the site that a test reads is nearly as large.
MOST_BYTES: Final = 4 * 1024 * 1024

#: Forbids the kernel to be polite: `close` sends RST.
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class CutError(Exception):
    """The connection ended in the middle of a message."""


class ClosedError(CutError):
    """It ended in order, with FIN, which is how a body without a length ends."""


class Piece(NamedTuple):
    """Bytes of a body, and when they came on the machine's monotonic clock."""

    at: float
    data: bytes


class Connection:
    """
    One connection to a server, closed with the block.

    :param receive_buffer: bytes that the kernel may hold for us, small for a client that is going to stop reading.
    """

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        self._received = b""
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self, *, reset: bool = False) -> None:
        """Close the connection, with RST instead of FIN if asked to."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.socket.close()

    def request(
        self, path: str, *, method: str = "GET", version: str = "1.1", headers: Mapping[str, str] | None = None
    ) -> float:
        """Send a request, and return when."""
        lines = [f"{method} {path} HTTP/{version}"]
        fields = {"Host": "127.0.0.1", "Accept": "text/event-stream", **(headers or {})}
        lines += [f"{name}: {value}" for name, value in fields.items()]
        at = time.monotonic()
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        return at

    def response(self, *, within: float = PATIENCE) -> "Response":
        """Read status line and headers."""
        deadline = time.monotonic() + within
        head: list[str] = []
        while not head or head[-1]:
            head.append(self.take_line(deadline).decode("latin-1"))
        return Response(self, head[0], head[1:-1])

    def get(self, path: str, *, version: str = "1.1") -> "Response":
        """Send a plain request and read its status line and headers."""
        self.request(path, version=version)
        return self.response()

    def everything(self, *, within: float = PATIENCE) -> bytes:
        """Return what comes until the server closes the connection, head and all; ask it to with a header."""
        deadline = time.monotonic() + within
        received = b""
        with contextlib.suppress(CutError):
            while True:
                received += self.take_some(deadline)
        return received

    def is_silent(self, seconds: float) -> bool:
        """Tell whether nothing comes for so long, not even the end of the connection."""
        if self._received:
            return False
        try:
            self._receive(time.monotonic() + seconds)
        except TimeoutError:
            return True
        except CutError:
            pass
        return False

    def take_line(self, deadline: float) -> bytes:
        """Return the next line, without its end."""
        while b"\r\n" not in self._received:
            self._receive(deadline)
        line, _, self._received = self._received.partition(b"\r\n")
        return line

    def take(self, size: int, deadline: float) -> bytes:
        """Return exactly so many bytes."""
        while len(self._received) < size:
            self._receive(deadline)
        data, self._received = self._received[:size], self._received[size:]
        return data

    def take_some(self, deadline: float) -> bytes:
        """Return whatever comes next."""
        if not self._received:
            self._receive(deadline)
        data, self._received = self._received, b""
        return data

    def _receive(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Only {self._received!r} came.")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError as error:
            raise CutError("The connection was reset.") from error
        if not data:
            raise ClosedError("The connection was closed.")
        self._count += len(data)
        assert self._count <= MOST_BYTES, f"More than {MOST_BYTES} bytes came; the last are {data[-200:]!r}."
        self._received += data


class Response:
    """The answer on a connection: its head, and its body as it comes."""

    def __init__(self, connection: Connection, status_line: str, lines: list[str]) -> None:
        self.connection = connection
        #: When the last byte of the headers was read.
        self.at = time.monotonic()
        self.status = int(status_line.split(" ")[1])
        self.fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self.headers = dict(self.fields)
        self._deadline = 0.0
        self._body = self._decoded()

    def pieces(self, *, within: float = PATIENCE) -> Iterator[Piece]:
        """
        Yield the body's bytes as they come, a chunk at a time where it is chunked, until the body has ended.

        May be called again to read on.

        :param within: the longest time in seconds for all that is read.
        :raises CutError: where the connection ends before the body does.
        :raises TimeoutError: where the time is up.
        """
        self._deadline = time.monotonic() + within
        for data in self._body:  # delegating would close the body along with this generator
            yield Piece(time.monotonic(), data)

    def read(self, *, within: float = PATIENCE) -> bytes:
        """Return the body; :class:`CutError` as in :meth:`pieces`."""
        return b"".join(piece.data for piece in self.pieces(within=within))

    def read_until(self, end: bytes, *, within: float = PATIENCE) -> bytes:
        """Return the body's next bytes, up to a piece that completes ``end``."""
        body = b""
        for piece in self.pieces(within=within):
            body += piece.data
            if end in body:
                return body
        raise AssertionError(f"The body ended without {end!r}: {body!r}")

    def read_to_the_cut(self, *, within: float = PATIENCE) -> bytes:
        """Return what came of a body that must not end: its connection has to be cut."""
        body = b""
        try:
            for piece in self.pieces(within=within):
                body += piece.data
        except CutError:
            return body
        raise AssertionError(f"The body ended as if it were whole: {body!r}")

    def _decoded(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int(self._line().split(b";")[0], 16):
                yield self._exactly(size)
            while self._line():
                pass
        elif "content-length" in self.headers:
            yield self.connection.take(int(self.headers["content-length"]), self._deadline)
        else:
            with contextlib.suppress(ClosedError):
                while True:
                    yield self.connection.take_some(self._deadline)

    def _exactly(self, size: int) -> bytes:
        data = self.connection.take(size, self._deadline)
        rest = self._line()
        assert not rest, f"A chunk is longer than it said: {rest!r}"
        return data

    def _line(self) -> bytes:
        return self.connection.take_line(self._deadline)


def assert_forgets_requests(port: int) -> None:
    """Wait until the Daphne at a port has cleaned up behind the requests that it has answered."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with Connection(port) as connection:
            known = int(connection.get("/connections").read())
        if known <= 5:  # this one itself is always there
            return
        assert time.monotonic() < deadline, f"Daphne has kept {known} requests."
        time.sleep(0.1)  # it looks once a second
