"""The settings: what each value means, and that none of them breaks a request."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import RequestFactory, override_settings

from sse_keepalive.conf import (
    DEFAULT_INTERVAL,
    conf,
    first_interval_in_seconds,
    interval_in_seconds,
    refresh_in_seconds,
)
from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import COMMENT, LINE
from sse_keepalive.http import EventStreamResponse
from tests.asgi import TIME_LIMIT

OFF: list[Any] = [
    0,
    0.0,
    -0.0,
    None,
    False,
    -1,
    -0.5,
    -math.inf,
    math.inf,
    math.nan,
    Decimal(0),
    Decimal("-1"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    timedelta(0),
    timedelta(seconds=-1),
    timedelta.min,
    10**400,
]

#: Values that mean a number of seconds, short enough for a test to wait for.
SECONDS: list[tuple[Any, float]] = [
    (0.002, 0.002),
    (Decimal("0.002"), 0.002),
    (Fraction(1, 500), 0.002),
    (timedelta(milliseconds=2), 0.002),
]

LONG: list[tuple[Any, float]] = [
    (15, 15.0),
    (1.5, 1.5),
    (Decimal("12.5"), 12.5),
    (timedelta(minutes=1), 60.0),
    (timedelta.max, timedelta.max.total_seconds()),
    (1e300, 1e300),
]

NONSENSE: list[Any] = ["15", "x", "", True, b"15", 1j, [15], (15,), {}, object()]


# What a value means, in each of the three places where it can stand.


@pytest.mark.parametrize("value", OFF, ids=repr)
def test_c1_these_intervals_are_off(value: Any) -> None:
    assert interval_in_seconds(value) == 0.0
    with override_settings(SSE_KEEPALIVE_INTERVAL=value):
        assert conf.interval == 0.0


@pytest.mark.parametrize(("value", "seconds"), [*SECONDS, *LONG], ids=repr)
def test_d1_these_intervals_are_seconds(value: Any, seconds: float) -> None:
    assert interval_in_seconds(value) == seconds
    assert first_interval_in_seconds(value) == seconds
    with override_settings(SSE_KEEPALIVE_INTERVAL=value, SSE_KEEPALIVE_FIRST_INTERVAL=value):
        assert (conf.interval, conf.first_interval) == (seconds, seconds)
        assert type(conf.interval) is float


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: type(value).__name__ + repr(value)[:5])
def test_d1_anything_else_is_a_type_error_in_code_and_the_default_in_settings(value: Any) -> None:
    with pytest.raises(TypeError, match="neither a number of seconds nor a timedelta"):
        interval_in_seconds(value)
    with pytest.raises(TypeError, match="neither a number of seconds nor a timedelta"):
        first_interval_in_seconds(value)
    with override_settings(SSE_KEEPALIVE_INTERVAL=value, SSE_KEEPALIVE_FIRST_INTERVAL=value):
        assert conf.interval == DEFAULT_INTERVAL == 15.0
        assert conf.first_interval is None


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, Decimal("NaN"), Decimal("sNaN"), timedelta(-1), 10**400])
def test_r4_a_first_interval_is_a_time_from_now_on(value: Any) -> None:
    with pytest.raises(ValueError, match="not a time from 0 seconds on"):
        first_interval_in_seconds(value)
    with override_settings(SSE_KEEPALIVE_FIRST_INTERVAL=value):
        assert conf.first_interval is None


@pytest.mark.parametrize("value", [0, 0.0, Decimal(0), timedelta(0)])
def test_r4_a_first_interval_of_zero_is_at_once(value: Any) -> None:
    assert first_interval_in_seconds(value) == 0.0


@pytest.mark.parametrize(("value", "seconds"), [*SECONDS, *LONG], ids=repr)
def test_s5_a_refresh_is_given_in_seconds(value: Any, seconds: float) -> None:
    assert refresh_in_seconds(value) == seconds
    with override_settings(SSE_KEEPALIVE_REFRESH=value):
        assert conf.refresh == seconds


def test_s5_a_refresh_of_none_is_never() -> None:
    assert refresh_in_seconds(None) is None
    with override_settings(SSE_KEEPALIVE_REFRESH=None):
        assert conf.refresh is None


@pytest.mark.parametrize("value", [value for value in OFF if value is not None and value is not False], ids=repr)
def test_s5_a_refresh_takes_some_time_that_ends(value: Any) -> None:
    """None is the one way to turn the switches off: 0 might as well be meant for all the time."""
    with pytest.raises(ValueError, match="not a time of more than 0 seconds"):
        refresh_in_seconds(value)
    with override_settings(SSE_KEEPALIVE_REFRESH=value):
        assert conf.refresh == 2.0


@pytest.mark.parametrize("value", [*NONSENSE, False], ids=lambda value: type(value).__name__ + repr(value)[:5])
def test_s5_any_other_refresh_is_a_type_error_and_the_default_at_a_request(value: Any) -> None:
    with pytest.raises(TypeError, match="neither a number of seconds nor a timedelta"):
        refresh_in_seconds(value)
    with override_settings(SSE_KEEPALIVE_REFRESH=value):
        assert conf.refresh == 2.0


def test_d1_without_settings_there_are_the_defaults() -> None:
    assert (conf.interval, conf.first_interval, conf.frame, conf.refresh) == (15.0, None, COMMENT, 2.0)


@pytest.mark.parametrize("value", ["ping", "", "data: x", "id: 1\n\n", "\ud800\n", b"\xff\n", None, 1, ["LINE"]])
def test_f6_a_setting_that_is_no_frame_is_the_default_at_a_request(value: Any) -> None:
    with override_settings(SSE_KEEPALIVE_FRAME=value):
        assert conf.frame == COMMENT


def test_d1_settings_are_read_at_each_access() -> None:
    with override_settings(SSE_KEEPALIVE_INTERVAL=1, SSE_KEEPALIVE_FRAME="LINE", SSE_KEEPALIVE_FIRST_INTERVAL=2):
        assert (conf.interval, conf.first_interval, conf.frame) == (1.0, 2.0, "LINE")
        with override_settings(SSE_KEEPALIVE_INTERVAL=3):
            assert conf.interval == 3.0
        assert conf.interval == 1.0
    assert conf.interval == 15.0


# What it does to a stream.


async def _events() -> AsyncIterator[str]:
    yield "data: 1\n\n"
    await asyncio.sleep(0.05)
    yield "data: 2\n\n"


async def chunks_with(place: str, value: Any, rf: RequestFactory) -> list[bytes]:
    """Return a whole stream whose interval is set in one of three places."""

    async def view(request: HttpRequest) -> EventStreamResponse:
        return EventStreamResponse(_events(), **({"interval": value} if place == "response" else {}))

    with override_settings(**({"SSE_KEEPALIVE_INTERVAL": value} if place == "setting" else {})):
        decorated = sse_keepalive(interval=value)(view) if place == "decorator" else sse_keepalive(view)
        response = await decorated(rf.get("/"))
    async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(response)) as chunks:
        return [chunk async for chunk in chunks]


PLACES = ["setting", "decorator", "response"]


@pytest.mark.parametrize("place", PLACES)
async def test_c1_a_stream_whose_interval_is_off_is_silent_where_it_has_nothing_to_say(
    place: str, rf: RequestFactory
) -> None:
    streams = await asyncio.gather(*(chunks_with(place, value, rf) for value in OFF))
    assert streams == [[b"", b"data: 1\n\n", b"data: 2\n\n"]] * len(OFF)


@pytest.mark.parametrize("place", PLACES)
async def test_c2_a_stream_whose_interval_is_a_time_is_kept_alive(place: str, rf: RequestFactory) -> None:
    for value, _ in SECONDS:
        chunks = await chunks_with(place, value, rf)
        assert chunks.count(COMMENT.encode()) >= 1
        assert [chunk for chunk in chunks if chunk != COMMENT.encode()] == [b"", b"data: 1\n\n", b"data: 2\n\n"]


@pytest.mark.parametrize("place", PLACES)
async def test_d1_a_long_interval_lasts(place: str, rf: RequestFactory) -> None:
    streams = await asyncio.gather(*(chunks_with(place, value, rf) for value, _ in LONG))
    assert streams == [[b"", b"data: 1\n\n", b"data: 2\n\n"]] * len(LONG)


async def test_d1_a_setting_that_makes_no_sense_does_not_break_a_request(rf: RequestFactory) -> None:
    for value in NONSENSE:
        with override_settings(SSE_KEEPALIVE_FIRST_INTERVAL=value, SSE_KEEPALIVE_FRAME=value):
            assert await chunks_with("setting", value, rf) == [b"", b"data: 1\n\n", b"data: 2\n\n"]


async def test_d1_override_settings_takes_effect_for_the_next_response() -> None:
    def response() -> EventStreamResponse:
        async def stream() -> AsyncIterator[str]:
            await asyncio.Event().wait()
            yield ""

        return EventStreamResponse(stream())

    before = response()
    with override_settings(SSE_KEEPALIVE_INTERVAL=0.001, SSE_KEEPALIVE_FRAME="LINE"):
        during = response()
    async with asyncio.timeout(TIME_LIMIT), aclosing(aiter(during)) as chunks:
        assert [await anext(chunks), await anext(chunks)] == [b"", LINE.encode()]
    async with aclosing(aiter(before)) as chunks:
        assert await anext(chunks) == b""
        following = asyncio.ensure_future(anext(chunks))
        done, _ = await asyncio.wait([following], timeout=0.05)
        assert not done
        following.cancel()
        await asyncio.wait([following])
