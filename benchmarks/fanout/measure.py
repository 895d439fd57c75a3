"""One room after the other, in rounds in which all who stream take their turn."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fanout.audience import LOST_AFTER, PATIENCE, PROBE, Audience, listening
from benchmarks.fanout.fleet import LAYERS, Fleet
from benchmarks.processes import Server

#: Seconds between two messages under light load.
LIGHT: Final = 0.1

#: Seconds between two probes, before all clients listen.
PROBE_EVERY: Final = 0.05

_rooms = itertools.count(1)


@dataclass(frozen=True)
class Variant:
    """Who streams, over which layer, to how many clients."""

    who: str
    layer: str | None
    clients: int


@dataclass(frozen=True)
class Load:
    """
    The messages that are sent.

    In each round ``singles``, the next one as soon as all clients have the one before, and ``deliveries``, with
    ``window`` messages on their way: so many to all clients together. In the last one, besides, ``light`` messages,
    one now and then, and ``heavy`` ones, with ``heavy_window`` on their way.
    """

    singles: int
    deliveries: int
    window: int
    light: int
    heavy: int
    heavy_window: int


@dataclass
class Runs:
    """What was measured of a variant: an entry a round, but for the light load an entry a message and client."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    single_cpu: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    messages: int = 0
    lost: int = 0
    heavy: int = 0
    heavy_lost: int = 0
    out_of_order: int = 0


@dataclass(frozen=True)
class Row:
    """
    The medians of a variant, and what it has lost in all rounds.

    Of messages that came to clients: how many in a second, the microseconds of CPU of all servers for each (and for
    each of those that were sent one at a time), and the milliseconds that one takes under light load.
    """

    who: str
    layer: str | None
    clients: int
    rate: float
    cpu: float
    single_cpu: float
    latency: float
    highest_latency: float
    messages: int
    lost: int
    heavy: int
    heavy_lost: int
    out_of_order: int


@dataclass(frozen=True)
class Comparison:
    """This package beside a peer: the medians of the ratios within a round."""

    who: str
    layer: str
    clients: int
    peer: str
    rate: float
    cpu: float
    single_cpu: float
    lost: int
    kept: bool


def variants(names: Sequence[str], clients: Sequence[int]) -> list[Variant]:
    """Return all that is measured."""
    return [
        Variant(who, layer, count)
        for count in clients
        for who in names
        for layer in ([None] if who == "eventstream" else LAYERS)
    ]


async def measure(fleet: Fleet, wanted: Sequence[Variant], load: Load, *, rounds: int) -> dict[Variant, Runs]:
    """Measure all variants, so many rounds."""
    runs = {variant: Runs() for variant in wanted}
    for number in range(rounds):
        # There and back, so that none always runs in the wake of the same other one.
        for variant in wanted if number % 2 == 0 else reversed(wanted):
            await run(fleet, variant, runs[variant], load, is_last=number == rounds - 1)
    return runs


