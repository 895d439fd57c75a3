"""The wire layer, judged by the standard's decoder: events, frames, where a stream has stopped."""

import copy
import itertools
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import AnyStr, cast

import httpx
import httpx_sse
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sse_keepalive
from sse_keepalive.frames import (
    COMMENT,
    EVENT,
    FRAMES,
    LINE,
    SSE_KEEP_ALIVE_COMMENT,
    START,
    TELLING_LENGTH,
    Frame,
    Place,
    ServerSentEvent,
    Tracker,
    as_frame,
    place_after,
)
from tests.whatwg import BYTE_ORDER_MARK, Decoded, Event, decode

KEEP_ALIVE_TYPE = "keep-alive"

Chunk = str | bytes


def wire(chunk: Chunk) -> bytes:
    return chunk.encode() if isinstance(chunk, str) else bytes(chunk)


# The oracle is itself held to the examples of the standard that it was written from.


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(
            b"data: This is the first message.\n\n"
            b"data: This is the second message, it\ndata: has two lines.\n\n"
            b"data: This is the third message.\n\n",
            [
                Event("message", "This is the first message.", ""),
                Event("message", "This is the second message, it\nhas two lines.", ""),
                Event("message", "This is the third message.", ""),
            ],
            id="three messages",
        ),
        pytest.param(
            b"event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\nevent: add\ndata: 113411\n\n",
            [
                Event("add", "73857293", ""),
                Event("remove", "2153", ""),
                Event("add", "113411", ""),
            ],
            id="two types",
        ),
        pytest.param(
            b"data: YHOO\ndata: +2\ndata: 10\n\n",
            [Event("message", "YHOO\n+2\n10", "")],
            id="stocks",
        ),
        pytest.param(
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [
                Event("message", "first event", "1"),
                Event("message", "second event", ""),
                Event("message", " third event", ""),
            ],
            id="four blocks",
        ),
        pytest.param(
            b"data\n\ndata\ndata\n\ndata:",
            [Event("message", "", ""), Event("message", "\n", "")],
            id="fields without a colon",
        ),
        pytest.param(
            b"data:test\n\ndata: test\n\n",
            [Event("message", "test", ""), Event("message", "test", "")],
            id="the space after the colon",
        ),
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_f4_the_decoder_reads_the_standards_examples(stream: bytes, events: list[Event], line_end: bytes) -> None:
    assert decode(stream.replace(b"\n", line_end)) == Decoded(tuple(events), "", None)


@pytest.mark.parametrize(
    ("stream", "decoded"),
    [
        pytest.param(b"", Decoded((), "", None), id="nothing"),
        pytest.param(b"data: x\n", Decoded((), "", None), id="an event without its end"),
        pytest.param(b"id: 1\n", Decoded((), "", None), id="an id that was not dispatched"),
        pytest.param(b"id: 1\n\n", Decoded((), "1", None), id="an id without data"),
        pytest.param(b"id: 1\n\nid: 2\0\n\n", Decoded((), "1", None), id="an id with NUL"),
        pytest.param(b"retry: 250\n", Decoded((), "", 250), id="retry needs no blank line"),
        pytest.param(b"retry: 250", Decoded((), "", None), id="retry needs its line end"),
        pytest.param(b"retry: 2.5\nretry: -1\nretry: x\nretry\n", Decoded((), "", None), id="bad retries"),
        pytest.param("retry: ٢\nretry: ²\n".encode(), Decoded((), "", None), id="digits that are not ASCII"),
        pytest.param(b"Data: x\n data: y\ndata : z\n\n", Decoded((), "", None), id="unknown fields"),
        pytest.param(
            b"event: x\n\ndata: y\n\n",
            Decoded((Event("message", "y", ""),), "", None),
            id="a type without data is forgotten",
        ),
        pytest.param(
            b"data: a\r\rdata: b\r\n\r\ndata: c\n\r\ndata: d\r\n\n",
            Decoded(tuple(Event("message", data, "") for data in "abcd"), "", None),
            id="mixed line ends",
        ),
        pytest.param(
            BYTE_ORDER_MARK + b"data: x\n\n",
            Decoded((Event("message", "x", ""),), "", None),
            id="one leading byte order mark",
        ),
        pytest.param(
            BYTE_ORDER_MARK * 2 + b"data: x\n\n",
            Decoded((), "", None),
            id="a second byte order mark",
        ),
        pytest.param(
            b"data: \xc3\n\ndata: \xe2\x82x\n\n",
            Decoded((Event("message", "\ufffd", ""), Event("message", "\ufffdx", "")), "", None),
            id="bytes that are no UTF-8",
        ),
        pytest.param(
            "data: a\u2028b\x85c\x0bd\x0ce\n\n".encode(),
            Decoded((Event("message", "a\u2028b\x85c\x0bd\x0ce", ""),), "", None),
            id="characters that end lines elsewhere",
        ),
    ],
)
def test_f4_the_decoder_follows_the_standard(stream: bytes, decoded: Decoded) -> None:
    assert decode(stream) == decoded


