"""Consumers on real servers: an event stream that hears both its client and the channel layer while it streams."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

import pytest

from .conftest import Start
from .http import Connection, assert_forgets_requests
from .play import FOR_EVER, Cue, Fail, Flood, Line, Stream
from .servers import Server, running

APPLICATION: Final = "tests.live.channels_asgi:application"

KEEP_ALIVE: Final = b": keep-alive\n\n"

CANCELLED: Final = "ended by CancelledError in its own task"

#: At an `await` a stream is cancelled, at a `yield` it may be closed.
CLOSED: Final = {CANCELLED, "ended by GeneratorExit in its own task"}

left_by = pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Return the function that gives a running server of the site with Channels by its name."""
    servers: dict[str, Server] = {}
    with contextlib.ExitStack() as stack:

        def started(name: str) -> Server:
            if name not in servers:
                directory = tmp_path_factory.mktemp(f"channels-{name}") / "server"
                environment = {"DJANGO_SETTINGS_MODULE": "tests.live.channels_settings"}
                server = running(name, directory, application=APPLICATION, environment=environment)
                servers[name] = stack.enter_context(server)
            return servers[name]

        yield started


def send(server: Server, group: str, kind: str, text: str) -> None:
    """Send a message to a group from the process of a server."""
    with Connection(server.port) as connection:
        assert connection.get(f"/send/{group}?" + urlencode({"type": kind, "text": text})).status == 200


def ended(stream: Stream) -> str:
    """Return what the stream's diary says of its end, of which there is one."""
    (text,) = (text for text in stream.diary.texts() if text.startswith("ended by"))
    return text


@left_by
@pytest.mark.parametrize("play", [[None], ["data: a\n\n", None]], ids=["before the first event", "between events"])
def test_h1_a_client_that_leaves_in_silence_is_noticed_at_once(server: Server, play: list[Line], reset: bool) -> None:
    """Case 14, C4: in the task of its first step, with awaits in its clean-up, and its `ContextVar` resets."""
    stream = server.stream("silent", play)
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        stream.diary.wait_for("started")
        if len(play) > 1:
            response.read_until(b"\n\n")
        left = time.monotonic()
        connection.leave(reset=reset)
        stream.diary.wait_for("disconnected")
    assert ended(stream) == CANCELLED
    assert stream.diary.texts()[-3:] == ["cleaned up", "token reset", "disconnected"]
    assert stream.diary.wait_for("ended by").at - left < FOR_EVER / 10
    assert [record for record in server.request_records() if stream.name in record] == []


@left_by
def test_h1_a_client_that_leaves_between_frames_is_noticed(server: Server, reset: bool) -> None:
    """Case 14: the same where keep-alives have come and more are due."""
    stream = server.stream("alive", [None])
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        for _ in range(3):
            response.read_until(KEEP_ALIVE)
        connection.leave(reset=reset)
        stream.diary.wait_for("disconnected")
    assert ended(stream) == CANCELLED
    assert "token reset" in stream.diary.texts()


@pytest.mark.parametrize("name", ["uvicorn", "uvicorn-h11", "hypercorn", "granian"])
@left_by
def test_h1_a_client_that_stops_reading_and_then_leaves_is_noticed(start: Start, name: str, reset: bool) -> None:
    """H1, C11: the server is blocked in `send`; see the same test for views."""
    server = start(name)
    stream = server.stream("silent", [Flood(16_384)], watch=1)
    with Connection(server.port, receive_buffer=4096) as connection:
        connection.get(stream.path)
        stream.diary.wait_for("blocked in send")
        connection.leave(reset=reset)
        stream.diary.wait_for("disconnected")
    assert ended(stream) in CLOSED
    assert "token reset" in stream.diary.texts()
    with Connection(server.port) as connection:
        assert connection.get("/ping").status == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_h1_headers_come_although_the_stream_is_silent(server: Server, version: str) -> None:
    """R4: there is no chunk and no frame that could bring them along."""
    stream = server.stream("silent", [None])
    with Connection(server.port) as connection:
        response = connection.get(stream.path, version=version)
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert connection.is_silent(0.2)


def test_h1_keep_alives_come_in_silence_and_nothing_else_changes(server: Server) -> None:
    """C2: before the first event, between events, before the end, which is that of a whole body."""
    stream = server.stream("alive", [0.4, "data: a\n\n", "data: b\n\n", 0.4, "data: c\n\n", 0.4])
    with Connection(server.port) as connection:
        body = connection.get(stream.path).read()
    assert body.replace(KEEP_ALIVE, b"") == b"data: a\n\ndata: b\n\ndata: c\n\n"
    beginning, middle, end = body.replace(b"data: b\n\n", b"").replace(b"data: c", b"data: a").split(b"data: a\n\n")
    assert all(part.startswith(KEEP_ALIVE) for part in (beginning, middle, end)), body
    stream.diary.wait_for("disconnected")


