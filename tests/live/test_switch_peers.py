"""Operators who switch streams with a real browser, and a real PostgreSQL behind the two servers."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from .browser import chromium
from .http import Connection
from .operated_site import (
    COMMENT,
    EVENT,
    LIMIT,
    NOTHING,
    OPERATOR,
    PASSWORD,
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
from .play import PATIENCE
from .postgres import Cluster, cluster
from .servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Response

pytestmark = pytest.mark.peers

UVICORN, DAPHNE = SERVERS

#: Seconds between two looks at the table.
REFRESH: Final = 2.0

#: What the log is to say of each statement: who has made it, and what it is.
LOGGED: Final = {"log_statement": "all", "log_line_prefix": "%a|"}


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running PostgreSQL, which logs what it is asked."""
    import psycopg  # `make test` does without, and collects this module too

    with cluster(tmp_path_factory.mktemp("switch-postgres")) as running:
        with psycopg.connect(running.address, autocommit=True) as connection:
            for name, value in LOGGED.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        yield running


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory, postgres: Cluster) -> Iterator[Site]:
    """Return the site with its running servers, which all tests of this module share."""
    with operated_site(tmp_path_factory.mktemp("switch-peers"), postgres.database) as site:
        yield site


@pytest.fixture
def browser() -> Iterator["Browser"]:
    """Return a running browser."""
    with chromium() as running:
        yield running


def statements(postgres: Cluster, name: str) -> list[str]:
    """Return what a server has asked PostgreSQL so far."""
    return re.findall(rf"^{name}\|LOG:  (?:statement|execute [^:]*): (.*)", postgres.log, re.MULTILINE)


def test_s5_many_streams_hold_no_connection_and_cost_one_query_in_two_seconds(
    site: Site, operator: Operator, postgres: Cluster
) -> None:
    """S5: as PostgreSQL sees it, from before the streams are opened."""
    import psycopg

    site.listen("crowd")
    operator.wait_for_row("crowd")
    site.wait_for_queries(2, time.monotonic())  # until both processes know that it is there, whoever has made it
    before = {name: len(statements(postgres, name)) for name in SERVERS}
    began_at = time.monotonic()
    seen: dict[int, list[float]] = {}
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(psycopg.connect(postgres.address, autocommit=True))
        for server in [*site.servers.values()] * 50:
            path = server.stream("stream", NOTHING, endpoint="crowd", interval=60).path
            assert stack.enter_context(Connection(server.port)).get(path).status == 200
        opened_at = time.monotonic()
        while time.monotonic() < opened_at + 4 * REFRESH:
            for (number,) in watcher.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = ANY(%s)", [list(SERVERS)]
            ).fetchall():
                seen.setdefault(number, []).append(time.monotonic())
            time.sleep(0.01)
        asked = {name: statements(postgres, name)[before[name] :] for name in SERVERS}
        lasted = time.monotonic() - began_at
    for name in SERVERS:
        reads = [statement for statement in asked[name] if "sse_keepalive_endpoint" in statement]
        assert 3 <= len(reads) <= lasted / REFRESH + 1, f"{name} in {lasted} s: {asked[name]}"
        assert all(statement.startswith("SELECT") for statement in asked[name])
    # Each connection is closed as soon as it has done its work.
    assert {number for number, moments in seen.items() if moments[-1] - moments[0] > REFRESH / 2} == set()


def test_s6_streams_live_on_while_postgresql_is_down(site: Site, operator: Operator, postgres: Cluster) -> None:
    """S6: what was switched stays so, new streams open; one line in the log each time it goes or comes."""
    usual, silenced = site.listen("usual"), site.listen("silenced")
    operator.wait_for_row("usual")
    operator.wait_for_row("silenced")
    click = operator.press(site.servers[DAPHNE], "silenced", "off")
    assert_obeyed("off", click, silenced, is_silent)
    complaints = Complaints(site)
    for count in (1, 3):
        postgres.stop()
        complaints.wait_for(count)
        # Two more looks at least, and so long that what is known counts as recent no more.
        time.sleep(LIMIT + 1)
        moment = time.monotonic()
        usual += site.listen("usual")
        silenced += site.listen("silenced")
        assert time.monotonic() < moment + LIMIT, "New streams wait for a database that is not there."
        assert_obeyed("no database", moment, usual, hears(COMMENT, moment))
        assert_obeyed("no database, off", moment, silenced, is_silent)
        assert [listener for listener in silenced if listener.heard_since(moment)] == []
        assert [len(lines) for lines in complaints.all()] == [count, count]
        postgres.start()
        complaints.wait_for(count + 1)
    click = operator.press(site.servers[UVICORN], "silenced", "on")
    assert_obeyed("on", click, silenced, hears(COMMENT, click))
    assert [listener for listener in usual + silenced if listener.end] == []
    for lines in complaints.all():
        assert ["can be read again" in line for line in lines] == [False, True, False, True]