# F5: one event on the wire, and what the client gets of it.

ANY_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("\r\n\u2028\u2029\x85\x0b\x0c\x1c\0: \ufeff"),
    )
)
ANY_LINE = ANY_TEXT.map(lambda text: re.sub(r"[\r\n]", "", text))
ANY_ID = ANY_LINE.map(lambda text: text.replace("\0", ""))


def with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@settings(deadline=None)
@given(
    data=ANY_TEXT,
    event=st.none() | ANY_LINE,
    event_id=st.none() | ANY_ID,
    retry=st.none() | st.integers(min_value=0, max_value=10**12),
    comment=st.none() | ANY_TEXT,
)
def test_f5_an_event_comes_out_of_the_decoder_as_it_went_in(
    data: str, event: str | None, event_id: str | None, retry: int | None, comment: str | None
) -> None:
    text = ServerSentEvent(data, event=event, id=event_id, retry=retry, comment=comment)
    received = Event(event or "message", with_line_feeds(data), event_id or "")
    assert decode(text.encode()) == Decoded((received,), event_id or "", retry)
    assert place_after(text) is Place.BETWEEN_EVENTS


@settings(deadline=None)
@given(
    event=st.none() | ANY_LINE,
    event_id=st.none() | ANY_ID,
    retry=st.none() | st.integers(min_value=0, max_value=10**12),
    comment=ANY_TEXT,
)
def test_f5_an_event_without_data_is_not_dispatched(
    event: str | None, event_id: str | None, retry: int | None, comment: str
) -> None:
    text = ServerSentEvent(event=event, id=event_id, retry=retry, comment=comment)
    assert decode(text.encode()) == Decoded((), event_id or "", retry)


@settings(deadline=None)
@given(st.lists(ANY_TEXT))
def test_f5_events_in_a_row_stay_apart(payloads: list[str]) -> None:
    stream = "".join(ServerSentEvent(data) for data in payloads)
    assert [event.data for event in decode(stream.encode()).events] == [with_line_feeds(data) for data in payloads]


def test_f5_the_fields_stand_in_this_order_on_the_wire() -> None:
    event = ServerSentEvent("a\nb", event="tick", id="7", retry=250, comment="c\nd")
    assert event == ": c\n: d\nevent: tick\ndata: a\ndata: b\nid: 7\nretry: 250\n\n"


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_f5_data_is_split_at_the_line_ends_of_event_streams(line_end: str) -> None:
    assert ServerSentEvent(f"a{line_end}b") == "data: a\ndata: b\n\n"
    assert ServerSentEvent(f"a{line_end}") == "data: a\ndata: \n\n"


@pytest.mark.parametrize(
    "character",
    "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029",
    ids=["VT", "FF", "FS", "GS", "RS", "NEL", "U+2028", "U+2029"],
)
def test_f5_what_only_python_takes_for_a_line_end_is_data(character: str) -> None:
    text = f"a{character}b"
    assert ServerSentEvent(text) == f"data: {text}\n\n"
    event = ServerSentEvent(text, event=text, id=text, comment=text)
    assert decode(event.encode()).events == (Event(text, text, text),)


def test_f5_empty_data_is_an_event_with_empty_data() -> None:
    assert decode(ServerSentEvent("").encode()).events == (Event("message", "", ""),)


def test_f5_an_empty_id_clears_the_last_event_id() -> None:
    stream = ServerSentEvent("x", id="7") + ServerSentEvent("y", id="")
    assert decode(stream.encode()).events == (
        Event("message", "x", "7"),
        Event("message", "y", ""),
    )


@pytest.mark.parametrize("number", [0, 7, -7, 10**30])
def test_f5_an_id_may_be_a_number(number: int) -> None:
    assert decode(ServerSentEvent("x", id=number).encode()).last_event_id == str(number)


