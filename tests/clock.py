"""Virtual time: an event loop whose clock jumps to its next timer as soon as nothing is left to do."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """
    A loop that never waits: where a real one would sleep, time is set forward.

    :param per_pass: seconds that each pass of the loop takes, for spinners, which leave the loop no idle moment.
    """

    def __init__(self, per_pass: float = 0.0) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self, per_pass))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        # Rounded, so that 0.1 and 0.2 make 0.3 and times can be compared as they are written.
        self._now = round(self._now + seconds, 9)


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop, per_pass: float) -> None:
        super().__init__()
        self._loop = loop
        self._per_pass = per_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        self._loop.advance(self._per_pass)
        if not events and timeout is None:
            raise RuntimeError("Deadlock: everything waits, and no timer is armed.")
        if not events and timeout:
            self._loop.advance(timeout)
        return events


def run(
    main: Callable[[], Coroutine[Any, Any, Result]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = VirtualTimeLoop,
    *,
    debug: bool = False,
) -> Result:
    """Run ``main()`` in a loop of its own, by default in virtual time."""
    with asyncio.Runner(loop_factory=loop_factory, debug=debug) as runner:
        return runner.run(main())