def test_s6_streams_live_on_while_postgresql_answers_nothing(
    site: Site, operator: Operator, postgres: Cluster
) -> None:
    """S6: nor do new ones wait for what never comes; when it comes after all, the switch works again."""
    usual = site.listen("waiting")
    operator.wait_for_row("waiting")
    process = postgres.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(LIMIT + 1)  # so long that what is known counts as recent no more
        moment = time.monotonic()
        usual += site.listen("waiting")
        assert time.monotonic() < moment + LIMIT, "New streams wait for a database that does not answer."
        assert_obeyed("no answer", moment, usual, hears(COMMENT, moment))
    finally:
        process.send_signal(signal.SIGCONT)
    click = operator.press(site.servers[UVICORN], "waiting", "off")
    assert_obeyed("off", click, usual, is_silent)


def test_s6_a_table_that_is_dropped_and_made_again(site: Site, operator: Operator) -> None:
    """S6: its migration is undone and run again; until then all is as it was, and then as the code says."""
    usual, silenced = site.listen("kept"), site.listen("lost")
    operator.wait_for_row("kept")
    operator.wait_for_row("lost")
    click = operator.press(site.servers[DAPHNE], "lost", "off")
    assert_obeyed("off", click, silenced, is_silent)
    complaints = Complaints(site)
    site.run("django", "migrate", "sse_keepalive", "zero")
    dropped_at = time.monotonic()
    site.wait_for_queries(2, dropped_at)
    moment = time.monotonic()
    assert_obeyed("no table", moment, usual, hears(COMMENT, moment))
    assert_obeyed("no table, off", moment, silenced, is_silent)
    assert [listener for listener in silenced if listener.heard_since(dropped_at)] == []
    site.run("django", "migrate", "sse_keepalive")
    complaints.wait_for(2)
    assert_obeyed("a new table", time.monotonic(), silenced, hears(COMMENT, dropped_at))
    usual += site.listen("kept")
    operator.wait_for_row("kept")
    click = operator.press(site.servers[UVICORN], "kept", "stop")
    assert_obeyed("stop", click, usual, has_ended)
    for lines in complaints.all():
        assert ["can be read again" in line for line in lines] == [False, True]


HEADLINES: Final = "news:headlines"
ORDERS: Final = "orders:status"
ROOM: Final = "chat:room"

LIST: Final = "/admin/sse_keepalive/endpoint/"


class Admin:
    """The admin in a browser."""

    def __init__(self, browser: "Browser", server: Server) -> None:
        self.page = browser.new_page(
            viewport={"width": 1280, "height": 720},
            color_scheme="light",
            base_url=f"http://127.0.0.1:{server.port}",
        )

    def log_in(self, user: str) -> None:
        """Open the list of the endpoints, which needs a log-in before that."""
        self.page.goto(LIST)
        self.page.fill("#id_username", user)
        self.page.fill("#id_password", PASSWORD)
        self.page.click("#login-form [type=submit]")
        self.page.wait_for_url(f"**{LIST}")

    def rows(self) -> dict[str, str]:
        """Return the text of each row of the list, by its endpoint."""
        return {
            row.locator("th").inner_text(): row.inner_text()
            for row in self.page.locator("#result_list tbody tr").all()
        }

    def press(self, label: str, row: str) -> float:
        """Press a button of a row; return when that was."""
        return self.click(self.page.locator("#result_list tr", has_text=row).get_by_text(label, exact=True))

    def click(self, button: "Locator") -> float:
        """Click; return when that was."""
        moment = time.monotonic()
        with self.page.expect_navigation():
            button.click()
        assert self.page.locator(".messagelist .success").count() == 1
        return moment

    def save(self, row: str, *, interval: str, frame: str) -> float:
        """Fill in and save the form of an endpoint; return when that was."""
        self.page.click(f"#result_list >> text={row}")
        self.page.fill("#id_interval", interval)
        self.page.select_option("#id_frame", frame)
        return self.click(self.page.locator("[name=_save]"))

    def act(self, action: str, *rows: str) -> float:
        """Run an action on some rows; return when it was started."""
        for row in rows:
            self.page.locator("#result_list tr", has_text=row).locator(".action-select").check()
        self.page.select_option("[name=action]", label=action)
        return self.click(self.page.locator("[name=index]"))