async def run(fleet: Fleet, variant: Variant, runs: Runs, load: Load, *, is_last: bool) -> None:
    """Open a room, fill it, send to it, and close it."""
    room = Room(fleet, variant, f"room-{next(_rooms)}")
    servers = fleet.servers[variant.who]
    async with listening(room.audience, [server.port for server in servers], room.path, variant.clients):
        await room.settle()

        _, single_cpu = await room.measure(servers, load.singles // variant.clients, window=1)
        rate, cpu = await room.measure(servers, load.deliveries // variant.clients, window=load.window)
        runs.rates.append(rate)
        runs.cpu.append(cpu)
        runs.single_cpu.append(single_cpu)

        if is_last:
            room.audience.latencies = runs.latencies
            for _ in range(load.light):
                next_at = time.monotonic() + LIGHT
                await room.send(1, window=1)
                await asyncio.sleep(next_at - time.monotonic())
            room.audience.latencies = None
        runs.messages += room.sent * variant.clients
        runs.lost += room.sent * variant.clients - room.audience.arrivals

        if is_last:
            arrivals = room.audience.arrivals
            await room.send(load.heavy, window=load.heavy_window)
            runs.heavy += load.heavy * variant.clients
            runs.heavy_lost += load.heavy * variant.clients - (room.audience.arrivals - arrivals)
        runs.out_of_order += room.audience.out_of_order


class Room:
    """A room, by the one who streams it."""

    def __init__(self, fleet: Fleet, variant: Variant, name: str) -> None:
        self._sender = fleet.sender
        self._address = (variant.who, variant.layer or "", name)
        self.path = "/" + "/".join(part for part in self._address if part)
        self.audience = Audience(variant.clients)
        self.sent = 0

    async def settle(self) -> None:
        """Return when messages come to all clients: the head of a response does not say that the client has joined."""
        deadline = time.monotonic() + PATIENCE
        while not self.audience.is_complete:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Messages do not come to all clients of {self.path}.")
            self._sender.check()
            self._sender.send(*self._address, PROBE, PROBE)
            await self.audience.wait_for_news(PROBE_EVERY)

    async def measure(self, servers: Sequence[Server], messages: int, *, window: int) -> tuple[float, float]:
        """Return how many messages come to clients in a second, and the servers' microseconds of CPU for each."""
        earlier = self.audience.arrivals
        spent = -sum(server.cpu_time() for server in servers)  # what was before is over when they rest
        began_at = time.monotonic()
        waited = await self.send(max(1, messages), window=window)
        seconds = self.audience.last_arrival - began_at - waited
        spent += sum(server.cpu_time() for server in servers)
        arrivals = self.audience.arrivals - earlier
        return arrivals / seconds, spent / arrivals * 1e6

    async def send(self, messages: int, *, window: int) -> float:
        """Let so many messages be on their way at most, and return the seconds waited in vain before the last."""
        waited = 0.0
        last = self.sent + messages
        while self.audience.slowest < last:
            may_send = min(last, self.audience.slowest + window)
            if may_send > self.sent:
                self._sender.send(*self._address, self.sent + 1, may_send)
                self.sent = may_send
            if not await self.audience.wait_for_news(LOST_AFTER):
                self._sender.check()
                silence = time.monotonic() - self.audience.last_arrival
                if silence >= LOST_AFTER:
                    self.audience.write_off(self.sent)
                    waited += silence if self.sent < last else 0.0
        return waited


def rows(runs: dict[Variant, Runs]) -> list[Row]:
    """Return what is printed of each variant."""
    return [
        Row(
            variant.who,
            variant.layer,
            variant.clients,
            statistics.median(run.rates),
            statistics.median(run.cpu),
            statistics.median(run.single_cpu),
            statistics.median(run.latencies),
            max(run.latencies),
            run.messages,
            run.lost,
            run.heavy,
            run.heavy_lost,
            run.out_of_order,
        )
        for variant, run in runs.items()
    ]


def comparisons(runs: dict[Variant, Runs]) -> list[Comparison]:
    """Compare this package with each peer that streams to as many clients, over the same layer if over any."""
    return [
        comparison(ours, runs[ours], peer, runs[peer])
        for ours in runs
        if ours.who in ("view", "consumer")
        for peer in runs
        if peer.who in ("plain", "eventstream") and peer.clients == ours.clients and peer.layer in (ours.layer, None)
    ]


def comparison(ours: Variant, our_runs: Runs, peer: Variant, peer_runs: Runs) -> Comparison:
    """Compare each round with the peer's of the same one."""
    assert ours.layer is not None
    rate = statistics.median(map(float.__truediv__, our_runs.rates, peer_runs.rates))
    cpu = statistics.median(map(float.__truediv__, our_runs.cpu, peer_runs.cpu))
    single_cpu = statistics.median(map(float.__truediv__, our_runs.single_cpu, peer_runs.single_cpu))
    lost = our_runs.lost + our_runs.heavy_lost
    kept = rate >= 1 and cpu <= 1 and single_cpu <= 1 and lost == 0
    return Comparison(ours.who, ours.layer, ours.clients, peer.who, rate, cpu, single_cpu, lost, kept)
