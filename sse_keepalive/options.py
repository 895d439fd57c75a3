"""What can be said of a stream: in code, by an operator, and in settings; and what of it is in force."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from sse_keepalive.conf import conf, first_interval_in_seconds, interval_in_seconds
from sse_keepalive.frames import FRAMES, ServerSentEvent, as_frame
from sse_keepalive.switches import LONGEST_NAME, Switch


class Unset(Enum):
    """The value of an option that was not given; ``None`` means off."""

    UNSET = "as the settings say"


UNSET: Final = Unset.UNSET


class Source(Enum):
    """Who has said what is in force."""

    OPERATOR = "operator"
    CODE = "code"
    SETTINGS = "settings"


#: Seconds, a ``timedelta``, or ``None``.
Interval = float | Decimal | timedelta | None
OnError = Callable[[BaseException], Awaitable[ServerSentEvent | None] | ServerSentEvent | None]


@dataclass(frozen=True, slots=True)
class Options:
    """
    What can be said of a stream in code, checked when it is said.

    :raises TypeError: for an option of a wrong type.
    :raises ValueError: for one with a wrong value.
    """

    interval: Interval | Unset = UNSET
    first_interval: Interval | Unset = UNSET
    frame: str | bytes | Unset = UNSET
    endpoint: str | Unset = UNSET
    on_error: OnError | Unset | None = UNSET

    def __post_init__(self) -> None:
        if self.interval is not UNSET:
            interval_in_seconds(self.interval)
        if self.first_interval is not UNSET:
            first_interval_in_seconds(self.first_interval)
        if self.frame is not UNSET:
            as_frame(self.frame)
        if self.on_error is not UNSET and self.on_error is not None and not callable(self.on_error):
            raise TypeError(f"on_error must be callable, not {self.on_error!r}.")
        if not isinstance(self.endpoint, str | Unset):
            raise TypeError(f"endpoint must be a string, not {self.endpoint!r}.")
        if isinstance(self.endpoint, str) and not (
            0 < len(self.endpoint) <= LONGEST_NAME and self.endpoint.isprintable()
        ):
            raise ValueError(f"endpoint must have 1 to {LONGEST_NAME} printable characters, unlike {self.endpoint!r}.")

    def interval_in_force(self, switch: Switch) -> tuple[float, Source]:
        """Return seconds, 0 for off. "On" is no interval: it leaves one that is off in code or settings off."""
        if not switch.keep_alive:
            return 0.0, Source.OPERATOR
        if switch.interval is not None:
            return interval_in_seconds(switch.interval), Source.OPERATOR
        if self.interval is not UNSET:
            return interval_in_seconds(self.interval), Source.CODE
        return conf.interval, Source.SETTINGS

    def first_in_force(self) -> float | None:
        """Return seconds, ``None`` for the interval."""
        return conf.first_interval if self.first_interval is UNSET else first_interval_in_seconds(self.first_interval)

    def frame_in_force(self, switch: Switch) -> tuple[str | bytes, Source]:
        """Return the name or text of a frame. A name that this code does not know (any more) says nothing."""
        if switch.frame in FRAMES:
            return switch.frame, Source.OPERATOR
        if not isinstance(self.frame, Unset):
            return self.frame, Source.CODE
        return conf.frame, Source.SETTINGS

    def as_keywords(self) -> dict[str, Any]:
        """Return the options as the keyword arguments that they came as."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def or_else(self, others: "Options") -> "Options":
        """Return these options with those of the others where these say nothing: themselves if there are none."""
        missing = {
            name: value
            for name, value in others.as_keywords().items()
            if getattr(self, name) is UNSET and value is not UNSET
        }
        return replace(self, **missing) if missing else self
