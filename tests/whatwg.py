"""
What a conforming client makes of an event stream, slowly and obviously: the oracle of the tests.

Each function is one paragraph of the standard; nothing here knows keep-alives or chunks.
https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from dataclasses import dataclass

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Event:
    """An event that the client dispatched."""

    type: str
    data: str
    last_event_id: str


@dataclass(frozen=True)
class Decoded:
    """All that a whole stream did to its client."""

    events: tuple[Event, ...]
    #: What the client would send as ``Last-Event-ID`` when it reconnects.
    last_event_id: str
    #: In milliseconds; ``None`` where the stream left the client its own.
    reconnection_time: int | None

    def without(self, event_type: str) -> "Decoded":
        """Return the same without the events of one type."""
        events = tuple(event for event in self.events if event.type != event_type)
        return Decoded(events, self.last_event_id, self.reconnection_time)


def decode(stream: bytes) -> Decoded:
    """Return what the client has dispatched and remembers once the whole stream has come."""
    interpreter = Interpreter()
    for line in lines_of(text_of(stream)):
        interpreter.take_line(line)
    return Decoded(
        tuple(interpreter.dispatched),
        interpreter.last_event_id,
        interpreter.reconnection_time,
    )


def text_of(stream: bytes) -> str:
    """Decode as UTF-8, without one leading byte order mark, with U+FFFD for what is no UTF-8."""
    if stream.startswith(BYTE_ORDER_MARK):
        stream = stream[len(BYTE_ORDER_MARK) :]
    return stream.decode("utf-8", "replace")


def lines_of(text: str) -> list[str]:
    """Return the lines that have ended; what stands after the last line end is discarded."""
    lines = []
    line = ""
    position = 0
    while position < len(text):
        if text[position : position + 2] == "\r\n":
            lines.append(line)
            line = ""
            position += 2
        elif text[position] in ("\n", "\r"):
            lines.append(line)
            line = ""
            position += 1
        else:
            line += text[position]
            position += 1
    return lines


class Interpreter:
    """The buffers of the standard, and the rules for one line after the other."""

    def __init__(self) -> None:
        self.data_buffer = ""
        self.event_type_buffer = ""
        self.last_event_id_buffer = ""
        self.last_event_id = ""
        self.reconnection_time: int | None = None
        self.dispatched: list[Event] = []

    def take_line(self, line: str) -> None:
        if line == "":
            self.dispatch()
        elif line.startswith(":"):
            pass
        elif ":" in line:
            field, _, value = line.partition(":")
            self.process_field(field, value.removeprefix(" "))
        else:
            self.process_field(line, "")

    def process_field(self, field: str, value: str) -> None:
        if field == "event":
            self.event_type_buffer = value
        elif field == "data":
            self.data_buffer += value + "\n"
        elif field == "id":
            if "\0" not in value:
                self.last_event_id_buffer = value
        elif field == "retry":
            # Nothing at all can not be read as an integer, so it is ignored too.
            if value != "" and all(character in "0123456789" for character in value):
                self.reconnection_time = int(value)
        else:
            pass

    def dispatch(self) -> None:
        self.last_event_id = self.last_event_id_buffer
        if self.data_buffer == "":
            self.event_type_buffer = ""
            return
        event_type = "message" if self.event_type_buffer == "" else self.event_type_buffer
        data = self.data_buffer.removesuffix("\n")
        self.dispatched.append(Event(event_type, data, self.last_event_id))
        self.data_buffer = ""
        self.event_type_buffer = ""
