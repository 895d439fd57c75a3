"""Clients that leave real servers: the upstream is closed at once, in its own task, and cleans up to the end."""

import pytest

from .conftest import Start
from .http import Connection
from .play import Cue, Flood, Line, Stream
from .servers import Server

CANCELLED = "ended by CancelledError in its own task"

#: At an `await` an upstream is cancelled, at a `yield` it may be closed.
CLOSED = {CANCELLED, "ended by GeneratorExit in its own task"}

left_by = pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])


def ended(stream: Stream) -> str:
    """Return what the stream's diary says of its end, of which there is one."""
    (text,) = (text for text in stream.diary.texts() if text.startswith("ended by"))
    return text


@left_by
@pytest.mark.parametrize("play", [[None], ["data: a\n\n", None]], ids=["before the first event", "between events"])
@pytest.mark.parametrize("view", ["alive", "generator", "response"])
def test_a_client_that_leaves_in_silence_is_noticed(server: Server, view: str, play: list[Line], reset: bool) -> None:
    """R3, C6: no frame is due for long, so it is the disconnect itself that cancels the upstream at its `await`."""
    stream = server.stream(view, play, interval=60)
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        stream.diary.wait_for("started")
        if len(play) > 1:
            response.read_until(b"\n\n")
        connection.leave(reset=reset)
        stream.diary.wait_for("cleaned up")
    assert ended(stream) == CANCELLED


@left_by
def test_a_client_that_leaves_between_frames_is_noticed(server: Server, reset: bool) -> None:
    """R3, C3: the same where frames have come and more are due."""
    stream = server.stream("alive", [None], interval=0.1)
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        for _ in range(3):
            response.read_until(b": keep-alive\n\n")
        connection.leave(reset=reset)
        stream.diary.wait_for("cleaned up")
    assert ended(stream) == CANCELLED


@left_by
def test_a_client_that_leaves_unseen_is_noticed_when_sending_fails(server: Server, reset: bool) -> None:
    """
    R3: the next request on the connection stands before its end, and uvicorn with httptools reads no further.

    There `send` raises. Bare, the upstream is then left to the garbage collector; elsewhere it is cancelled at once.
    """
    go_on = Cue("go on")
    events: list[Line] = ["data: b\n\n", 0.02]
    stream = server.stream("alive", ["data: a\n\n", go_on, *events * 100], interval=60)
    with Connection(server.port) as connection:
        connection.get(stream.path).read_until(b"\n\n")
        connection.request("/ping")
        connection.leave(reset=reset)
    stream.diary.give(go_on)
    stream.diary.wait_for("cleaned up")
    assert ended(stream) in CLOSED


@pytest.mark.parametrize("name", ["uvicorn", "uvicorn-h11", "hypercorn", "granian"])
@left_by
def test_a_client_that_stops_reading_and_then_leaves_is_noticed(start: Start, name: str, reset: bool) -> None:
    """
    R3, C11: the server is blocked in `send`, where the upstream is at a `yield`.

    And then the upstream never awaits anything, while `send` does nothing once the client has gone: bare, it runs
    on to its end without a turn for the loop, or is left to the garbage collector. (Daphne never blocks: it queues
    what it gets.)
    """
    server = start(name)
    stream = server.stream("alive", [Flood(16_384)], interval=60, watch=1)
    with Connection(server.port, receive_buffer=4096) as connection:
        connection.get(stream.path)
        stream.diary.wait_for("blocked in send")
        connection.leave(reset=reset)
        stream.diary.wait_for("cleaned up")
    assert ended(stream) in CLOSED
    with Connection(server.port) as connection:
        assert connection.get("/ping").status == 200