def test_s7_each_click_in_a_browser_is_obeyed_by_both_servers(
    site: Site, operator: Operator, postgres: Cluster, browser: "Browser"
) -> None:
    """S7, S4: the buttons of the list, the form, and the actions; and each leaves a log entry with who it was."""
    import psycopg

    with psycopg.connect(postgres.address) as connection:
        connection.execute("DELETE FROM sse_keepalive_endpoint")
        connection.execute("DELETE FROM django_admin_log")
    headlines, orders, room = site.listen(HEADLINES), site.listen(ORDERS, interval=0.2), site.listen(ROOM)
    for endpoint in (HEADLINES, ORDERS, ROOM):
        operator.wait_for_row(endpoint)
    admin = Admin(browser, site.servers[DAPHNE])
    admin.log_in(OPERATOR)
    assert admin.rows().keys() == {HEADLINES, ORDERS, ROOM}
    click = admin.press("Turn off", HEADLINES)
    assert_obeyed("Turn off", click, headlines, is_silent)
    assert_obeyed("another endpoint", click, room, hears(COMMENT, click))
    click = admin.press("Turn on", HEADLINES)
    assert_obeyed("Turn on", click, headlines, hears(COMMENT, click))
    click = admin.press("Stop", HEADLINES)
    assert_obeyed("Stop", click, headlines, has_ended)
    assert [listener.response.status for listener in site.listen(HEADLINES)] == [204, 204]
    click = admin.press("Open", HEADLINES)
    until(
        lambda: all(status_of(server, HEADLINES) == 200 for server in site.servers.values()),
        "both servers are open",
        within=click + LIMIT - time.monotonic(),
    )
    headlines = site.listen(HEADLINES)
    assert_obeyed("Open", click, headlines, hears(COMMENT, click))
    click = admin.save(ROOM, interval="1", frame="EVENT")
    assert_obeyed("interval and frame", click, room, hears(EVENT, click))
    click = admin.act("Turn keep-alives off", ORDERS, HEADLINES)
    assert_obeyed("action", click, orders + headlines, is_silent)
    click = admin.act("Stop endpoints and end their streams", ORDERS)
    assert_obeyed("action", click, orders, has_ended)
    with psycopg.connect(postgres.address) as connection:
        entries = connection.execute(
            "SELECT object_repr, username FROM django_admin_log JOIN auth_user ON auth_user.id = user_id"
        ).fetchall()
    assert sorted(entries) == sorted([(HEADLINES, OPERATOR)] * 5 + [(ROOM, OPERATOR)] + [(ORDERS, OPERATOR)] * 2)
    if "SCREENSHOT_DIR" in os.environ:
        admin.page.goto(LIST)
        admin.page.screenshot(path=Path(os.environ["SCREENSHOT_DIR"]) / "admin.png", full_page=True)


def status_of(server: Server, endpoint: str) -> int:
    """Ask for a new stream, leave, and return the status."""
    with Connection(server.port) as connection:
        return connection.get(server.stream("stream", NOTHING, endpoint=endpoint).path).status


def test_s3_an_event_source_does_not_come_back_when_its_endpoint_is_stopped(
    site: Site, operator: Operator, browser: "Browser"
) -> None:
    """S3: at 204 the browser's own ``EventSource`` is closed, and asks no more."""
    pages: list[Page] = []
    answers: list[Response] = []

    def note(response: "Response") -> None:
        answers.append(response)

    for server in site.servers.values():
        page = browser.new_page(base_url=f"http://127.0.0.1:{server.port}")
        page.on("response", note)
        page.goto("/ping")
        stream = server.stream("stream", ["retry: 100\n\n", *NOTHING], endpoint="source")
        page.evaluate("path => { window.source = new EventSource(path); }", stream.path)
        page.wait_for_function("source.readyState == EventSource.OPEN")
        pages.append(page)
    operator.wait_for_row("source")
    operator.press(site.servers[UVICORN], "source", "stop")
    for page in pages:
        page.wait_for_function("source.readyState == EventSource.CLOSED", timeout=PATIENCE * 1000)
    for page in pages:
        page.wait_for_timeout(1000)  # ten times as long as it waits before it comes back
        origin = page.evaluate("location.origin")
        assert [
            answer.status
            for answer in answers
            if answer.request.resource_type == "eventsource" and answer.url.startswith(origin)
        ] == [200, 204]
