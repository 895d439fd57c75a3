"""What is told to whoever configures the site, before the first request."""

from collections.abc import Callable
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning

from sse_keepalive.conf import conf, first_interval_in_seconds, interval_in_seconds, refresh_in_seconds
from sse_keepalive.frames import FRAMES, as_frame

#: Seconds. Heroku cuts a stream that has been silent for so long; HAProxy's and nginx's usual time-outs are near.
TOO_LONG: Final = 55
TOO_SHORT: Final = 1


def check_interval(app_configs: object = None, **kwargs: Any) -> list[CheckMessage]:
    """E001: an interval that is none. W001: one that is longer than what it is to prevent. W003: a tiny one."""
    errors = _errors_of(
        "SSE_KEEPALIVE_INTERVAL",
        interval_in_seconds,
        id="sse_keepalive.E001",
        hint="Set it to a number of seconds or a timedelta, or to None to send no keep-alives.",
    )
    if errors or conf.interval == 0 or TOO_SHORT <= conf.interval < TOO_LONG:
        return errors
    if conf.interval < TOO_SHORT:
        return [
            CheckWarning(
                f"SSE_KEEPALIVE_INTERVAL is {conf.interval:g} seconds, which keeps the server busy with keep-alives.",
                hint="No proxy needs more than one in a second; the default is 15 seconds.",
                id="sse_keepalive.W003",
            )
        ]
    return [
        CheckWarning(
            f"SSE_KEEPALIVE_INTERVAL is {conf.interval:g} seconds, longer than common proxies wait.",
            hint=f"Set it well under {TOO_LONG} seconds (the default is 15), or silence this warning if nothing "
            "between your server and its clients cuts silent connections so early.",
            id="sse_keepalive.W001",
        )
    ]


def check_first_interval(app_configs: object = None, **kwargs: Any) -> list[CheckMessage]:
    """E002: a first interval that is none."""
    return _errors_of(
        "SSE_KEEPALIVE_FIRST_INTERVAL",
        first_interval_in_seconds,
        id="sse_keepalive.E002",
        hint="Set it to a number of seconds from 0 on or a timedelta, or remove it to use SSE_KEEPALIVE_INTERVAL.",
    )


def check_frame(app_configs: object = None, **kwargs: Any) -> list[CheckMessage]:
    """E003: a frame that could damage a stream."""
    return _errors_of(
        "SSE_KEEPALIVE_FRAME",
        as_frame,
        id="sse_keepalive.E003",
        hint=f"Set it to one of {', '.join(map(repr, FRAMES))}, to comment lines such as ': ping\\n\\n', or to one "
        "complete event such as 'event: ping\\ndata: {}\\n\\n'.",
    )


def check_refresh(app_configs: object = None, **kwargs: Any) -> list[CheckMessage]:
    """E004: a time between two looks at the switches that is none."""
    return _errors_of(
        "SSE_KEEPALIVE_REFRESH",
        refresh_in_seconds,
        id="sse_keepalive.E004",
        hint="Set it to a number of seconds or a timedelta (the default is 2), or to None to do without the switches.",
    )


def check_server(app_configs: object = None, **kwargs: Any) -> list[CheckMessage]:
    """W002: Daphne is there but is not told what to serve."""
    if not apps.is_installed("daphne") or getattr(settings, "ASGI_APPLICATION", None):
        return []
    return [
        CheckWarning(
            "daphne is in INSTALLED_APPS, but ASGI_APPLICATION is not set, so runserver cannot serve streams.",
            hint="Set ASGI_APPLICATION to the path of your ASGI application, such as 'project.asgi.application'.",
            id="sse_keepalive.W002",
        )
    ]


def check_redis(app_configs: object = None, **kwargs: Any) -> list[CheckMessage]:
    """W004: a channel layer on Redis that fails whenever it is silent: redis-py 8 brought a time-out of 5 seconds."""
    return [
        CheckWarning(
            f"The channel layer {alias!r} waits for Redis for {wait} seconds, but its connections give up after "
            f"{timeout:g}, so every stream on it fails when there is no message for so long.",
            hint='Give its hosts a longer time-out: "hosts": [{"address": "redis://…", "socket_timeout": 20}].',
            id="sse_keepalive.W004",
        )
        for alias in getattr(settings, "CHANNEL_LAYERS", None) or ()
        for wait, timeout in _redis_timeouts(alias)
        if timeout is not None and timeout <= wait
    ]


def _redis_timeouts(alias: str) -> list[tuple[float, float | None]]:
    """Return how long a layer waits for a message, and its connections for an answer, both in seconds."""
    try:
        from channels.layers import channel_layers

        layer = channel_layers[alias]
        wait = layer.brpop_timeout
        pools = [layer.create_pool(index) for index in range(len(layer.hosts))]
        return [(wait, pool.make_connection().socket_timeout) for pool in pools]
    except Exception:
        return []  # it is of another kind, or its settings are wrong, of which it complains itself


def _errors_of(setting: str, convert: Callable[[Any], object], *, id: str, hint: str) -> list[CheckMessage]:  # noqa: A002
    if not hasattr(settings, setting):
        return []
    try:
        convert(getattr(settings, setting))
    except (TypeError, ValueError) as error:
        return [Error(f"{setting} is not valid: {error}", hint=hint, id=id)]
    return []
