"""The system checks: what is told to whoever configures the site."""

from datetime import timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.checks import ERROR, WARNING, CheckMessage, run_checks
from django.core.checks.registry import registry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from sse_keepalive import checks


@pytest.fixture(autouse=True)
def only_the_checks_of_this_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests install apps for a while, whose checks stay registered and fail without them."""
    own = {check for check in registry.registered_checks if check.__module__ == checks.__name__}
    monkeypatch.setattr(registry, "registered_checks", own)


def messages(**settings: Any) -> list[CheckMessage]:
    """Return what the registered checks say of this app under these settings."""
    with override_settings(**settings):
        return run_checks()


def test_the_checks_are_registered() -> None:
    registered: list[object] = list(registry.get_checks())
    for check in (
        checks.check_interval,
        checks.check_first_interval,
        checks.check_frame,
        checks.check_refresh,
        checks.check_server,
        checks.check_redis,
    ):
        assert check in registered


def test_the_defaults_are_fine() -> None:
    assert messages() == []


@pytest.mark.parametrize(
    "value", [0, None, False, -1, float("inf"), float("nan"), 1, 54.9, Decimal(10), timedelta(seconds=30)], ids=repr
)
def test_an_interval_that_is_off_or_short_is_fine(value: Any) -> None:
    assert messages(SSE_KEEPALIVE_INTERVAL=value) == []


@pytest.mark.parametrize("value", [0, 0.5, None, 1, timedelta(seconds=1), 3600], ids=repr)
def test_a_first_interval_that_is_a_time_is_fine(value: Any) -> None:
    assert messages(SSE_KEEPALIVE_FIRST_INTERVAL=value) == []


@pytest.mark.parametrize("value", [0.001, None, 2, Decimal("2.5"), timedelta(seconds=10), 3600], ids=repr)
def test_s5_a_refresh_that_is_a_time_or_off_is_fine(value: Any) -> None:
    assert messages(SSE_KEEPALIVE_REFRESH=value) == []


@pytest.mark.parametrize(
    "value", ["COMMENT", "LINE", "EVENT", ": ping\n\n", b": ping\n\n", "event: ping\ndata: {}\n\n"]
)
def test_f6_a_frame_that_is_harmless_is_fine(value: Any) -> None:
    assert messages(SSE_KEEPALIVE_FRAME=value) == []


@pytest.mark.parametrize(
    ("setting", "value", "identity", "level", "said", "hinted"),
    [
        ("SSE_KEEPALIVE_INTERVAL", "15", "sse_keepalive.E001", ERROR, "'15'", "number of seconds or a timedelta"),
        ("SSE_KEEPALIVE_INTERVAL", "x", "sse_keepalive.E001", ERROR, "'x'", "None to send no keep-alives"),
        ("SSE_KEEPALIVE_INTERVAL", True, "sse_keepalive.E001", ERROR, "True", "number of seconds"),
        ("SSE_KEEPALIVE_INTERVAL", [15], "sse_keepalive.E001", ERROR, "[15]", "number of seconds"),
        ("SSE_KEEPALIVE_INTERVAL", 0.01, "sse_keepalive.W003", WARNING, "0.01 seconds", "15 seconds"),
        ("SSE_KEEPALIVE_INTERVAL", 55, "sse_keepalive.W001", WARNING, "55 seconds", "under 55 seconds"),
        ("SSE_KEEPALIVE_INTERVAL", timedelta(minutes=5), "sse_keepalive.W001", WARNING, "300 seconds", "silence"),
        ("SSE_KEEPALIVE_FIRST_INTERVAL", "1", "sse_keepalive.E002", ERROR, "'1'", "SSE_KEEPALIVE_INTERVAL"),
        ("SSE_KEEPALIVE_FIRST_INTERVAL", -1, "sse_keepalive.E002", ERROR, "-1", "from 0 on"),
        ("SSE_KEEPALIVE_FIRST_INTERVAL", True, "sse_keepalive.E002", ERROR, "True", "number of seconds"),
        ("SSE_KEEPALIVE_FRAME", "ping", "sse_keepalive.E003", ERROR, "'ping'", "'COMMENT'"),
        ("SSE_KEEPALIVE_FRAME", "comment", "sse_keepalive.E003", ERROR, "'comment'", "'COMMENT'"),
        ("SSE_KEEPALIVE_FRAME", None, "sse_keepalive.E003", ERROR, "NoneType", "'EVENT'"),
        ("SSE_KEEPALIVE_FRAME", "id: 1\n\n", "sse_keepalive.E003", ERROR, "id: 1", "one complete event"),
        ("SSE_KEEPALIVE_REFRESH", "2", "sse_keepalive.E004", ERROR, "'2'", "number of seconds or a timedelta"),
        ("SSE_KEEPALIVE_REFRESH", True, "sse_keepalive.E004", ERROR, "True", "do without the switches"),
        ("SSE_KEEPALIVE_REFRESH", False, "sse_keepalive.E004", ERROR, "False", "None"),
        ("SSE_KEEPALIVE_REFRESH", 0, "sse_keepalive.E004", ERROR, "0", "the default is 2"),
        ("SSE_KEEPALIVE_REFRESH", -1, "sse_keepalive.E004", ERROR, "-1", "the default is 2"),
        ("SSE_KEEPALIVE_REFRESH", float("inf"), "sse_keepalive.E004", ERROR, "inf", "None"),
        ("SSE_KEEPALIVE_REFRESH", float("nan"), "sse_keepalive.E004", ERROR, "nan", "None"),
    ],
)
def test_f6_a_setting_that_is_wrong_is_named_before_the_first_request(
    setting: str, value: Any, identity: str, level: int, said: str, hinted: str
) -> None:
    [message] = messages(**{setting: value})
    assert (message.id, message.level) == (identity, level)
    assert message.id is not None
    assert message.id[len("sse_keepalive.")] == {ERROR: "E", WARNING: "W"}[level]
    assert setting in message.msg
    assert said in message.msg
    assert message.hint is not None
    assert hinted in message.hint


def test_every_setting_that_is_wrong_is_named() -> None:
    settings = ("INTERVAL", "FIRST_INTERVAL", "FRAME", "REFRESH")
    found = messages(**{f"SSE_KEEPALIVE_{setting}": True for setting in settings})
    assert {message.id for message in found} == {f"sse_keepalive.E00{number}" for number in range(1, 5)}


def test_daphne_without_an_application_to_serve_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # Installing it for real would put its reactor into this process for good.
    monkeypatch.setattr("sse_keepalive.checks.apps.is_installed", lambda name: name == "daphne")
    [message] = messages()
    assert (message.id, message.level) == ("sse_keepalive.W002", WARNING)
    assert "ASGI_APPLICATION" in message.msg
    assert "ASGI_APPLICATION" in (message.hint or "")
    assert messages(ASGI_APPLICATION="project.asgi.application") == []
    assert [message.id for message in messages(ASGI_APPLICATION=None)] == ["sse_keepalive.W002"]


def test_the_check_command_fails_for_an_error_and_not_for_a_warning() -> None:
    with override_settings(SSE_KEEPALIVE_INTERVAL=True), pytest.raises(SystemCheckError, match=r"sse_keepalive\.E001"):
        call_command("check")
    with override_settings(SSE_KEEPALIVE_INTERVAL=120):
        errors = StringIO()
        call_command("check", stderr=errors)
    assert "sse_keepalive.W001" in errors.getvalue()


def test_a_warning_can_be_silenced() -> None:
    with override_settings(SSE_KEEPALIVE_INTERVAL=120, SILENCED_SYSTEM_CHECKS=["sse_keepalive.W001"]):
        errors = StringIO()
        call_command("check", stderr=errors)
    assert "W001" not in errors.getvalue()


def redis_layer(*hosts: Any, backend: str = "core.RedisChannelLayer") -> dict[str, Any]:
    return {"redis": {"BACKEND": f"channels_redis.{backend}", "CONFIG": {"hosts": list(hosts)}}}


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1", "rediss://127.0.0.1:1/3", "unix:///nowhere"])
def test_a_redis_that_gives_up_before_the_layer_does_is_warned_of(address: str) -> None:
    hosts = [{"address": address, "socket_timeout": None}, {"address": address, "socket_timeout": 5}]
    (warning,) = messages(CHANNEL_LAYERS=redis_layer(*hosts))
    assert warning.id == "sse_keepalive.W004"
    assert "'redis'" in warning.msg
    assert '"socket_timeout": 20' in str(warning.hint)


def test_what_the_check_says_of_the_default_timeout_is_what_redis_py_does() -> None:
    found = messages(CHANNEL_LAYERS=redis_layer("redis://127.0.0.1:1"))
    assert [message.id for message in found] == (["sse_keepalive.W004"] if redis.VERSION >= (8,) else [])


@pytest.mark.parametrize(
    "layers",
    [
        redis_layer({"address": "redis://127.0.0.1:1", "socket_timeout": 20}),
        redis_layer({"host": "127.0.0.1", "port": 1, "socket_timeout": None}),
        redis_layer("redis://127.0.0.1:1?socket_timeout=6"),
        redis_layer("redis://127.0.0.1:1", backend="pubsub.RedisPubSubChannelLayer"),
        redis_layer("redis://127.0.0.1:1", backend="core.NoSuchLayer"),
        {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}},
        {},
    ],
    ids=["longer", "none", "in the address", "pubsub", "unknown", "memory", "no layers"],
)
def test_a_channel_layer_that_waits_long_enough_is_fine(layers: dict[str, Any]) -> None:
    assert messages(CHANNEL_LAYERS=layers) == []
