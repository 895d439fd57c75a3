"""Operators who switch streams in the admin, on two real servers that share nothing but an SQLite database."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from .http import Connection
from .operated_site import (
    COMMENT,
    EVENT,
    LIMIT,
    LINE,
    NOTHING,
    SERVERS,
    Complaints,
    Operator,
    Site,
    assert_obeyed,
    has_ended,
    hears,
    is_silent,
    operated_site,
    until,
)
from .play import Line
from .servers import Server

UVICORN, DAPHNE = SERVERS

#: An event that takes its time, so that whoever looks finds the stream in the middle of one.
SLOW_EVENT: Final[list[Line]] = ["data: x\n", 0.2, "data: y\n", 0.2, "data: z\n", 0.2, "\n"]

#: At an `await` an upstream is cancelled, at a `yield` it is closed.
CANCELLED = "ended by CancelledError in its own task"
CLOSED = "ended by GeneratorExit in its own task"

#: Seconds between two looks at the table, and those that nobody looks when there is no need to.
REFRESH: Final = 2.0
QUIET: Final = 6.0


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that is the database."""
    return tmp_path_factory.mktemp("switch-database") / "db.sqlite3"


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[Site]:
    """Return the site with its running servers, which all tests of this module share."""
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database)}
    with operated_site(tmp_path_factory.mktemp("switch"), settings) as site:
        yield site


def test_s1_an_endpoint_appears_by_itself_under_the_name_of_its_url(site: Site, operator: Operator) -> None:
    assert not operator.list(site.servers[UVICORN], "paper:news").keys
    server = site.servers[DAPHNE]
    site.listen_to(server, server.stream("news", NOTHING))
    operator.wait_for_row("paper:news")


def test_s4_off_and_on_reach_the_open_streams_of_both_servers(site: Site, operator: Operator) -> None:
    """S4: also those that were opened while it was off, and have never sent a keep-alive."""
    early = site.listen("on-off")
    operator.wait_for_row("on-off")
    click = operator.press(site.servers[UVICORN], "on-off", "off")
    late = site.listen("on-off")
    assert_obeyed("off", click, early, is_silent)
    late += site.listen("on-off")
    click = operator.press(site.servers[DAPHNE], "on-off", "on")
    # The process that was clicked in obeys at once, the other had heard of it when its early stream was silent.
    assert [piece for listener in (late[0], *late[2:]) for piece in listener.pieces if piece.at < click] == []
    assert_obeyed("on", click, early + late, hears(COMMENT, click))


def test_s4_interval_and_frame_reach_the_open_streams_of_both_servers(site: Site, operator: Operator) -> None:
    """S4, C16: also those whose interval is off in code; S2: and back to what code and settings say."""
    usual = site.listen("form")
    off_in_code = site.listen("form", interval=0)
    operator.wait_for_row("form")
    click = operator.change(site.servers[DAPHNE], "form", interval="1", frame="EVENT")
    assert_obeyed("interval and frame", click, usual + off_in_code, hears(EVENT, click))
    assert all(set(listener.body.split(EVENT)) == {b""} for listener in off_in_code)
    for listener in usual + off_in_code:
        listener.wait_for(EVENT, times=3)
        data = [piece.data for piece in listener.pieces]
        assert set(data[data.index(EVENT) :]) == {EVENT}
        # Each may have come late, but three of them do not fit into much less than two seconds.
        assert listener.pieces[-1].at - listener.pieces[-3].at > 1.5
    click = operator.change(site.servers[UVICORN], "form", interval="", frame="LINE")
    assert_obeyed("interval as in code", click, off_in_code, is_silent)
    assert_obeyed("frame as in the form", click, usual, hears(LINE, click))
    for listener in usual:
        listener.wait_for(LINE, times=4)
        moments = [piece.at for piece in listener.pieces if piece.data == LINE]
        assert min(later - earlier for earlier, later in pairwise(moments)) < 0.9  # the interval of the settings


def test_s4_stop_ends_the_open_streams_of_both_servers_in_order(site: Site, operator: Operator) -> None:
    """S4, C16: the body ends whole, the upstream's clean-up runs, and no event is cut in two."""
    idle = site.listen("ended")
    busy = site.listen("ended", SLOW_EVENT * 20, interval=60)
    operator.wait_for_row("ended")
    click = operator.press(site.servers[UVICORN], "ended", "stop")
    assert_obeyed("stop", click, idle + busy, has_ended)
    for listener in idle:
        assert listener.body.replace(COMMENT, b"") == b""
        listener.diary.wait_for("cleaned up")
        assert CANCELLED in listener.diary.texts()
    event = "".join(line for line in SLOW_EVENT if isinstance(line, str)).encode()
    for listener in busy:
        assert listener.body == event * listener.body.count(b"data: x")
        listener.diary.wait_for("cleaned up")
        assert CLOSED in listener.diary.texts()


