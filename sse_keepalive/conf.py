"""
The settings, one typed property each, read from ``django.conf.settings`` at every access, so that a change of them
(``override_settings``) is seen by the next response.

A value that makes no sense is reported by the system checks. Where these were not run, its default stands in: no
setting breaks a request.
"""

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, Final, TypeVar

from django.conf import settings

from sse_keepalive.frames import COMMENT, as_frame

#: Seconds. Under every idle time-out that is common (HAProxy 50, Heroku 55, nginx and AWS 60), with room for one
#: keep-alive that comes late, and also under the 30 s that some (CloudFront, Traffic Server) cut at.
DEFAULT_INTERVAL: Final = 15.0

#: Seconds. With it, and what a query and a thread take, a change of a switch reaches every process within 5 s.
DEFAULT_REFRESH: Final[float | None] = 2.0

Value = TypeVar("Value")


def interval_in_seconds(value: Any) -> float:
    """
    Return an interval in seconds, 0 for off.

    :param value: a number of seconds or a ``timedelta``; ``None``, ``False``, 0, negative, infinite and NaN are off.
    :raises TypeError: for anything else, ``True`` and strings included.
    """
    if value is None or value is False:
        return 0.0
    seconds = _seconds(value)
    return seconds if 0 < seconds < math.inf else 0.0


def first_interval_in_seconds(value: Any) -> float | None:
    """
    Return the time in seconds until the first frame; ``None`` if it is that between any other two.

    :param value: a number of seconds or a ``timedelta``, 0 for at once; ``None`` for the interval.
    :raises TypeError: if it is neither.
    :raises ValueError: if it is negative, infinite or NaN.
    """
    if value is None:
        return None
    seconds = _seconds(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{value!r} is not a time from 0 seconds on.")
    return seconds


def refresh_in_seconds(value: Any) -> float | None:
    """
    Return the time in seconds between two looks at the switches; ``None`` if nobody is to look.

    :param value: a number of seconds or a ``timedelta``; ``None`` for never.
    :raises TypeError: if it is neither.
    :raises ValueError: if it is not positive and finite.
    """
    if value is None:
        return None
    seconds = _seconds(value)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{value!r} is not a time of more than 0 seconds.")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    # What it nearly always is is looked for first: the question for any kind of number takes much longer.
    if type(value) not in (int, float) and (isinstance(value, bool) or not isinstance(value, Real | Decimal)):
        raise TypeError(f"{value!r} is neither a number of seconds nor a timedelta.")
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:  # a signalling NaN
        return math.nan


class Settings:
    """The settings of this app."""

    @property
    def interval(self) -> float:
        """``SSE_KEEPALIVE_INTERVAL``: seconds of silence before a keep-alive; 0 for off."""
        return self._read("SSE_KEEPALIVE_INTERVAL", interval_in_seconds, DEFAULT_INTERVAL)

    @property
    def first_interval(self) -> float | None:
        """``SSE_KEEPALIVE_FIRST_INTERVAL``: the same before anything was sent; ``None`` for the interval."""
        return self._read("SSE_KEEPALIVE_FIRST_INTERVAL", first_interval_in_seconds, None)

    @property
    def frame(self) -> str | bytes:
        """``SSE_KEEPALIVE_FRAME``: the name of a ready-made frame, or the text of one."""
        frame: str | bytes = self._read("SSE_KEEPALIVE_FRAME", _checked_frame, COMMENT)
        return frame

    @property
    def refresh(self) -> float | None:
        """``SSE_KEEPALIVE_REFRESH``: seconds between two looks at the switches in the database; ``None`` for never."""
        return self._read("SSE_KEEPALIVE_REFRESH", refresh_in_seconds, DEFAULT_REFRESH)

    def _read(self, name: str, convert: Callable[[Any], Value], default: Value) -> Value:
        try:
            return convert(getattr(settings, name, default))
        except (TypeError, ValueError):
            return default


def _checked_frame(value: Any) -> Any:
    as_frame(value)
    return value


conf = Settings()
