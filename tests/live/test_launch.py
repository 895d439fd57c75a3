"""The limits that live servers run in: a stream that gets out of hand must not take the machine with it."""

import sys
from pathlib import Path

from .play import PATIENCE
from .servers import start_guarded, stop_group

KILLED = -9


def test_a_program_gets_no_more_memory_than_its_limit(tmp_path: Path) -> None:
    """A gibibyte each, however much it asks for."""
    process = start_guarded([sys.executable, "-c", "bytearray(2 * 1024**3)"], tmp_path / "output")
    try:
        assert process.wait(PATIENCE) == 1
    finally:
        stop_group(process)
    assert "MemoryError" in (tmp_path / "output").read_text()


def test_a_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Whose death the guard sees by the end of the pipe."""
    process = start_guarded(["sleep", "60"], tmp_path / "output")
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == KILLED
    finally:
        stop_group(process)


def test_a_program_ends_when_its_time_is_up(tmp_path: Path) -> None:
    """Whatever else has happened."""
    process = start_guarded(["sleep", "60"], tmp_path / "output", lifetime=0.1)
    try:
        assert process.wait(PATIENCE) == KILLED
    finally:
        stop_group(process)
