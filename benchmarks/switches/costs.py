"""What a switch costs a request: to ask for it, beside asking elsewhere; and all that is asked for one stream."""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from timeit import Timer
from typing import Any, Final

from django.apps import apps
from django.core.cache import cache
from django.http import HttpRequest
from django.test import AsyncRequestFactory
from django.urls import resolve

from benchmarks.switches.asgi import one_event
from benchmarks.switches.refresh import use_switches
from sse_keepalive.models import Endpoint
from sse_keepalive.switches import switches

#: Of the endpoint, and of what the peers are asked for.
NAME: Final = "one-event"

#: Seconds that each of those who are asked has in a round.
TURN: Final = 0.02


@dataclass(frozen=True)
class Asking:
    """Nanoseconds of CPU that it takes to ask."""

    who: str
    cpu: float
    over_ours: float


@dataclass(frozen=True)
class Request:
    """Microseconds of CPU that one request takes without and with the switches."""

    without: float
    with_switches: float
    added: float


def askings(*, rounds: int) -> list[Asking]:
    """Measure whoever can be asked: medians over rounds in which all take their turn."""
    use_switches(is_on=True)
    timers = {
        who: Timer("ask(name)", timer=time.process_time, globals={"ask": ask, "name": NAME})
        for who, ask in who_can_be_asked().items()
    }
    counts = {who: max(1, round(TURN * 100 / timer.timeit(100))) for who, timer in timers.items()}
    times: dict[str, list[float]] = {who: [] for who in timers}
    for number in range(rounds):
        # There and back, so that none always runs in the wake of the same other one.
        for who in list(timers) if number % 2 == 0 else reversed(timers):
            times[who].append(timers[who].timeit(counts[who]) / counts[who] * 1e9)
    cpu = {who: statistics.median(values) for who, values in times.items()}
    return [Asking(who, value, value / cpu["ours"]) for who, value in cpu.items()]


def who_can_be_asked() -> dict[str, Callable[[str], Any]]:
    """Return functions that answer for a name. All but the database have the answer at hand."""
    Endpoint.objects.get_or_create(name=NAME)
    cache.set(NAME, True, timeout=None)
    functions: dict[str, Callable[[str], Any]] = {
        "nobody": lambda _name: None,
        "ours": switches.get,
        "cache": cache.get,
        "database": lambda name: Endpoint.objects.get(name=name),
    }
    if apps.is_installed("waffle"):
        from waffle import switch_is_active
        from waffle.models import Switch

        Switch.objects.get_or_create(name=NAME, defaults={"active": True})
        functions["waffle"] = switch_is_active
    return functions


def requests(*, rounds: int, count: int) -> Request:
    """Measure a request from the call of the view to the end of its stream: medians over rounds."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for is_on in (True, False) if number % 2 == 0 else (False, True):
            use_switches(is_on=is_on)
            times[is_on].append(asyncio.run(cpu_time(count)) / count * 1e6)
    added = statistics.median(map(float.__sub__, times[True], times[False]))
    return Request(statistics.median(times[False]), statistics.median(times[True]), added)


async def cpu_time(count: int) -> float:
    """Return the seconds of CPU that requests take, one after the other, as Django's handler would see to them."""
    request = AsyncRequestFactory().get("/one-event")
    request.resolver_match = resolve("/one-event")
    await respond(request)
    started_at = time.process_time()
    for _ in range(count):
        await respond(request)
    return time.process_time() - started_at


async def respond(request: HttpRequest) -> None:
    """Read a stream to its end."""
    response = await one_event(request)
    async for _ in response:
        pass
    response.close()