@pytest.mark.parametrize("retry", [0, 1, 86_400_000])
def test_f5_a_retry_is_in_milliseconds(retry: int) -> None:
    assert decode(ServerSentEvent(retry=retry).encode()).reconnection_time == retry


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(("event", "id"), ("\n", "a\n", "\ra", "a\rb", "a\r\nb")),
        *itertools.product(("id",), ("\0", "a\0b")),
        *itertools.product(("retry",), (-1, 1.0, 2.5, "250", float("nan"), float("inf"), True, False, b"1", "")),
    ],
)
def test_f5_what_a_field_cannot_carry_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field}\b"):
        ServerSentEvent("data", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["data", "event", "comment"])
@pytest.mark.parametrize("value", [b"bytes", 1, 1.5, True, ["x"], {"x": 1}])
def test_f5_what_is_not_text_is_refused_by_its_fields_name(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^{field}\b.*{type(value).__name__}"):
        ServerSentEvent(**{field: value})  # type: ignore[arg-type]


class Kind(str, Enum):  # noqa: UP042 - its str() is not its value
    TICK = "tick"


def test_f5_a_string_of_an_enumeration_counts_by_its_value() -> None:
    event = ServerSentEvent(Kind.TICK, event=Kind.TICK, id=Kind.TICK, comment=Kind.TICK)
    assert event == ServerSentEvent("tick", event="tick", id="tick", comment="tick")


def test_f5_an_event_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="data, event, id, retry and comment"):
        ServerSentEvent()


def test_f5_an_event_is_a_string() -> None:
    event = ServerSentEvent("x")
    assert isinstance(event, str)
    assert f"{event}" == str(event) == "data: x\n\n"
    assert event.encode() == b"data: x\n\n"
    assert {event: 1} == {"data: x\n\n": 1}
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_f5_a_pickled_event_keeps_its_text(protocol: int) -> None:
    event = ServerSentEvent("a\nb", event="tick", id=7)
    assert pickle.loads(pickle.dumps(event, protocol)) == event


def test_f5_a_copied_event_keeps_its_text() -> None:
    event = ServerSentEvent("a\nb", event="tick", id=7)
    assert copy.copy(event) == event
    assert copy.deepcopy([event]) == [event]


# F1, F7: the ready-made frames.


def test_f1_the_default_frame_is_a_comment_and_a_blank_line() -> None:
    assert SSE_KEEP_ALIVE_COMMENT == COMMENT == ": keep-alive\n\n"


def test_f7_the_ready_made_frames_have_these_names() -> None:
    assert FRAMES == {
        "COMMENT": ": keep-alive\n\n",
        "LINE": ": keep-alive\n",
        "EVENT": "event: keep-alive\ndata: {}\n\n",
    }
    assert FRAMES == {"COMMENT": COMMENT, "LINE": LINE, "EVENT": EVENT}


@pytest.mark.parametrize("frame", [COMMENT, LINE])
def test_f7_comments_dispatch_nothing(frame: str) -> None:
    assert decode(frame.encode() * 3) == Decoded((), "", None)


def test_f7_the_event_dispatches_one_event_of_its_own_type_with_json() -> None:
    (event,) = decode(EVENT.encode()).events
    assert event.type == KEEP_ALIVE_TYPE
    assert json.loads(event.data) == {}


# F2, F3, F4: where a stream has stopped.


def place_of(stream: bytes) -> Place:
    """
    Tell the place from the whole stream so far, byte by byte: slow and obvious.

    A beginning of a byte order mark needs no word of its own: it is a line that has begun.
    """
    line_is_empty = True
    last_line_was_blank = True
    previous = b""
    for byte in stream.removeprefix(BYTE_ORDER_MARK):
        character = bytes([byte])
        if character == b"\n" and previous == b"\r":
            pass  # The second half of a line end that has been seen.
        elif character in (b"\n", b"\r"):
            last_line_was_blank = line_is_empty
            line_is_empty = True
        else:
            line_is_empty = False
        previous = character
    if previous == b"\r" or not line_is_empty:
        return Place.INSIDE_LINE
    return Place.BETWEEN_EVENTS if last_line_was_blank else Place.LINE_START


