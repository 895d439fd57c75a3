"""A real browser on the live site: what its own ``EventSource`` makes of our streams."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from sse_keepalive.frames import EVENT, FRAMES

from .browser import chromium
from .http import Connection
from .play import PATIENCE, Cue, Line, Stream
from .servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.peers

#: At each of these the stream is silent between two events, until a frame has reached the browser.
CUES: Final = [Cue(name) for name in ("before the first", "after the first", "before the last", "before the end")]

#: In the middle of an event there need not be a frame, only time enough for several.
SILENCE: Final = 0.3

PLAY: Final[list[Line]] = [
    CUES[0],
    *("id: 1\n", "data: several\ndata: lines\n\n"),
    CUES[1],
    *("event: price\n", SILENCE, 'id: 2\ndata: {"a":', SILENCE, " 1}\n", SILENCE, "data\n", SILENCE, "\n"),
    *("data: Grüß Gott\r", SILENCE, "\n", SILENCE, "\r\n"),
    "data:  spaces \nevent: price\n\n",
    CUES[2],
    "id\nevent: last\ndata: without an id\n\n",
    CUES[3],
]

#: The types, data and ids of its events.
EVENTS: Final = [
    ["message", "several\nlines", "1"],
    ["price", '{"a": 1}\n', "2"],
    ["message", "Grüß Gott", "2"],
    ["price", " spaces ", "2"],
    ["last", "without an id", ""],
]

#: How many of them stand before each cue.
EVENTS_BEFORE: Final = [0, 1, 4, 5]

KEEP_ALIVE: Final = "keep-alive"

#: Notes each event until the stream ends, after which an ``EventSource`` left alone would ask for it again.
LISTEN: Final = """([path, types]) => {
    window.heard = [];
    window.isOver = false;
    const source = new EventSource(path);
    for (const type of types)
        source.addEventListener(type, event => heard.push([event.type, event.data, event.lastEventId]));
    source.onerror = () => { source.close(); isOver = true; };
}"""


@pytest.fixture
def browser() -> Iterator["Browser"]:
    """Return a running browser."""
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: "Browser", daphne: Server) -> "Page":
    """Return a page of the live site."""
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{daphne.port}/ping")
    return page


class Listener:
    """An ``EventSource`` that listens to a stream, in a page of the same site."""

    def __init__(self, page: "Page", stream: Stream) -> None:
        #: How many bytes of the stream the browser has received each time; it does not tell the page.
        self.pieces: list[int] = []
        self._page = page
        self._requests: set[str] = set()
        inspector = page.context.new_cdp_session(page)
        inspector.on("Network.requestWillBeSent", self._note_request)
        inspector.on("Network.dataReceived", self._note_piece)
        inspector.send("Network.enable")
        page.evaluate(LISTEN, [stream.path, ["message", "price", "last", KEEP_ALIVE]])

    def wait_for_frame(self, frame: str, events: int) -> None:
        """Wait for a frame after so many events."""
        self._page.wait_for_function(f"heard.filter(([type]) => type != '{KEEP_ALIVE}').length == {events}")
        before = len(self.pieces)
        deadline = time.monotonic() + PATIENCE
        while len(frame) not in self.pieces[before:]:
            assert time.monotonic() < deadline, f"No frame came after {events} events: {self.pieces}"
            self._page.wait_for_timeout(20)  # meanwhile Playwright tells us what the browser receives

    def events(self) -> list[list[str]]:
        """Wait until the stream is over, and return the type, data and id of all events."""
        self._page.wait_for_function("isOver")
        heard: list[list[str]] = self._page.evaluate("heard")
        return heard

    def _note_request(self, message: dict[str, Any]) -> None:
        if message["type"] == "EventSource":
            self._requests.add(message["requestId"])

    def _note_piece(self, message: dict[str, Any]) -> None:
        if message["requestId"] in self._requests:
            self.pieces.append(message["dataLength"])


def test_a_browser_shows_a_page_of_the_live_site(page: "Page", daphne: Server) -> None:
    """If this one fails, the others say nothing about streams."""
    with Connection(daphne.port) as connection:
        assert page.inner_text("body") == connection.get("/ping").read().decode()


def test_an_event_source_hears_the_bare_stream(page: "Page", daphne: Server) -> None:
    """
    Not ours: what the next test compares with.

    Uncompressed, because Django before 6.1 compresses each chunk for itself, and browsers read the first one alone.
    """
    page.set_extra_http_headers({"Accept-Encoding": "identity"})
    stream = daphne.stream("bare", PLAY)
    for cue in CUES:
        stream.diary.give(cue)
    assert Listener(page, stream).events() == EVENTS


@pytest.mark.parametrize("name", FRAMES)
def test_f4_an_event_source_hears_the_same_events_with_frames_in_between(
    page: "Page", daphne: Server, name: str
) -> None:
    """F4, F7: before the first event, between two, inside of one, and before the end of the stream."""
    frame = FRAMES[name]
    stream = daphne.stream("alive", PLAY, interval=0.1, frame=name)
    listener = Listener(page, stream)
    for cue, events in zip(CUES, EVENTS_BEFORE, strict=True):
        listener.wait_for_frame(frame, events)
        stream.diary.give(cue)
    heard = listener.events()
    assert [event for event in heard if event[0] != KEEP_ALIVE] == EVENTS
    keep_alives = [data for kind, data, _ in heard if kind == KEEP_ALIVE]
    assert set(keep_alives) == ({"{}"} if frame == EVENT else set())


def test_a_browser_ends_with_its_block_and_leaves_no_loop_behind() -> None:
    """Whatever ends the block; the tests that come next may be asynchronous, or use the ORM."""
    with contextlib.suppress(KeyError), chromium() as browser:
        assert browser.is_connected()
        raise KeyError
    assert not browser.is_connected()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_a_missing_browser_fails_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is not skipped: nobody would notice."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="no chromium on this machine"), chromium():
        pass