@pytest.mark.parametrize("view", ["silent", "alive"])
def test_h1_messages_come_while_the_consumer_streams(server: Server, view: str) -> None:
    """Case 15: in silence and before later events, in the order in which they were sent."""
    go_on = Cue("go on")
    stream = server.stream(view, ["data: first\n\n", go_on, "data: last\n\n"])
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        body = response.read_until(b"first\n\n")
        for text in ("one", "two", "three"):
            send(server, stream.name, "chat.message", text)
        body += response.read_until(b"three\n\n")
        stream.diary.wait_for("sent three")
        stream.diary.give(go_on)
        body += response.read()
    assert body.replace(KEEP_ALIVE, b"") == b"data: first\n\ndata: one\n\ndata: two\n\ndata: three\n\ndata: last\n\n"
    stream.diary.wait_for("disconnected")


def test_h2_a_view_and_a_consumer_hear_the_same_group(server: Server) -> None:
    """Each hears what the other hears, and whoever has left disturbs nobody."""
    room = uuid.uuid4().hex
    with Connection(server.port) as first, Connection(server.port) as second, Connection(server.port) as third:
        responses = [
            connection.get(f"/{kind}/{room}")
            for connection, kind in ((first, "view"), (second, "consumer"), (third, "view"))
        ]
        for response in responses:
            response.read_until(b"data: joined\n\n")
        third.leave()
        for text in ("one", "two"):
            send(server, room, "chat.message", text)
        for response in responses[:2]:
            body = response.read_until(b"data: two\n\n")
            assert body.replace(KEEP_ALIVE, b"") == b"data: one\n\ndata: two\n\n"


def test_h1_head_gets_the_headers_and_does_not_start_the_stream(server: Server) -> None:
    """R6: and the connection is free for the next request."""
    stream = server.stream("alive", ["data: a\n\n", None])
    with Connection(server.port) as connection:
        connection.request(stream.path, method="HEAD")
        response = connection.response()
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        stream.diary.wait_for("disconnected")
        assert connection.get("/ping").status == 200
    assert stream.diary.texts() == ["disconnected"]


@pytest.mark.parametrize("where", ["stream", "handler"])
def test_h1_an_error_cuts_the_stream_and_is_logged_once(server: Server, where: str) -> None:
    """R5: whether `stream()` or a handler has failed. Under Daphne the stream ends; the client is told no more."""
    text = f"a secret of the {where} on {server.name}"
    go_on = Cue("go on")
    stream = server.stream("silent", ["data: a\n\n", go_on, Fail(text)])
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        assert response.read_until(b"\n\n") == b"data: a\n\n"
        if where == "stream":
            stream.diary.give(go_on)
        else:
            send(server, stream.name, "chat.failure", text)
        assert (response.read() if server.name == "daphne" else response.read_to_the_cut()) == b""
    stream.diary.wait_for("disconnected")
    stream.diary.wait_for("got_request_exception")
    records = [record for record in server.request_records() if stream.name in record]
    assert len(records) == 1, records
    assert records[0].startswith("ERROR")
    assert f"RuntimeError: {text}" in records[0]
    assert ("in perform" if where == "stream" else "in chat_failure") in records[0]
    assert stream.diary.texts().count("got_request_exception") == 1
    assert "token reset" in stream.diary.texts()


def test_h1_a_stream_that_fails_leaves_daphne_healthy(start: Start) -> None:
    """R5: raised on, the error would stop Daphne's clean-up of every later request."""
    daphne = start("daphne")
    plays: list[list[Line]] = [["data: a\n\n", Fail("a secret")], [Fail("before its first chunk")]]
    for play in plays:
        with Connection(daphne.port) as connection:
            connection.get(daphne.stream("silent", play).path).read()
    for _ in range(30):
        with Connection(daphne.port) as connection:
            assert connection.get("/ping").status == 200
    assert_forgets_requests(daphne.port)


def test_h1_a_consumer_may_refuse_before_it_streams(server: Server) -> None:
    """An overridden `handle()` answers with a status of its own, or goes on."""
    refused, welcome = server.stream("guarded", [None]), server.stream("guarded", ["data: a\n\n"], word="please")
    with Connection(server.port) as connection:
        response = connection.get(refused.path)
        assert response.status == 403
        assert response.read() == b"No."
    with Connection(server.port) as connection:
        response = connection.get(welcome.path)
        assert response.status == 200
        assert response.read() == b"data: a\n\n"
    refused.diary.wait_for("disconnected")
    assert refused.diary.texts() == ["disconnected"]