def test_s3_a_stopped_endpoint_refuses_on_both_servers_until_it_is_open_again(site: Site, operator: Operator) -> None:
    """S3, S4: a process that is started meanwhile refuses too, from its very first requests on."""
    streams = site.listen("refused")
    operator.wait_for_row("refused")
    click = operator.press(site.servers[DAPHNE], "refused", "stop")
    assert_obeyed("stop", click, streams, has_ended)
    for server in site.servers.values():
        assert_refused(ask(server, "refused"))
        status, headers = ask(server, "refused", accept="*/*")
        assert (status, headers["cache-control"]) == (503, "no-store")
        assert int(headers["retry-after"]) > 0
    with site.fresh(UVICORN) as server, contextlib.ExitStack() as stack:
        views = ["stream", "stream_from_a_thread"] * 3
        connections = [stack.enter_context(Connection(server.port)) for _ in views]
        for connection, view in zip(connections, views, strict=True):
            connection.request(server.stream(view, NOTHING, endpoint="refused").path)
        for connection in connections:
            response = connection.response()
            assert_refused((response.status, response.headers))
    click = operator.press(site.servers[UVICORN], "refused", "open")
    servers = site.servers.values()
    until(lambda: all(ask(server, "refused")[0] == 200 for server in servers), "open again", within=LIMIT)
    assert time.monotonic() <= click + LIMIT
    assert_obeyed("open", click, site.listen("refused"), hears(COMMENT, click))


def ask(server: Server, endpoint: str, accept: str = "text/event-stream") -> tuple[int, dict[str, str]]:
    """Ask a server for a new stream, and return the status and the headers."""
    with Connection(server.port) as connection:
        connection.request(server.stream("stream", NOTHING, endpoint=endpoint).path, headers={"Accept": accept})
        response = connection.response()
        return response.status, response.headers


def assert_refused(answer: tuple[int, dict[str, str]]) -> None:
    status, headers = answer
    assert (status, headers.get("cache-control")) == (204, "no-store")


def test_s6_a_missing_table_leaves_everything_as_it_was(site: Site, operator: Operator, database: Path) -> None:
    """S6: what was switched stays so, streams go on, and the log has one line for it and one for its end."""
    complaints = Complaints(site)
    usual = site.listen("table")
    silenced = site.listen("silenced")
    operator.wait_for_row("table")
    operator.wait_for_row("silenced")
    click = operator.press(site.servers[UVICORN], "silenced", "off")
    assert_obeyed("off", click, silenced, is_silent)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE sse_keepalive_endpoint RENAME TO elsewhere")
        hidden_at = time.monotonic()
        site.wait_for_queries(2, hidden_at)
        moment = time.monotonic()
        assert_obeyed("no table", moment, [*usual, *site.listen("table")], hears(COMMENT, moment))
        assert all(is_silent(listener) for listener in silenced)
        connection.execute("ALTER TABLE elsewhere RENAME TO sse_keepalive_endpoint")
    complaints.wait_for(2)
    click = operator.press(site.servers[DAPHNE], "silenced", "on")
    assert_obeyed("on", click, silenced, hears(COMMENT, click))
    for complaint, relief in complaints.all():
        assert "cannot be read" in complaint
        assert "can be read again" in relief


def test_s5_many_streams_cost_one_query_in_two_seconds_and_none_when_they_have_gone(
    site: Site, operator: Operator
) -> None:
    """S5: and that one is the reading thread's, so no request has asked the database for anything."""
    first = site.listen("crowd")
    operator.wait_for_row("crowd")
    site.wait_for_queries(2, time.monotonic())  # until both processes know that it is there, whoever has made it
    began_at = time.monotonic()
    diaries = [listener.diary for listener in first]
    with contextlib.ExitStack() as stack:
        for server in [*site.servers.values()] * 50:
            stream = server.stream("stream", NOTHING, endpoint="crowd", interval=60)
            assert stack.enter_context(Connection(server.port)).get(stream.path).status == 200
            diaries.append(stream.diary)
        site.wait_for_queries(3, began_at)
        for server in site.servers.values():
            queries = site.queries(server, began_at)
            assert {query.text.split(" ")[0] for query in queries} == {"sse_keepalive.switches:"}
            # Any of them may have come late.
            assert queries[-1].at - queries[0].at > (len(queries) - 1) * REFRESH - 0.8
    site.leave_all()
    for diary in diaries:
        diary.wait_for("cleaned up")
    left_at = time.monotonic()
    # One look may have been on its way.
    while time.monotonic() < left_at + QUIET + 1:
        time.sleep(0.1)
    for server in site.servers.values():
        assert site.queries(server, left_at + 1) == []
