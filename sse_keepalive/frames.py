"""
The wire: events, keep-alive frames, and where a stream has stopped.

An event stream is text in UTF-8: lines that end in LF, CRLF or CR, events that end in a blank line.
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

A keep-alive frame may go out wherever it cannot change what the client decodes, and one rule says where
that is: between two events anything complete; at the start of a line inside an event comment lines alone;
anywhere else, a lone CR (which an LF may still follow) included, nothing.
"""

import codecs
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Self

LINE_END: Final = re.compile(r"\r\n|\n|\r")

#: What goes out by default: a comment, which every conforming client ignores, and a blank line.
SSE_KEEP_ALIVE_COMMENT: Final = ": keep-alive\n\n"

COMMENT: Final = SSE_KEEP_ALIVE_COMMENT
#: For clients that take the blank line after a comment for an event of its own.
LINE: Final = ": keep-alive\n"
#: For browsers with a watchdog in JavaScript, which cannot see comments. The data is valid JSON for clients
#: that decode it whatever the event is called.
EVENT: Final = "event: keep-alive\ndata: {}\n\n"

#: The ready-made frames by name, as settings and operators call them.
FRAMES: Final = {"COMMENT": COMMENT, "LINE": LINE, "EVENT": EVENT}


class ServerSentEvent(str):
    """
    One event in its wire format, ready to be yielded by a stream: a string like any other from then on.

    :param data: the payload; each of its lines becomes a ``data`` field. ``None`` leaves the field out, and
        clients then do not dispatch the event.
    :param event: the event's type, what ``addEventListener`` is given. Browsers take ``message`` without it.
    :param id: what the client sends as ``Last-Event-ID`` when it reconnects. ``""`` clears it.
    :param retry: how long the client waits before it reconnects, in whole milliseconds.
    :param comment: text that clients ignore.
    :raises TypeError: for a field of another type.
    :raises ValueError: where a field cannot be put on the wire (a line end in ``event`` or ``id``, NUL in
        ``id``, a ``retry`` that is not a whole number from 0 on), or where all fields are missing.

    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    __slots__ = ()

    def __new__(
        cls,
        data: str | None = None,
        *,
        event: str | None = None,
        id: str | int | None = None,  # noqa: A002 - the field's name
        retry: int | None = None,
        comment: str | None = None,
    ) -> Self:
        fields = []
        if comment is not None:
            fields += [f": {line}" for line in _lines("comment", comment)]
        if event is not None:
            fields.append(f"event: {_single_line('event', event)}")
        if data is not None:
            fields += [f"data: {line}" for line in _lines("data", data)]
        if id is not None:
            fields.append(f"id: {_event_id(id)}")
        if retry is not None:
            fields.append(f"retry: {_milliseconds(retry)}")
        if not fields:
            raise ValueError("An event needs at least one of data, event, id, retry and comment.")
        return super().__new__(cls, "\n".join(fields) + "\n\n")

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A copy is the same text, not the text wrapped as the data of another event.
        return str, (str(self),)


def _lines(field: str, value: object) -> list[str]:
    # str.splitlines() would cut at U+2028, VT and others as well, which are data here.
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a string, not {type(value).__name__}.")
    return LINE_END.split(value)


def _single_line(field: str, value: object) -> str:
    lines = _lines(field, value)
    if len(lines) > 1:
        raise ValueError(f"{field} must not contain a line end: {value!r}")
    return lines[0]


def _event_id(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = _single_line("id", value)
    if "\0" in text:
        raise ValueError(f"id must not contain NUL, clients ignore such an id: {value!r}")
    return text


def _milliseconds(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"retry must be a whole number of milliseconds from 0 on, not {value!r}.")
    return value


class Place(Enum):
    """Where the text handed out so far has stopped."""

    BETWEEN_EVENTS = "between events"
    LINE_START = "at the start of a line inside an event"
    INSIDE_LINE = "inside a line"


#: The tail of a stream that has not begun: it stands between events.
START: Final = "\n\n"

#: From this length on a chunk alone tells where it stops: even if it holds nothing but line ends, there are
#: two of them, or the last is a lone CR.
TELLING_LENGTH: Final = 3

_TAIL_LENGTH: Final = 4  # CRLF CRLF


def place_after(tail: str | bytes) -> Place:
    """Return the place at the end of ``tail``, which is long enough to tell it or begins where the stream does."""
    text = _end_of(tail)
    line_ends = LINE_END.findall(text[len(text.rstrip("\r\n")) :])
    if not line_ends or line_ends[-1] == "\r":
        return Place.INSIDE_LINE
    return Place.LINE_START if len(line_ends) == 1 else Place.BETWEEN_EVENTS


@dataclass(frozen=True, slots=True)
class Frame:
    """A keep-alive frame, checked, in the forms that it takes at each place of a stream."""

    #: What goes out between events.
    whole: str
    #: What goes out at the start of a line inside an event; ``None`` for a frame that has to wait.
    comments: str | None

    def at(self, tail: str | bytes) -> str | bytes | None:
        """Return what may go out after ``tail``, in its type; ``None`` if nothing may."""
        place = place_after(tail)
        if place is Place.INSIDE_LINE:
            return None
        text = self.whole if place is Place.BETWEEN_EVENTS else self.comments
        return text if text is None or isinstance(tail, str) else text.encode()


def as_frame(frame: str | bytes) -> Frame:
    """
    Check a keep-alive frame and return it in its forms.

    :param frame: the name of a ready-made frame (:data:`FRAMES`), or whole lines: either comments alone or one
        complete event.
    :raises TypeError: if it is neither text nor bytes.
    :raises ValueError: saying what is wrong with it.
    """
    if not isinstance(frame, str | bytes):
        raise TypeError(f"A keep-alive frame must be str or bytes, not {type(frame).__name__}.")
    return _checked(frame)


@lru_cache(typed=True)
def _checked(frame: str | bytes) -> Frame:
    try:
        text = frame.decode() if isinstance(frame, bytes) else frame.encode().decode()
    except UnicodeError:
        raise ValueError(f"The keep-alive frame {frame!r} is not valid UTF-8.") from None
    text = FRAMES.get(text, text)
    *lines, rest = LINE_END.split(text)
    if rest or not lines or text.endswith("\r"):
        names = ", ".join(FRAMES)
        raise ValueError(
            f"The keep-alive frame {text!r} is neither one of {names} nor whole lines, each ended by a line feed."
        )
    comments = [line for line in lines if line.startswith(":")]
    fields = [line for line in lines if line and not line.startswith(":")]
    if not fields:
        return _comments_frame(text, lines, comments)
    _check_event(text, lines, fields)
    return Frame(whole=text, comments=None)


def _comments_frame(text: str, lines: list[str], comments: list[str]) -> Frame:
    if lines[0] == "":
        raise ValueError(f"The keep-alive frame {text!r} does not begin with a comment.")
    return Frame(whole=text, comments="\n".join(comments) + "\n")


def _check_event(text: str, lines: list[str], fields: list[str]) -> None:
    if lines[-1] != "" or "" in lines[:-1]:
        raise ValueError(f"The keep-alive frame {text!r} is not one event, ended by a blank line.")
    names = {field.partition(":")[0] for field in fields}
    if "data" not in names:
        raise ValueError(f"The keep-alive frame {text!r} has no data field, so clients would not dispatch it.")
    if not names <= {"data", "event"}:
        # An id would change where the client resumes, retry when, and anything else is ignored by all clients.
        raise ValueError(f"The keep-alive frame {text!r} may have no fields other than data and event.")


class Tracker:
    """
    Follows where the text handed out so far has stopped.

    Nearly every chunk is long enough to tell that by itself: once :attr:`has_opened` is true, it is enough to set
    :attr:`tail` to it, which is looked at only when a frame is due. All others go through :meth:`follow`.
    """

    __slots__ = ("_opening", "_sent_frame", "has_opened", "tail")

    def __init__(self, *, text: bool) -> None:
        #: The end of what was handed out, in the type of the last chunk that was not empty.
        self.tail: str | bytes = START if text else START.encode()
        #: Whether the first characters went out, so that no byte-order mark is to be expected any more.
        self.has_opened = False
        self._opening = b""
        self._sent_frame = False

    @property
    def has_sent(self) -> bool:
        """Whether anything went out, be it a chunk or a frame."""
        return self.has_opened or self._sent_frame or self._opening != b""

    def follow(self, chunk: Any) -> Any:
        """Take note of any chunk, and return what is to be handed out in its place."""
        # What is neither text nor bytes (a lazy translation, say) becomes text when it is sent.
        content: Any = chunk if isinstance(chunk, str | bytes | bytearray | memoryview) else str(chunk)
        if not content:
            return chunk
        if not self.has_opened:
            return self._open(chunk, content)
        self._extend(content)
        return chunk

    def sent_frame(self) -> None:
        """Take note of a frame. It ends in the place where it began, so the tail stays as it is."""
        self._sent_frame = True

    def is_between_events(self) -> bool:
        """Whether the last event handed out is complete."""
        return place_after(self.tail) is Place.BETWEEN_EVENTS

    def held_back(self) -> bytes:
        """Return what :meth:`follow` still owes when the stream ends: the beginning of a mark that never was one."""
        return self._opening if self._sent_frame and not self.has_opened else b""

    def _open(self, chunk: Any, content: Any) -> Any:
        # A byte-order mark is one only as the very first thing on the wire. Behind a frame it would be taken for
        # data, so it is removed there, and what may still become one is held back.
        if isinstance(content, str) and not self._opening:
            rest: str | bytes = content.removeprefix(codecs.BOM_UTF8.decode())
        else:
            self._opening += content.encode() if isinstance(content, str) else bytes(content)
            if len(self._opening) < len(codecs.BOM_UTF8) and codecs.BOM_UTF8.startswith(self._opening):
                if self._sent_frame:
                    return b""
                self.tail = self._opening
                return chunk
            rest = self._opening.removeprefix(codecs.BOM_UTF8)
        self.has_opened = True
        self.tail = START
        self._extend(rest)
        return rest if self._sent_frame else chunk

    def _extend(self, chunk: str | bytes) -> None:
        end = _end_of(self.tail) + _end_of(chunk)
        self.tail = end if isinstance(chunk, str) else end.encode("latin-1", "replace")


def _end_of(tail: str | bytes) -> str:
    """Return as much of the tail as its place depends on; line ends are the same in Latin-1 as in UTF-8."""
    end = tail[-_TAIL_LENGTH:]
    return end if isinstance(end, str) else bytes(end).decode("latin-1")