class Client:
    """
    What a client gets of a stream that is handed out as the core does it, with frames in between.

    Beside it stand the place that the whole stream so far tells, and the upstream's bytes alone.
    """

    def __init__(self, *, text: bool = False) -> None:
        self.tracker = Tracker(text=text)
        self.upstream = b""
        self.received = b""
        self.received_of_upstream = b""
        self.frame_came_first = False

    def get(self, chunk: Chunk) -> None:
        self.upstream += wire(chunk)
        if self.tracker.has_opened and len(chunk) >= TELLING_LENGTH:
            self.tracker.tail = chunk
        else:
            chunk = self.tracker.follow(chunk)
        self._receive(chunk)

    def get_frame(self, frame: Frame) -> bool:
        """Return whether the frame, or its comments, could go out."""
        text = frame.at(self.tracker.tail)
        if text is None:
            return False
        self.tracker.sent_frame()
        self.frame_came_first = self.frame_came_first or self.received == b""
        self.received += wire(text)
        return True

    def get_end(self) -> None:
        self._receive(self.tracker.held_back())

    def _receive(self, chunk: Chunk) -> None:
        self.received += wire(chunk)
        self.received_of_upstream += wire(chunk)

    @property
    def is_waiting_for_a_mark(self) -> bool:
        """Whether what came behind a frame may become a byte order mark, and is held back."""
        return self.frame_came_first and is_part_of_a_mark(self.upstream)

    @property
    def place(self) -> Place:
        return Place.BETWEEN_EVENTS if self.is_waiting_for_a_mark else place_of(self.upstream)

    @property
    def upstream_on_the_wire(self) -> bytes:
        """What has to be received of the upstream, byte by byte."""
        if self.is_waiting_for_a_mark:
            return b""
        return self.upstream.removeprefix(BYTE_ORDER_MARK) if self.frame_came_first else self.upstream


def is_part_of_a_mark(stream: bytes) -> bool:
    return stream in (b"\xef", b"\xef\xbb")


