"""``override_switch``: what users need to see their streams obey an operator in their own tests."""

import asyncio
import math
import unittest
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.test import RequestFactory, SimpleTestCase, override_settings

from sse_keepalive.decorators import sse_keepalive
from sse_keepalive.frames import EVENT, LINE
from sse_keepalive.models import Endpoint
from sse_keepalive.switches import AS_IN_CODE, Switch, switches
from sse_keepalive.testing import override_switch
from tests.asgi import get
from tests.clock import run

OFF = Switch(keep_alive=False)
STOPPED = Switch(is_open=False)


def test_s8_as_a_context_manager() -> None:
    with override_switch("named", keep_alive=False):
        assert switches.get("named") == OFF
        assert switches.get("other") == AS_IN_CODE
    assert switches.get("named") == AS_IN_CODE


@override_switch("named", keep_alive=False)
def test_s8_as_a_decorator_of_a_function() -> None:
    assert switches.get("named") == OFF


@override_switch("named", keep_alive=False)
async def test_s8_as_a_decorator_of_a_coroutine_function() -> None:
    await asyncio.sleep(0)
    assert switches.get("named") == OFF


def test_s8_a_decorated_function_leaves_nothing_behind_whatever_it_raises() -> None:
    @override_switch("named", keep_alive=False)
    def fail() -> None:
        raise LookupError(switches.get("named"))

    @override_switch("named", keep_alive=False)
    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise LookupError(switches.get("named"))

    assert iscoroutinefunction(fail_later)
    assert fail.__name__ == "fail"
    for failing in (fail, fail, lambda: asyncio.run(fail_later())):
        with pytest.raises(LookupError) as raised:
            failing()
        assert raised.value.args == (OFF,)
        assert switches.get("named") == AS_IN_CODE


def test_s8_as_a_decorator_of_a_test_case() -> None:
    seen: list[Switch] = []

    @override_switch("named", keep_alive=False)
    @override_switch("other", is_open=False)
    class Case(SimpleTestCase):
        def setUp(self) -> None:
            seen.append(switches.get("named"))

        def test_of_a_function(self) -> None:
            seen.extend([switches.get("named"), switches.get("other")])

        @override_switch("named", is_open=False)
        async def test_of_a_coroutine_function(self) -> None:
            seen.extend([switches.get("named"), switches.get("other")])

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (2, [], [])
    assert seen == [OFF, STOPPED, STOPPED, OFF, OFF, STOPPED]
    assert (switches.get("named"), switches.get("other")) == (AS_IN_CODE, AS_IN_CODE)
    with pytest.raises(TypeError):
        override_switch("named")(type("NoTestCase", (), {}))


def test_s8_nested_the_innermost_is_in_force() -> None:
    """It says all of a switch, not only what it names: nothing of what is outside shows through."""
    outermost = override_switch("named", keep_alive=False)
    with outermost:
        with override_switch("named", is_open=False):
            assert switches.get("named") == STOPPED
            with outermost:
                assert switches.get("named") == OFF
            with override_switch("named"):
                assert switches.get("named") == AS_IN_CODE
            assert switches.get("named") == STOPPED
        assert switches.get("named") == OFF
    assert switches.get("named") == AS_IN_CODE


@pytest.mark.django_db(transaction=True)
def test_s8_it_is_in_force_whatever_the_database_says() -> None:
    row = Endpoint.objects.create(name="named", keep_alive=False)
    with override_switch("named", is_open=False):
        assert switches.get("named") == STOPPED
        row.interval = 20
        row.save()
        assert switches.get("named") == STOPPED
    assert switches.get("named") == Switch(keep_alive=False, interval=20)


