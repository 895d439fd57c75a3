"""The switches turned on and off as a whole, in one process."""

from typing import Final

from django.conf import settings

from sse_keepalive.conf import DEFAULT_REFRESH
from sse_keepalive.switches import switches

SETTING: Final = "SSE_KEEPALIVE_REFRESH"

#: Seconds between two looks at the table.
PERIOD: Final = DEFAULT_REFRESH or 0.0


def use_switches(*, is_on: bool) -> None:
    """Go on as a process does in which the setting has always been the default, or ``None``."""
    if not is_on:
        setattr(settings, SETTING, None)
    elif hasattr(settings, SETTING):
        delattr(settings, SETTING)
    switches.forget()
    switches.block_until_recent()