def ways_to_cut(stream: bytes) -> Iterator[list[bytes]]:
    for cuts in itertools.product((False, True), repeat=max(len(stream) - 1, 0)):
        edges = [0, *(position for position, cut in enumerate(cuts, 1) if cut), len(stream)]
        yield [stream[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("stream", "place"),
    [
        ("data: x", Place.INSIDE_LINE),
        ("data: x\n", Place.LINE_START),
        ("data: x\n\n", Place.BETWEEN_EVENTS),
        ("data: x\r", Place.INSIDE_LINE),
        ("data: x\r\r", Place.INSIDE_LINE),
        ("data: x\r\n", Place.LINE_START),
        ("data: x\r\n\r", Place.INSIDE_LINE),
        ("data: x\r\n\r\n", Place.BETWEEN_EVENTS),
        ("data: x\n\r\n", Place.BETWEEN_EVENTS),
        ("data: x\r\r\n", Place.BETWEEN_EVENTS),
        ("data: x\r\n\n", Place.BETWEEN_EVENTS),
        ("data: x\u2028", Place.INSIDE_LINE),
        ("data: x\n\x85\n", Place.LINE_START),
        ("data: x\n\x0b", Place.INSIDE_LINE),
        ("data: x\n\n: comment\n", Place.LINE_START),
    ],
)
def test_f3_a_place_is_told_from_lf_crlf_and_cr(stream: str, place: Place) -> None:
    assert place_after(stream) is place
    assert place_after(stream.encode()) is place
    assert place_of(stream.encode()) is place


@pytest.mark.parametrize("length", range(7))
def test_f3_line_ends_are_followed_however_they_are_cut(length: int) -> None:
    for characters in itertools.product((b"x", b"\n", b"\r"), repeat=length):
        stream = b"".join(characters)
        expected = place_of(stream)
        for chunks in ways_to_cut(stream):
            client = Client()
            for chunk in chunks:
                client.get(chunk)
            assert place_after(client.tracker.tail) is expected, chunks


def test_f2_a_stream_starts_between_two_events() -> None:
    assert place_after(START) is Place.BETWEEN_EVENTS
    assert Tracker(text=True).is_between_events()


@pytest.mark.parametrize(
    ("stream", "is_complete"),
    [("data: x", False), ("data: x\n", False), ("data: x\n\r", False), ("data: x\n\n", True)],
)
def test_f2_the_tracker_knows_whether_an_event_is_complete(stream: str, is_complete: bool) -> None:
    tracker = Tracker(text=True)
    tracker.follow(stream)
    assert tracker.is_between_events() is is_complete


def test_f3_an_empty_chunk_changes_nothing() -> None:
    tracker = Tracker(text=True)
    for empty in ("", b""):
        assert tracker.follow(empty) == empty
    assert tracker.tail == START
    assert not tracker.has_opened
    tracker.follow("data: x\r\n")
    for empty in ("", b""):
        assert tracker.follow(empty) == empty
    assert place_after(tracker.tail) is Place.LINE_START


@pytest.mark.parametrize("big", ["x" * 100_000 + "\r\n", b"x" * 100_000 + b"\r\n"], ids=["str", "bytes"])
def test_f3_a_tail_that_follows_a_short_chunk_holds_no_big_one(big: Chunk) -> None:
    client = Client()
    client.get("x")
    client.get(big)
    client.get("\n")
    assert len(client.tracker.tail) < 10
    assert client.tracker.is_between_events()


@pytest.mark.parametrize(
    ("chunk", "has_sent"),
    [("", False), (b"", False), ("x", True), (b"x", True), (BYTE_ORDER_MARK[:1], True)],
)
def test_f2_the_tracker_knows_whether_anything_was_sent(chunk: Chunk, has_sent: bool) -> None:
    tracker = Tracker(text=True)
    tracker.follow(chunk)
    assert tracker.has_sent is has_sent


def test_f2_a_frame_counts_as_something_that_was_sent() -> None:
    tracker = Tracker(text=True)
    tracker.sent_frame()
    assert tracker.has_sent


# F1, F2: what a frame looks like at each place.


@pytest.mark.parametrize(
    ("frame", "inside_an_event"),
    [
        pytest.param(COMMENT, ": keep-alive\n", id="COMMENT"),
        pytest.param(LINE, ": keep-alive\n", id="LINE"),
        pytest.param(EVENT, None, id="EVENT"),
        pytest.param(": a\n: b\n\n", ": a\n: b\n", id="two comments"),
        pytest.param(": a\r\n\r\n", ": a\n", id="CRLF"),
        pytest.param(": a\ndata: x\n\n", None, id="a comment in an event"),
    ],
)
def test_f2_a_frame_is_whole_between_events_and_comments_alone_inside_one(
    frame: str, inside_an_event: str | None
) -> None:
    checked = as_frame(frame)
    assert checked.at("data: x\n\n") == frame
    assert checked.at("data: x\n") == inside_an_event
    assert checked.at("data: x") is None
    assert checked.at("data: x\r") is None
    # F1: in bytes as in text.
    assert checked.at(b"data: x\n\n") == frame.encode()
    assert checked.at(b"data: x\n") == (inside_an_event and inside_an_event.encode())
    assert checked.at(b"data: x") is None


@pytest.mark.parametrize("as_bytes", [False, True], ids=["str", "bytes"])
def test_f1_before_the_first_chunk_a_frame_has_the_type_that_the_tracker_was_told(
    as_bytes: bool,
) -> None:
    expected: Chunk = COMMENT.encode() if as_bytes else COMMENT
    assert as_frame(COMMENT).at(Tracker(text=not as_bytes).tail) == expected


@pytest.mark.parametrize("text", [False, True], ids=["told bytes", "told str"])
@pytest.mark.parametrize("short", [False, True], ids=["long chunks", "short chunks"])
@pytest.mark.parametrize("opened", [False, True], ids=["first chunk", "later chunk"])
def test_f1_behind_a_chunk_a_frame_has_its_type(text: bool, short: bool, opened: bool) -> None:
    client = Client(text=text)
    if opened:
        client.get("data: x\n\n" if text else b"data: x\n\n")
    for chunk in ("\n\n" if short else "data: y\n\n", b"\n\n" if short else b"data: y\n\n") * 2:
        client.get(chunk)
        client.get("")
        client.get(b"")
        frame = as_frame(COMMENT).at(client.tracker.tail)
        assert type(frame) is type(chunk)


# F3: byte order marks.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"data: x\n\n",
        BYTE_ORDER_MARK,
        BYTE_ORDER_MARK + b"data: x\n\n",
        b"\xef",
        b"\xef\xbb\xbe",
        b"\n\n" + BYTE_ORDER_MARK + b"data: x\n\ndata: y\n\n",
    ],
)
@pytest.mark.parametrize("mark", [BYTE_ORDER_MARK[:length] for length in range(4)])
@pytest.mark.parametrize("frame", [COMMENT, LINE, EVENT], ids=["COMMENT", "LINE", "EVENT"])
@pytest.mark.parametrize("begins_with_frame", [True, False])
def test_f3_a_byte_order_mark_counts_only_as_the_very_first_thing(
    mark: bytes, content: bytes, frame: str, begins_with_frame: bool
) -> None:
    stream = mark + content
    opening, rest = stream[:6], stream[6:]
    for pieces in ways_to_cut(opening):
        client = Client()
        if begins_with_frame:
            assert client.get_frame(as_frame(frame))
        for chunk in [*pieces, rest]:
            client.get(chunk)
            assert client.received_of_upstream == client.upstream_on_the_wire, pieces
            assert place_after(client.tracker.tail) is client.place, pieces
            client.get_frame(as_frame(frame))
        client.get_end()
        assert decode(client.received).without(KEEP_ALIVE_TYPE) == decode(stream), pieces