@override_settings(SSE_KEEPALIVE_REFRESH=None)
def test_s8_it_is_in_force_where_there_are_no_switches() -> None:
    with override_switch("named", is_open=False):
        assert switches.get("named") == STOPPED
    assert switches.get("named") == AS_IN_CODE


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [(None, None), (1, 1.0), (2.5, 2.5), (Decimal(20), 20.0), (timedelta(minutes=1), 60.0)],
    ids=repr,
)
def test_s8_an_interval_is_given_as_in_code(interval: Any, seconds: float | None) -> None:
    assert override_switch("named", interval=interval).switch == Switch(interval=seconds)


@pytest.mark.parametrize("interval", [0, 0.5, 86_401, -1, math.inf, math.nan, False, timedelta(milliseconds=999)])
def test_s8_an_interval_that_no_operator_can_set_is_refused(interval: Any) -> None:
    with pytest.raises(ValueError, match="interval must be"):
        override_switch("named", interval=interval)


def test_s8_what_is_no_interval_and_no_frame_is_refused() -> None:
    with pytest.raises(TypeError, match="neither a number"):
        override_switch("named", interval="20")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"frame must be one of 'COMMENT', 'LINE', 'EVENT', not ': ping\\n'"):
        override_switch("named", frame=": ping\n")


# What streams make of it.


async def silence() -> AsyncIterator[str]:
    await asyncio.sleep(100)
    yield "data: 1\n\n"


@sse_keepalive(endpoint="named", interval=15)
async def view(request: HttpRequest) -> AsyncIterator[str]:
    async for event in silence():
        yield event


async def story(request: HttpRequest, *changes: tuple[float, override_switch | None]) -> list[tuple[float, bytes]]:
    """
    Return what a stream has sent, and when.

    :param changes: seconds from the last one on, and what is in force then instead of that.
    """

    async def change() -> None:
        in_force: override_switch | None = None
        for seconds, override in changes:
            await asyncio.sleep(seconds)
            if in_force is not None:
                in_force.disable()
            in_force = override
            if in_force is not None:
                in_force.enable()

    loop = asyncio.get_running_loop()
    operator = asyncio.create_task(change())
    told = [(loop.time(), chunk) async for chunk in await view(request)]
    await operator
    return [(round(when, 3), chunk) for when, chunk in told if chunk]


@pytest.fixture
def request_(rf: RequestFactory) -> HttpRequest:
    return rf.get("/")


def test_s8_a_stream_is_what_the_switch_says_from_its_beginning(request_: HttpRequest) -> None:
    with override_switch("named", interval=40, frame="LINE"):
        told = run(lambda: story(request_))
    assert told == [(40.0, LINE.encode()), (80.0, LINE.encode()), (100.0, b"data: 1\n\n")]


def test_s8_streams_that_are_open_follow_as_they_follow_an_operator(request_: HttpRequest) -> None:
    told = run(
        lambda: story(
            request_,
            (20.0, override_switch("named", keep_alive=False)),
            (30.0, override_switch("named", interval=10, frame="EVENT")),
            (15.0, None),
        )
    )
    keep_alive = b": keep-alive\n\n"
    assert told == [
        (15.0, keep_alive),
        (50.0, EVENT.encode()),
        (60.0, EVENT.encode()),
        (75.0, keep_alive),
        (90.0, keep_alive),
        (100.0, b"data: 1\n\n"),
    ]


def test_s8_an_open_stream_that_is_stopped_ends_at_once(request_: HttpRequest) -> None:
    async def until_it_ends() -> float:
        with override_switch("other", is_open=False):
            await story(request_, (17.0, override_switch("named", is_open=False)), (0.0, None))
        return asyncio.get_running_loop().time()

    assert run(until_it_ends) == 17.0


async def test_s8_new_requests_are_refused_and_taken_again() -> None:
    @sse_keepalive(endpoint="named")
    async def brief(request: HttpRequest) -> AsyncIterator[str]:
        yield "data: 1\n\n"

    with override_switch("named", is_open=False):
        assert (await get(brief)).status == 503
    assert (await get(brief)).body == b"data: 1\n\n"
