"""
What the streams of the live site do: a play that the test writes, and a diary of how it went.

The test sends the play along in the query string, so that one can read in the test what its stream does. The diary
is a file that the server's process writes and the test reads, so that it can be waited for even where the
connection is gone. Both sides read the same monotonic clock.

No stream is without bounds, in time or in bytes: what nobody reads piles up in the memory of some server.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlencode

#: How long, in seconds, a test waits for what should come at once. A test that runs into it has failed.
PATIENCE: Final = 15.0

#: How long, in seconds, a stream is silent "for ever" or waits for a cue: longer than a test waits for anything.
FOR_EVER: Final = 60.0

#: How many bytes of data the events of a flood have together: far more than the buffers between a server and a
#: client that does not read can hold, which are some 4 MB, and few enough for a server that queues them all.
FLOOD: Final = 32 * 1024 * 1024

#: Stands before each record in the file where the site logs what happens on ``django.request``.
RECORD_SEPARATOR: Final = "\x1e"


@dataclass(frozen=True)
class Cue:
    """Wait until the test gives this cue."""

    name: str


ErrorKind = Literal["RuntimeError", "Http404", "PermissionDenied"]


@dataclass(frozen=True)
class Fail:
    """Raise an error of this kind with this text."""

    text: str
    kind: ErrorKind = "RuntimeError"


@dataclass(frozen=True)
class Big:
    """Yield one event with so much data."""

    size: int


@dataclass(frozen=True)
class Flood:
    """Yield :data:`FLOOD` bytes in events with so much data, and await nothing in between."""

    size: int


#: A text is a chunk, a number that many seconds of silence, and ``None`` silence "for ever".
Line = str | float | Cue | Fail | Big | Flood | None

_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Cue, Fail, Big, Flood)}


def written(play: Sequence[Line]) -> str:
    """Return a play as text, for the query string."""
    return json.dumps(
        [
            line if line is None or isinstance(line, (str, int, float)) else [type(line).__name__, vars(line)]
            for line in play
        ]
    )


def read(text: str) -> list[Line]:
    """Return the play that :func:`written` wrote."""
    return [_KINDS[line[0]](**line[1]) if isinstance(line, list) else line for line in json.loads(text)]


@dataclass(frozen=True)
class Entry:
    """One line of a diary: what happened, and when on the machine's monotonic clock."""

    at: float
    text: str


class Diary:
    """What happened to one stream, in a file that both processes know."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name

    @classmethod
    def here(cls, name: str) -> "Diary":
        """Return the diary of that name in the process of a server."""
        return cls(Path(os.environ["LIVE_DIARIES"]), name)

    def write(self, text: str) -> None:
        """Add an entry; one write, so that a reader never sees half of it."""
        with self.path.open("a") as file:
            file.write(json.dumps([time.monotonic(), text]) + "\n")

    def entries(self) -> list[Entry]:
        """Return what has been written so far."""
        if not self.path.exists():
            return []
        return [Entry(*json.loads(line)) for line in self.path.read_text().splitlines()]

    def texts(self) -> list[str]:
        """Return what has been written so far, without the times."""
        return [entry.text for entry in self.entries()]

    def duration(self) -> float:
        """Return how many seconds lie between the first entry and the last."""
        entries = self.entries()
        return entries[-1].at - entries[0].at

    def wait_for(self, start: str, *, within: float = PATIENCE) -> Entry:
        """Return the first entry that begins so, as soon as it is there; fail with what is there otherwise."""
        for _ in _moments(within):
            if found := next((entry for entry in self.entries() if entry.text.startswith(start)), None):
                return found
        raise AssertionError(f"No {start!r} within {within} s, only {self.texts()}")

    def give(self, cue: Cue) -> None:
        """Let a stream that waits for this cue go on."""
        self._cue_file(cue).touch()

    async def cue(self, cue: Cue) -> None:
        """Wait for a cue; asks the file system, for the test has no other way in that would not be a request."""
        async with asyncio.timeout(FOR_EVER):
            while not self._cue_file(cue).exists():
                await asyncio.sleep(0.005)

    def _cue_file(self, cue: Cue) -> Path:
        return self.path.with_name(f"{self.path.name}.{cue.name}")


def _moments(within: float) -> Iterator[None]:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        yield
        time.sleep(0.005)
    yield


async def perform(play: Sequence[Line], diary: Diary) -> AsyncGenerator[str, None]:
    """Stream a play: the upstream of every stream of the site."""
    diary.write("started")
    task = asyncio.current_task()
    end = "its end"
    try:
        for line in play:
            match line:
                case None:
                    await asyncio.sleep(FOR_EVER)
                case str():
                    yield line
                case Cue():
                    await diary.cue(line)
                case Fail():
                    raise _error(line)
                case Big():
                    yield big_event(line.size)
                case Flood():
                    for _ in range(FLOOD // line.size):
                        yield big_event(line.size)
                case seconds:
                    await asyncio.sleep(seconds)
    except BaseException as error:
        end = type(error).__name__
        raise
    finally:
        diary.write(f"ended by {end} in {'its own' if asyncio.current_task() is task else 'another'} task")
        await asyncio.sleep(0.05)
        diary.write("cleaned up")


def big_event(size: int) -> str:
    """Return an event with so much data."""
    return f"data: {'x' * size}\n\n"


def _error(line: Fail) -> Exception:
    # Django is not imported above, for the test's side of this module has no use for it.
    from django.core.exceptions import PermissionDenied
    from django.http import Http404

    kinds: dict[ErrorKind, type[Exception]] = {
        "RuntimeError": RuntimeError,
        "Http404": Http404,
        "PermissionDenied": PermissionDenied,
    }
    return kinds[line.kind](line.text)


class Stream:
    """One stream that a test is going to ask a server for: its address and its diary."""

    def __init__(self, diaries: Path, view: str, play: Sequence[Line], **query: str | float) -> None:
        self.name = uuid.uuid4().hex
        self.diary = Diary(diaries, self.name)
        self.path = f"/{view}?" + urlencode({"name": self.name, "play": written(play), **query})
