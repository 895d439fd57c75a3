"""A real PostgreSQL for a test: a cluster of its own, which can be stopped and started again in between."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from .servers import START_WITHIN, start_guarded, stop_group

#: Debian keeps the programs of each version in a folder of its own, where no PATH leads.
DEBIAN: Final = Path("/usr/lib/postgresql")

#: Short on purpose: the path of a socket has some 100 bytes at most, and pytest's own folders may be longer.
TEMPORARY: Final = Path("/tmp")

NAME: Final = "postgres"
PORT: Final = "5432"

#: How long, in seconds, a cluster may take to be made, or to stop. It takes some 2 s, or a tenth of one.
PATIENCE: Final = 60.0

#: Nothing listens but the socket; and nothing waits for the disk, for nobody misses what a failing machine loses.
OPTIONS: Final = {
    "listen_addresses": "",
    "port": PORT,
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "16MB",
}


class Cluster:
    """A cluster and its server; made by :func:`cluster`."""

    def __init__(self, folder: Path, logs: Path, owner: pwd.struct_passwd | None) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self._data = folder / "data"
        self._logs = logs
        self._owner = owner
        self._starts = 0

    @property
    def database(self) -> dict[str, str]:
        """What stands in Django's ``DATABASES`` for it; plain, so that an environment can carry it as JSON."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": str(self._folder),
            "PORT": PORT,
            "NAME": NAME,
            "USER": NAME,
        }

    @property
    def address(self) -> str:
        """The same for ``psycopg.connect``."""
        return f"host={self._folder} port={PORT} dbname={NAME} user={NAME}"

    @property
    def log(self) -> str:
        """What the making of the cluster and each of its servers have written so far."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._logs.iterdir()))

    def make(self) -> None:
        """Make the cluster, which has no server yet."""
        command = [
            *(*self._as_owner(), program("initdb"), f"--pgdata={self._data}", f"--username={NAME}"),
            *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
        ]
        process = start_guarded(command, self._logs / "initdb")
        try:
            code = self._wait(process)
        finally:
            stop_group(process)
        assert code == 0, f"initdb ended with {code}:\n{self.log}"

    def start(self) -> None:
        """Start the server, and wait until it takes connections; it then has a lifetime as the others have."""
        assert self.process is None, "It runs already."
        self._starts += 1
        options = [f"--{name}={value}" for name, value in OPTIONS.items()]
        command = [*self._as_owner(), program("postgres"), "-D", str(self._data), "-k", str(self._folder), *options]
        process = self.process = start_guarded(command, self._logs / f"server-{self._starts:03}")
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline and process.poll() is None:
            if self._is_ready(process.pid):
                return
            time.sleep(0.02)
        raise AssertionError(f"PostgreSQL was not ready within {START_WITHIN} s:\n{self.log}")

    def stop(self) -> None:
        """Stop the server in order, but without waiting for its clients, which lose their connections."""
        code = self._end(signal.SIGINT)
        assert code == 0, f"PostgreSQL ended with {code}:\n{self.log}"

    def abandon(self) -> None:
        """Stop the server, if there is one, without a care for its data."""
        if self.process is not None:
            self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None, "It does not run."
        try:
            process.send_signal(number)
            return self._wait(process)
        finally:
            # Its processes have left the group; they see that it is gone and go too. What is left here is the guard.
            stop_group(process)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"PostgreSQL did not end within {PATIENCE} s:\n{self.log}") from None

    def _as_owner(self) -> Sequence[str]:
        """
        Return the beginning of a command that is to run as the owner of the cluster.

        What launches and guards it stays what we are: the owner may not enter the folders where Python and the
        tests lie. Nor may the program find itself in such a folder, for it wants to come back to where it began.
        """
        if self._owner is None:
            return []
        identity = [f"--reuid={self._owner.pw_uid}", f"--regid={self._owner.pw_gid}", "--clear-groups"]
        return ["env", f"--chdir={self._folder}", "setpriv", *identity]

    def _is_ready(self, pid: int) -> bool:
        # The eighth line is for those who wait. A server that was killed leaves the file behind, with its own number.
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
        return False


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """
    Make a cluster and start its server, which ends with the block, as do the data.

    :param directory: an empty one, or none yet, that keeps the logs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    owner = unprivileged_user() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=TEMPORARY))
    made = Cluster(folder, directory, owner)
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        made.make()
        made.start()
        yield made
    finally:
        try:
            made.abandon()
        finally:
            shutil.rmtree(folder)


def unprivileged_user() -> pwd.struct_passwd:
    """Return who runs it where root must not: PostgreSQL refuses to."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs, of the newest version where Debian has several."""
    versions = sorted(DEBIAN.glob("[0-9]*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, versions), os.environ.get("PATH", os.defpath)]))
    if found is None:
        pytest.fail(f"There is no {name} on this machine. `make live` installs what the tests marked `peers` need.")
    return found