@pytest.mark.parametrize("begins_with_frame", [True, False])
def test_f3_a_byte_order_mark_in_text_is_one_character(begins_with_frame: bool) -> None:
    client = Client(text=True)
    if begins_with_frame:
        client.get_frame(as_frame(COMMENT))
    client.get("\ufeff")
    assert client.received_of_upstream == (b"" if begins_with_frame else BYTE_ORDER_MARK)
    assert client.get_frame(as_frame(COMMENT)), "nothing has begun yet"
    client.get("\ufeffdata: x\n\ndata: y\n\n")
    assert [event.data for event in decode(client.received).events] == ["y"]


def test_f3_what_never_became_a_mark_is_handed_out_at_the_end() -> None:
    client = Client()
    client.get_frame(as_frame(COMMENT))
    client.get(BYTE_ORDER_MARK[:2])
    assert client.received == COMMENT.encode()
    client.get_end()
    assert client.received == COMMENT.encode() + BYTE_ORDER_MARK[:2]
    client = Client()
    client.get(BYTE_ORDER_MARK[:2])
    client.get_end()
    assert client.received == BYTE_ORDER_MARK[:2]


# F4: whatever the stream, wherever it is cut, whichever frames.

PIECES = [
    *("\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n", ":", ": ", " ", "x", "\0"),
    *(
        "data",
        "data: ",
        "data:x\n\n",
        "event",
        "event: x\n",
        "id",
        "id: 7\r",
        "id:\0",
        "retry: 5\n",
    ),
    *("é", "€", "\U0001f600", "\u2028", "\x85", "\x0b", "\x0c", "\ufeff"),
]
BYTE_PIECES = [
    *(piece.encode() for piece in PIECES),
    *(b"\xef", b"\xbb", b"\xbf", b"\xef\xbb", b"\xc3", b"\xa9", b"\xe2\x82", b"\xff"),
]
FRAME_TEXTS = [
    COMMENT,
    LINE,
    EVENT,
    ":\n",
    ": a\n: b\n",
    ": a\r: b\r\n\n\n: c\n",
    "event: keep-alive\r\ndata: \ufeff\r\n\r\n",
    ": a\nevent: keep-alive\ndata\n: b\n\n",
]


@st.composite
def cut(draw: st.DrawFn) -> list[Chunk]:
    """A stream in chunks: text cut between characters, bytes anywhere, or both in turns."""
    chunks: list[Chunk] = []
    kinds = draw(st.sampled_from([("text",), ("bytes",), ("view",), ("text", "bytes", "view")]))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        if kind == "text":
            text = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=10)))
            chunks += pieces_of(text, draw(st.lists(st.integers(0, len(text)), max_size=8)))
        else:
            stream = b"".join(draw(st.lists(st.sampled_from(BYTE_PIECES), max_size=10)))
            pieces = pieces_of(stream, draw(st.lists(st.integers(0, len(stream)), max_size=8)))
            # A response's chunks may be views of bytes, which the tracker treats as bytes.
            chunks += pieces if kind == "bytes" else [cast("bytes", memoryview(b)) for b in pieces]
    return chunks


def pieces_of(stream: AnyStr, cuts: list[int]) -> list[AnyStr]:
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


def check_that_frames_damage_nothing(chunks: list[Chunk], offers: Iterator[str | None]) -> None:
    client = Client()
    for chunk in [b"", *chunks]:
        client.get(chunk)
        assert place_after(client.tracker.tail) is client.place
        assert client.received_of_upstream == client.upstream_on_the_wire
        while (offer := next(offers, None)) is not None:
            client.get_frame(as_frame(offer))
    client.get_end()
    assert decode(client.received).without(KEEP_ALIVE_TYPE) == decode(client.upstream)


@settings(deadline=None, max_examples=400)
@given(chunks=cut(), frame=st.sampled_from(FRAME_TEXTS))
@example(chunks=["data: a\r", "\ndata: b\n\n"], frame=COMMENT)
@example(chunks=[b"data: a\r\n", b"\r\n"], frame=COMMENT)
@example(chunks=["event: x\n", "data: y\n\n"], frame=EVENT)
@example(chunks=['data: {"a":', "1}\n\n"], frame=EVENT)
@example(chunks=["id: 7\n", "\n"], frame=COMMENT)
@example(chunks=[b"data: \xc3", b"\xa9\n\n"], frame=LINE)
def test_f4_a_frame_at_every_cut_changes_nothing_that_is_decoded(chunks: list[Chunk], frame: str) -> None:
    check_that_frames_damage_nothing(chunks, itertools.cycle([frame, None]))


