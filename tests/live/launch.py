"""
Starts a program of the live tests so that it can harm nobody: ``python launch.py SECONDS PROGRAM ARGUMENT...``.

A server whose client is gone or does not read may queue what a stream yields, or swallow it at full speed, and a
test process that is killed cannot tidy up. So each server has hard limits on memory and files, and a guard: a
process of its group that kills the group when the time is up, or when the test process is gone, which it sees at
the end of the pipe that is the standard input here.
"""

import os
import resource
import select
import signal
import sys
from typing import Final

MEBIBYTE: Final = 1024 * 1024

#: For each process. Address space would be the wrong measure: threads and arenas reserve much and use little of it.
MOST_MEMORY: Final = 1024 * MEBIBYTE

#: For each file, because servers log a line for every message that they cannot send.
LARGEST_FILE: Final = 64 * MEBIBYTE


def launch(seconds: float, command: list[str]) -> None:
    """Become the program, limited and guarded."""
    if os.getpgrp() != os.getpid():
        raise RuntimeError("The program must lead a process group of its own, which the guard can kill.")
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.fork() == 0:
        guard(seconds)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    os.execvp(command[0], command)


def guard(seconds: float) -> None:
    """Kill the group, this process included, when the time is up or the pipe's other end is closed."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    select.select([0], [], [], seconds)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    launch(float(sys.argv[1]), sys.argv[2:])
