"""Errors on real servers: seen by operators and by the client's machinery, read by nobody else."""

import pytest

from .conftest import Start
from .http import Connection, assert_forgets_requests
from .play import ErrorKind, Fail, Line
from .servers import Server

CUTTING = ["uvicorn", "uvicorn-h11", "hypercorn", "granian"]

FAILING: list[Line] = ["data: a\n\n", Fail("a secret")]


@pytest.mark.parametrize("name", CUTTING)
@pytest.mark.parametrize("view", ["alive", "generator", "response"])
def test_a_stream_that_fails_is_cut(start: Start, name: str, view: str) -> None:
    """R5: a truncated stream is not taken for a whole one."""
    server = start(name)
    stream = server.stream(view, FAILING)
    with Connection(server.port) as connection:
        assert connection.get(stream.path).read_to_the_cut() == b"data: a\n\n"
    stream.diary.wait_for("cleaned up")


@pytest.mark.parametrize("view", ["alive", "generator", "response"])
def test_a_stream_that_fails_ends_under_daphne(daphne: Server, view: str) -> None:
    """R5: raised on, the error would leave the client hanging for ever."""
    stream = daphne.stream(view, FAILING)
    with Connection(daphne.port) as connection:
        assert connection.get(stream.path).read() == b"data: a\n\n"
    stream.diary.wait_for("cleaned up")


def test_a_stream_that_fails_leaves_daphne_healthy(daphne: Server) -> None:
    """R5: raised on, the error would stop Daphne's clean-up of every later request."""
    for play in (FAILING, [Fail("before its first chunk")]):
        stream = daphne.stream("alive", play)
        with Connection(daphne.port) as connection:
            connection.get(stream.path).read()
    for _ in range(100):
        with Connection(daphne.port) as connection:
            assert connection.get("/ping").status == 200
    assert_forgets_requests(daphne.port)


def test_an_error_is_logged_once_with_its_traceback(server: Server) -> None:
    """R5: on `django.request`, and Django's own signal is sent once."""
    text = f"told to on {server.name}"
    stream = server.stream("alive", ["data: a\n\n", Fail(text)])
    with Connection(server.port) as connection:
        connection.request(stream.path)
        response = connection.response()
        if server.name == "daphne":
            response.read()
        else:
            response.read_to_the_cut()
    stream.diary.wait_for("got_request_exception")
    stream.diary.wait_for("cleaned up")
    records = [record for record in server.request_records() if stream.name in record]
    assert len(records) == 1, records
    assert records[0].startswith("ERROR")
    assert f"RuntimeError: {text}" in records[0]
    assert "in perform" in records[0]
    assert stream.diary.texts().count("got_request_exception") == 1


def test_the_text_of_an_error_never_reaches_the_client(server: Server) -> None:
    """R5: neither in the body nor in the headers, whether it comes before the first chunk or after."""
    for play in (FAILING, [Fail("a secret")]):
        stream = server.stream("alive", play)
        with Connection(server.port) as connection:
            connection.request(stream.path, headers={"Connection": "close"})
            assert b"a secret" not in connection.everything()


def test_on_error_has_the_last_word(server: Server) -> None:
    """R5: one last event; the stream is cut, or ends under Daphne, all the same."""
    stream = server.stream("sorry", FAILING)
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        body = response.read() if server.name == "daphne" else response.read_to_the_cut()
    assert body == b"data: a\n\nevent: error\ndata: sorry\n\n"


@pytest.mark.parametrize(("kind", "status"), [("Http404", 404), ("PermissionDenied", 403)])
def test_a_view_may_refuse_before_it_streams(server: Server, kind: str, status: int) -> None:
    """D2, R5: what is raised before the stream is returned gets its status."""
    stream = server.stream("refused", ["data: a\n\n"], kind=kind)
    with Connection(server.port) as connection:
        response = connection.get(stream.path)
        assert response.status == status
        assert response.headers["content-type"].startswith("text/html")
        response.read()
    assert stream.diary.texts() == []


@pytest.mark.parametrize("kind", ["Http404", "PermissionDenied"])
def test_a_refusal_in_the_stream_is_logged_with_a_hint(server: Server, kind: ErrorKind) -> None:
    """R5: the status was sent long ago, and the log says where such a check belongs."""
    stream = server.stream("alive", [Fail("too late", kind)])
    with Connection(server.port) as connection:
        connection.request(stream.path, headers={"Connection": "close"})
        assert b"too late" not in connection.everything()
    stream.diary.wait_for("cleaned up")
    (record,) = (record for record in server.request_records() if stream.name in record)
    assert "before" in record