@settings(deadline=None, max_examples=400)
@given(chunks=cut(), offers=st.lists(st.none() | st.sampled_from(FRAME_TEXTS)))
def test_f4_frames_here_and_there_change_nothing_that_is_decoded(
    chunks: list[Chunk], offers: list[str | None]
) -> None:
    check_that_frames_damage_nothing(chunks, iter(offers))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_f4_an_ordinary_stream_may_be_cut_anywhere(frame: str, line_end: str) -> None:
    text = "event: a\ndata: é\u2028\nid: 7\n\n:\ndata: z\n\n".replace("\n", line_end)
    for stream in (text, text.encode()):
        for first, second in itertools.combinations(range(len(stream) + 1), 2):
            chunks = [stream[:first], stream[first:second], stream[second:]]
            check_that_frames_damage_nothing(chunks, itertools.cycle([frame, None]))


# F6: custom frames.


@pytest.mark.parametrize("name", FRAMES)
def test_f6_a_ready_made_frame_goes_by_its_name_or_its_text(name: str) -> None:
    assert as_frame(name) == as_frame(name.encode()) == as_frame(FRAMES[name])
    assert as_frame(name).whole == FRAMES[name]


@pytest.mark.parametrize(
    "frame",
    [
        ":\n",
        ":\n\n",
        ": x\n",
        ":x\n:y\n\n",
        ": x\r\n",
        ": é\u2028data: x\n",
        ": x" + " " * 2048 + "\n\n",
        "data\n\n",
        "data: \n\n",
        "data: x\ndata: y\n\n",
        "event: ping\ndata: x\n\n",
        "data: x\nevent: ping\n\n",
        ": x\nevent: ping\ndata: x\n\n",
        "event: ping\r\ndata: x\r\n\r\n",
        ServerSentEvent("x", event="ping"),
        ServerSentEvent(comment="x"),
    ],
)
def test_f6_comments_alone_or_one_complete_event_make_a_frame(frame: str) -> None:
    assert as_frame(frame) == as_frame(frame.encode())
    assert as_frame(frame).whole == frame
    assert type(as_frame(frame).whole) is str


REFUSED_FRAMES = [
    pytest.param("", id="nothing"),
    pytest.param("\n", id="a blank line"),
    pytest.param("\n\n", id="two blank lines"),
    pytest.param("PING", id="an unknown name"),
    pytest.param("comment", id="a name in the wrong case"),
    pytest.param("COMMENT\n", id="a name and a line end"),
    pytest.param(": x", id="a comment without its line end"),
    pytest.param(": x\n: y", id="a second comment without its line end"),
    pytest.param(": x\r", id="a line end that may become another"),
    pytest.param(": x\n\r", id="a blank line that may become another"),
    pytest.param("data: x", id="data without a line end"),
    pytest.param("data: x\n", id="an event without its end"),
    pytest.param("data: x\n: y\n", id="an event that a comment leaves open"),
    pytest.param("data: x\r\n\r", id="an event whose end may become another"),
    pytest.param("data: x\n\ndata: y\n\n", id="two events"),
    pytest.param("data: x\n\n: y\n", id="a comment behind an event"),
    pytest.param(": x\n\ndata: y\n\n", id="an event behind a comment block"),
    pytest.param("event: ping\n\n", id="an event without data"),
    pytest.param("Data: x\n\n", id="a field in the wrong case"),
    pytest.param(" data: x\n\n", id="a field with a space before it"),
    pytest.param("ping\n\n", id="a field that nobody knows"),
    pytest.param("data: x\nid: 1\n\n", id="an id"),
    pytest.param("data: x\nid\n\n", id="an id that clears"),
    pytest.param("id: 1\n\n", id="an id alone"),
    pytest.param("retry: 1\n\n", id="retry alone"),
    pytest.param("data: x\nretry: 1\n\n", id="retry"),
    pytest.param("\ufeff: x\n", id="a byte order mark before a comment"),
    pytest.param("\ufeff: x\n\n", id="a byte order mark before a comment block"),
    pytest.param("\ufeffdata: x\n\n", id="a byte order mark before an event"),
    pytest.param("\ufeffevent: ping\ndata: x\n\n", id="a byte order mark before a type"),
    pytest.param(b": \xff\n", id="bytes that are no UTF-8"),
    pytest.param(b": \xc3\n", id="half a character"),
    pytest.param(b"\xed\xa0\x80", id="a surrogate in bytes"),
    pytest.param(": \ud800\n", id="a surrogate"),
]


