"""The PostgreSQL of the other live tests: they rely on it to stop and to come back when they say so."""

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from .play import PATIENCE
from .postgres import Cluster, cluster, program

pytestmark = pytest.mark.peers


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Cluster]:
    """Return a running PostgreSQL with a cluster of its own."""
    with cluster(tmp_path / "postgres") as running:
        yield running


def test_a_cluster_keeps_its_data_while_it_is_stopped(postgres: Cluster) -> None:
    """S6 needs a database that goes down and comes back: to a client it is gone, and then it is the same again."""
    import psycopg  # `make test` does without, and collects this module too

    with psycopg.connect(postgres.address) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 'as it was' AS state")
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        postgres.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match=r"\.s\.PGSQL\.5432"):
        psycopg.connect(postgres.address)
    postgres.start()
    with psycopg.connect(postgres.address) as connection:
        assert connection.execute("SELECT state FROM kept").fetchall() == [("as it was",)]


def test_a_cluster_leaves_no_process_when_its_starter_is_gone(postgres: Cluster) -> None:
    """The guard sees the end of the pipe; the processes that have left its group see that of their parent."""
    import psycopg

    assert postgres.process is not None
    assert postgres.process.stdin is not None
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(psycopg.connect(postgres.address)))
        numbers = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
        assert len(numbers) > 1
        processes = [os.pidfd_open(number) for (number,) in numbers]
        for process in processes:
            stack.callback(os.close, process)
        postgres.process.stdin.close()
        assert postgres.process.wait(PATIENCE) == -9
        for process in processes:
            assert select.select([process], [], [], PATIENCE)[0], f"A process is left:\n{postgres.log}"
    # What was killed has left its shared memory behind; the next server on the same data takes that away.
    postgres.abandon()
    postgres.start()


def test_a_cluster_leaves_no_folder(tmp_path: Path) -> None:
    """Nor does it mind that it is stopped already when its block ends."""
    with cluster(tmp_path / "postgres") as postgres:
        folder = Path(postgres.database["HOST"])
        assert (folder / ".s.PGSQL.5432").is_socket()
        postgres.stop()
    assert not folder.exists()
    assert "database system is shut down" in postgres.log


def test_a_missing_program_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not skipped: nobody would notice."""
    monkeypatch.setattr("tests.live.postgres.DEBIAN", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.fail.Exception, match="no postgres on this machine"):
        program("postgres")


def test_a_cluster_that_does_not_start_says_why(postgres: Cluster) -> None:
    """The log is what one needs then."""
    postgres.stop()
    (Path(postgres.database["HOST"]) / "data" / "PG_VERSION").unlink()
    with pytest.raises(AssertionError, match="is not a valid data directory"):
        postgres.start()
