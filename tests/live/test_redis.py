"""The Redis of the other live tests: they rely on it to be killed and to come back when they say so."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .play import PATIENCE
from .redis import Redis, program, redis_server

pytestmark = pytest.mark.peers


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """Return a running Redis of its own."""
    with redis_server(tmp_path / "redis") as running:
        yield running


def test_a_killed_redis_comes_back_at_the_same_address_and_knows_nothing(redis: Redis) -> None:
    """H3 needs one that goes down and comes back; a client that is still there finds it again."""
    from redis import exceptions  # `make test` does without, and collects this module too

    with redis.client() as client:
        client.set("known", "yes")
        redis.kill()
        with pytest.raises(exceptions.ConnectionError):
            client.get("known")
        redis.start()
        assert client.get("known") is None


def test_a_redis_leaves_nothing_on_disk_but_its_log(redis: Redis, tmp_path: Path) -> None:
    """Nor does it mind that it is down already when its block ends."""
    with redis.client() as client:
        client.set("known", "yes")
    redis.kill()
    redis.kill()
    assert [path.name for path in (tmp_path / "redis").iterdir()] == ["server-001"]
    assert "Ready to accept connections" in redis.log


def test_a_redis_ends_with_its_block(tmp_path: Path) -> None:
    """Whose process is gone, and with that its port is free."""
    with redis_server(tmp_path / "redis") as redis:
        process = redis.process
        assert isinstance(process, subprocess.Popen)
    assert process.wait(PATIENCE) == -9
    with socket.socket() as connection, pytest.raises(ConnectionRefusedError):
        connection.connect(("127.0.0.1", redis.port))


def test_a_missing_program_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not skipped: nobody would notice."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.fail.Exception, match="no redis-server on this machine"):
        program()


def test_a_redis_that_does_not_start_says_why(redis: Redis) -> None:
    """The log is what one needs then."""
    redis.kill()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", redis.port))
        listener.listen()
        with pytest.raises(AssertionError, match="Address already in use"):
            redis.start()
