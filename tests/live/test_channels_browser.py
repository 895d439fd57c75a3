"""A real browser on a consumer: what its own ``EventSource`` makes of the stream and its messages."""

from pathlib import Path
from typing import Final

import pytest

from .browser import chromium
from .play import Cue
from .servers import running
from .test_channels import APPLICATION, send

pytestmark = pytest.mark.peers

#: Notes each event, and how often the browser has asked for the stream, which it does again when it has ended.
LISTEN: Final = """path => {
    window.heard = [];
    window.opened = 0;
    window.source = new EventSource(path);
    source.onopen = () => { opened += 1; };
    for (const type of ["message", "keep-alive"])
        source.addEventListener(type, event => heard.push([event.type, event.data]));
}"""


def test_h1_an_event_source_hears_a_consumer(tmp_path: Path) -> None:
    """
    Case 15: the events of its stream and the messages of the group, with keep-alives in between.

    When the stream has ended it asks for it again, as for any other; and when it closes one, that ends too.
    """
    first, second = Cue("first"), Cue("second")
    environment = {"DJANGO_SETTINGS_MODULE": "tests.live.channels_settings"}
    with running("daphne", tmp_path / "server", application=APPLICATION, environment=environment) as server:
        stream = server.stream("alive", ["retry: 100\n\n", "data: a\n\n", first, "data: b\n\n", second])
        with chromium() as browser:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.port}/ping")
            page.evaluate(LISTEN, stream.path)
            page.wait_for_function("heard.length == 1")
            send(server, stream.name, "chat.message", "one\ntwo")
            page.wait_for_function("heard.length == 2")
            stream.diary.give(first)
            page.wait_for_function("heard.length == 3")
            assert page.evaluate("heard") == [["message", "a"], ["message", "one\ntwo"], ["message", "b"]]
            assert page.evaluate("opened") == 1
            stream.diary.give(second)
            page.wait_for_function("opened > 1")
            page.evaluate("source.close()")

            room = server.stream("silent", [None])
            page.evaluate(LISTEN, room.path)
            page.wait_for_function("opened == 1")
            room.diary.wait_for("started")
            page.evaluate("source.close()")
            room.diary.wait_for("disconnected")
