"""A stream on real servers, from its headers to its end: what the client gets, and when."""

import pytest

from .http import Connection
from .play import Big, Cue, Line, big_event
from .servers import Server

KEEP_ALIVE = b": keep-alive\n\n"

both_versions = pytest.mark.parametrize("version", ["1.0", "1.1"])


@both_versions
def test_bare_daphne_holds_its_headers_until_the_first_chunk(daphne: Server, version: str) -> None:
    """Not ours: the reason for R4. Once Daphne sends them, our empty chunk is needed no more."""
    stream = daphne.stream("bare", [None])
    with Connection(daphne.port) as connection:
        connection.request(stream.path, version=version)
        stream.diary.wait_for("started")
        assert connection.is_silent(0.3)


@both_versions
def test_headers_come_although_the_stream_is_silent(server: Server, version: str) -> None:
    """R4: there is no chunk and no frame that could bring them along."""
    stream = server.stream("alive", [None], interval=60)
    with Connection(server.port) as connection:
        response = connection.get(stream.path, version=version)
        assert response.status == 200
        assert connection.is_silent(0.2)


@both_versions
def test_no_body_byte_comes_before_the_interval(server: Server, version: str) -> None:
    """R4, C2: what brings the headers is not the first frame ahead of its time."""
    stream = server.stream("alive", [None], interval=0.3)
    with Connection(server.port) as connection:
        sent = connection.request(stream.path, version=version)
        first = next(connection.response().pieces())
    assert first.data == KEEP_ALIVE
    assert first.at - sent >= 0.29


def test_the_first_interval_brings_the_first_frame_forward(server: Server) -> None:
    """R4: for proxies that hold the headers until a first byte of the body."""
    stream = server.stream("alive", [None], interval=60, first_interval=0)
    with Connection(server.port) as connection:
        assert connection.get(stream.path).read_until(b"\n\n") == KEEP_ALIVE
        assert connection.is_silent(0.2)


def test_frames_come_in_silence_and_nothing_else_changes(server: Server) -> None:
    """C2, transparency: before the first chunk, between chunks, before the end; the rest is the bare stream."""
    silence = 0.4
    play: list[Line] = [silence, "data: a\n\n", "data: b\n\n", silence, "data: c\n\n", silence]
    bare, stream = server.stream("bare", play), server.stream("alive", play, interval=0.1)
    with Connection(server.port) as connection, Connection(server.port) as bare_connection:
        connection.request(stream.path)
        bare_connection.request(bare.path)
        body, bare_body = connection.response().read(), bare_connection.response().read()
    assert body.replace(KEEP_ALIVE, b"") == bare_body
    beginning, rest = body.split(b"data: a\n\ndata: b\n\n")
    middle, end = rest.split(b"data: c\n\n")
    # Late frames are forgiven, early ones are not: the stream's own silence may have been longer than planned.
    length = stream.diary.duration()
    for frames in (beginning, middle, end):
        assert 1 <= frames.count(KEEP_ALIVE) <= length / 0.1


@pytest.mark.parametrize("view", ["generator", "response"])
def test_the_interval_comes_from_the_settings(server: Server, view: str) -> None:
    """D1, D2: a view that yields, and one that makes the response itself."""
    stream = server.stream(view, [None])
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        assert response.read_until(KEEP_ALIVE) == KEEP_ALIVE
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("view", ["alive", "measured", "measured_later"])
def test_framing_is_left_to_the_server(server: Server, view: str) -> None:
    """R1: no `Connection` from us, and no `Content-Length`, even where the view or a middleware has set one."""
    bare, stream = server.stream("bare", ["data: a\n\n"]), server.stream(view, ["data: a\n\n"])
    with Connection(server.port) as connection:
        fields = connection.get(bare.path).headers
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        assert response.headers.get("connection") == fields.get("connection")
        assert "content-length" not in response.headers
        assert response.read() == b"data: a\n\n"


@pytest.mark.parametrize("view", ["alive", "generator", "response"])
def test_head_gets_the_headers_and_starts_nothing(server: Server, view: str) -> None:
    """R6: on an endless stream too; the connection is whole afterwards, for the next request."""
    stream = server.stream(view, [None])
    with Connection(server.port) as connection:
        connection.request(stream.path, method="HEAD")
        response = connection.response()
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert connection.get("/ping").status == 200
    assert stream.diary.texts() == []


def test_big_chunks_arrive_whole(server: Server) -> None:
    """Transparency: Django cuts chunks over 64 KiB into several messages."""
    event = big_event(70_000).encode()
    stream = server.stream("alive", [Big(70_000), 0.3, Big(70_000)], interval=0.1)
    with Connection(server.port) as connection:
        body = connection.get(stream.path).read()
    assert body.startswith(event + KEEP_ALIVE)
    assert body.replace(KEEP_ALIVE, b"") == event * 2


def test_an_event_that_pauses_in_a_line_is_not_damaged(server: Server) -> None:
    """F2: in the middle of a line nothing goes out, and the stream goes on all the same."""
    play: list[Line] = ['data: {"a":', 0.3, " 1}\n\n"]
    stream = server.stream("alive", play, interval=0.1)
    with Connection(server.port) as connection:
        assert connection.get(stream.path).read() == b'data: {"a": 1}\n\n'


def test_streams_with_crlf_keep_their_events(server: Server) -> None:
    """F3: a pause between CR and LF is no place for a frame, one after the blank line is."""
    play: list[Line] = ["data: a\r", 0.3, "\n\r\n", 0.3, "data: b\r\n\r", 0.3, "\n"]
    stream = server.stream("alive", play, interval=0.1)
    with Connection(server.port) as connection:
        body = connection.get(stream.path).read()
    first, second = body.split(b"data: b")
    assert first.replace(KEEP_ALIVE, b"") == b"data: a\r\n\r\n"
    assert first.startswith(b"data: a\r\n\r\n: keep-alive")
    assert second == b"\r\n\r\n"


def test_each_event_arrives_when_it_was_sent(server: Server) -> None:
    """Transparency: the stream goes on only when the client has got what it sent."""
    cue = Cue("go on")
    stream = server.stream("alive", ["data: a\n\n", cue, "data: b\n\n"], interval=60)
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        assert response.read_until(b"\n\n") == b"data: a\n\n"
        stream.diary.give(cue)
        assert response.read() == b"data: b\n\n"
    stream.diary.wait_for("cleaned up")
