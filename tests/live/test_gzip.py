"""Django's GZipMiddleware around a stream, on real servers."""

import django
import httpx

from .play import PATIENCE, Cue, Line
from .servers import Server


def test_compressed_or_not_each_event_arrives_when_it_was_sent(server: Server) -> None:
    """
    R1, R2: a single-member decoder sees every event, at once, frames included.

    The stream goes on only when the client has decoded what it sent.
    """
    cues = [Cue("first"), Cue("second")]
    play: list[Line] = ["data: a\n\n", cues[0], "data: b\n\n", cues[1], "data: c\n\n"]
    stream = server.stream("alive", play, interval=0.2)
    events = []
    url = f"http://127.0.0.1:{server.port}{stream.path}"
    with (
        httpx.Client(timeout=PATIENCE, trust_env=False) as client,
        client.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as response,
    ):
        encoding = response.headers.get("Content-Encoding")
        assert encoding == ("gzip" if django.VERSION >= (6, 1) else None)
        kept_alive = False
        for line in response.iter_lines():
            kept_alive = kept_alive or line.startswith(":")
            if line.startswith("data"):
                events.append(line)
            # A frame has to come through as well before the stream goes on.
            if kept_alive and len(events) in (1, 2):
                stream.diary.give(cues[len(events) - 1])
                kept_alive = False
    assert events == ["data: a", "data: b", "data: c"]