@pytest.mark.parametrize("frame", REFUSED_FRAMES)
def test_f6_anything_else_is_refused_with_a_message_that_shows_it(frame: str | bytes) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(frame))):
        as_frame(frame)


@pytest.mark.parametrize("frame", [None, 15, True, ["COMMENT"], bytearray(b": x\n"), as_frame(COMMENT)])
def test_f6_a_frame_that_is_no_text_is_refused_by_its_type(frame: object) -> None:
    with pytest.raises(TypeError, match=f"str or bytes, not {type(frame).__name__}"):
        as_frame(frame)  # type: ignore[arg-type]


FRAME_LINES = [":", ": x", "data: x", "data", "event: x", "id: x", "retry: 5", "", "x", "\ufeff"]
FRAME_LIKE = st.lists(st.sampled_from(FRAME_LINES), max_size=4).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\r", "\n\n"]).map(
        lambda end: "".join(f"{line}\n" for line in lines) + end
    )
)


@settings(deadline=None, max_examples=400)
@given(FRAME_LIKE | st.lists(st.sampled_from(PIECES)).map("".join))
def test_f6_whatever_is_accepted_is_harmless(text: str) -> None:
    try:
        frame = as_frame(text)
    except ValueError:
        return
    before, after = ServerSentEvent("a", event="before", id="7"), "event: after\n"
    rest = "data: b\n\n"
    outside = decode((before + frame.whole + after + rest).encode())
    own = [event for event in outside.events if event.type not in ("before", "after")]
    assert len(own) == (1 if frame.comments is None else 0)
    assert len(outside.events) == 2 + len(own)
    assert (outside.last_event_id, outside.reconnection_time) == ("7", None)
    if frame.comments is not None:
        inside = decode((before + after + frame.comments + rest).encode())
        assert inside == decode((before + after + rest).encode())


# F4 once more, with a decoder that is in use.


def as_httpx_sse_reads(pieces: Iterable[bytes]) -> list[tuple[str, str, str, int | None]]:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=iter(list(pieces)))

    with (
        httpx.Client(transport=httpx.MockTransport(respond)) as client,
        httpx_sse.connect_sse(client, "GET", "http://testserver/") as source,
    ):
        return [(event.event, event.data, event.id, event.retry) for event in source.iter_sse()]


PLAIN_EVENTS = [
    ServerSentEvent("first"),
    ServerSentEvent("two\nlines, é\u2028", event="tick"),
    ServerSentEvent('{"third": 3}', comment="about the third"),
]
EVENTS_WITH_IDS = [ServerSentEvent("first", id=1), ServerSentEvent("second", id=2, event="tick")]


@pytest.mark.parametrize(
    ("events", "frame"),
    [
        pytest.param(PLAIN_EVENTS, COMMENT, id="COMMENT"),
        pytest.param(PLAIN_EVENTS, LINE, id="LINE"),
        pytest.param(PLAIN_EVENTS, EVENT, id="EVENT"),
        # Once an id has come, httpx-sse takes a blank line behind a comment for an event.
        pytest.param(EVENTS_WITH_IDS, LINE, id="LINE with ids"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_f4_httpx_sse_reads_the_same_events(events: list[ServerSentEvent], frame: str, line_end: str) -> None:
    stream = "".join(events).replace("\n", line_end).encode()
    bare = as_httpx_sse_reads([stream])
    assert len(bare) == len(events)
    for cut_at in range(len(stream) + 1):
        client = Client()
        pieces: list[bytes] = []
        for chunk in (b"", stream[:cut_at], stream[cut_at:]):
            client.get(chunk)
            client.get_frame(as_frame(frame))
            pieces.append(client.received[sum(map(len, pieces)) :])
        received = as_httpx_sse_reads(filter(None, pieces))
        assert [event for event in received if event[0] != KEEP_ALIVE_TYPE] == bare


# The layer needs nothing but the standard library, and not its event loop.


def test_frames_load_neither_django_nor_asyncio() -> None:
    program = "import sys; import sse_keepalive.frames; print(*sorted(sys.modules))"
    # -E and -S: neither the environment nor installed packages bring in modules of their own.
    finished = subprocess.run(
        [sys.executable, "-ES", "-c", program],
        cwd=Path(sse_keepalive.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in finished.stdout.split()}
    assert "sse_keepalive" in loaded
    assert not loaded & {"django", "asyncio", "asgiref"}
    assert loaded - {"sse_keepalive", "__main__"} <= set(sys.stdlib_module_names)
