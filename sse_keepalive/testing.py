"""What users need in their own tests."""

from django.test.utils import TestContextDecorator

from sse_keepalive.conf import interval_in_seconds
from sse_keepalive.frames import FRAMES
from sse_keepalive.options import Interval
from sse_keepalive.switches import LONGEST_INTERVAL, SHORTEST_INTERVAL, Override, Switch, switches


class override_switch(TestContextDecorator):  # noqa: N801 - a decorator, as override_settings is
    """
    Let an endpoint be switched as an operator would have it, in this process and whatever the database says.

    A context manager, and a decorator of functions, coroutine functions and test cases. Streams that are open when
    it begins or ends follow, as they follow an operator. No database is needed, nor the app in ``INSTALLED_APPS``.

    :param name: that of the endpoint.
    :param keep_alive: whether keep-alives are sent.
    :param interval: seconds of silence before one, from 1 to 86,400; by default as the code or the settings say.
    :param frame: the name of a ready-made frame; by default as the code or the settings say.
    :param is_open: whether the endpoint is open.
    :raises TypeError: if the interval is no number of seconds.
    :raises ValueError: if it is outside of these bounds, or there is no frame of that name.
    """

    def __init__(
        self,
        name: str,
        *,
        keep_alive: bool = True,
        interval: Interval = None,
        frame: str = "",
        is_open: bool = True,
    ) -> None:
        seconds = None if interval is None else interval_in_seconds(interval)
        if seconds is not None and not SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL:
            raise ValueError(
                f"interval must be from {SHORTEST_INTERVAL} to {LONGEST_INTERVAL} seconds, not {interval!r}."
            )
        if frame and frame not in FRAMES:
            raise ValueError(f"frame must be one of {', '.join(map(repr, FRAMES))}, not {frame!r}.")
        super().__init__()
        self.name = name
        self.switch = Switch(keep_alive, seconds, frame, is_open)
        self._in_force: list[Override] = []

    def enable(self) -> None:
        self._in_force.append(switches.override(self.name, self.switch))

    def disable(self) -> None:
        switches.cancel(self._in_force.pop())
