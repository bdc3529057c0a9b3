"""A cloud that grants what a recording says: it is asked, and answers for now only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from provisioners.base import (
    LaunchOutcome,
    LaunchRequest,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Scope,
)
from spotsup_simulator.clock import NEVER, VirtualClock
from spotsup_simulator.cloud import SimCloud
from spotsup_simulator.faults import FaultRng
from spotsup_simulator.hooks import Hooks
from spotsup_simulator.machine import Machine
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.recording import Recording
from supervisor.model import parts_of

TYPE = "recorded"


class RecordedCloud(SimCloud):
    """Spot machines as far as the recording has them; on-demand ones without end, where they have a price.

    When a zone has fewer machines than are held, those that are too many are taken: which ones, chance decides. They
    end as the recording says, and are warned `notice_s` before. A machine that is granted within that time is warned at
    once. One whose zone costs more than its request pays is taken, too.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rng: FaultRng,
        hooks: Hooks,
        name: str,
        recording: Recording,
        costs: Costs,
    ) -> None:
        super().__init__(clock, rng, hooks)
        self.name = name
        self.recording = recording
        self.bought: list[Bought] = []
        # By job.
        self.bought_for: dict[str, list[Bought]] = {}
        self.refused_at: dict[str, list[float]] = {}  # seconds of the recording
        # By zone: the spot machines that existed when it was looked at last.
        self._alive: dict[str, list[Machine]] = {}
        self._costs = costs
        self._began = clock.now()
        # By the clock, soonest last: times of drops, and of their announcements; with the zone's number and the drop's
        # second.
        drops = [(second, zone) for zone, times in enumerate(recording.drops) for second in times]
        events = {(self._began + max(0.0, at - costs.notice_s), zone, at) for at, zone in drops} | {
            (self._began + at, zone, at) for at, zone in drops
        }
        self._events = sorted(events, reverse=True)
        # Machines whose requests pay at most so much, by when their zone costs more: the soonest first.
        self._too_dear: list[tuple[float, int, Machine]] = []

    # -- the provider's API --------------------------------------------------------------------------------

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """Cheapest first. The machine type is what the job asks for, as the recording has no types."""
        kind = query.instance_types[0] if query.instance_types else TYPE
        if query.market is Market.ON_DEMAND and self._costs.on_demand_usd_per_hour is None:
            return ()
        offers = [
            Offer(
                self.name,
                region_of(zone),
                zone,
                kind,
                query.market,
                self.price(zone, query.market),
                gpu=query.gpu,
                gpus=query.gpus_per_node,
                quota=f"{query.market}",
            )
            for zone in self.recording.zones
            if (not query.zones or zone in query.zones) and (not query.regions or region_of(zone) in query.regions)
        ]
        return sorted(offers, key=lambda offer: math.inf if offer.usd_per_hour is None else offer.usd_per_hour)

    def price(self, zone: str, market: Market) -> float | None:
        """USD per hour now."""
        if market is Market.ON_DEMAND:
            return self._costs.on_demand_usd_per_hour
        if self.recording.prices is None:
            return self._costs.spot_usd_per_hour
        return self.recording.prices.at(self._second())[self.recording.zones.index(zone)]

    def _refusal(self, request: LaunchRequest) -> LaunchOutcome | None:
        if request.offer.market is Market.ON_DEMAND:
            return None
        price, cap = self.price(request.offer.zone, Market.SPOT), request.max_usd_per_hour
        if cap is not None and price is not None and price > cap:
            message = f"{request.offer.zone} costs {price:g}"
            return NoCapacity(Scope.TYPE_IN_ZONE, self._costs.refused_s, message, above_cap=True)
        zone = self.recording.zones.index(request.offer.zone)
        if len(self._held(zone)) < self.recording.capacity.at(self._second())[zone]:
            return None
        self.refused_at.setdefault(_job_of(request), []).append(self._second())
        message = f"{request.offer.zone} has no capacity"
        return NoCapacity(Scope.TYPE_IN_ZONE, self._costs.refused_s, message)

    def _create(self, request: LaunchRequest) -> Machine:
        machine = super()._create(request)
        now = self._clock.now()
        machine.runs_at = now + self._costs.boot_s
        bought = Bought(machine, request.offer, now)
        self.bought.append(bought)
        self.bought_for.setdefault(_job_of(request), []).append(bought)
        if request.offer.market is Market.SPOT:
            self._alive.setdefault(request.offer.zone, []).append(machine)
            zone, second = self.recording.zones.index(request.offer.zone), self._second()
            for drop in self.recording.drops[zone]:
                if second < drop <= second + self._costs.notice_s:
                    self._take(zone, drop)
            if (dear_s := self._dear_from(zone, machine.max_usd_per_hour)) is not None:
                announced = max(now, self._began + dear_s - self._costs.notice_s)
                heapq.heappush(self._too_dear, (announced, len(self.bought), machine))
        return machine

    def _dear_from(self, zone: int, cap: float | None) -> float | None:
        """Return the first second from now on at which a zone costs more than this; None where it never does."""
        prices = self.recording.prices
        if prices is None or cap is None:
            return None
        later = range(prices.index(self._second()), len(prices.seconds))
        return next((prices.seconds[row] for row in later if prices.rows[row][zone] > cap), None)

    # -- time ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Announce and take machines, then as any cloud."""
        while self._events and self._events[-1][0] <= self._clock.now():
            _, zone, drop = self._events.pop()
            self._take(zone, drop)
        while self._too_dear and self._too_dear[0][0] <= self._clock.now():
            _, _, machine = heapq.heappop(self._too_dear)
            ends_at = self._clock.now() + self._costs.notice_s
            if machine.ends_at is None or machine.ends_at > ends_at:
                self.preempt(machine, self._costs.notice_s)
        super().step()

    def next_at(self) -> float:
        """Return when the next thing is due. Only what is lost: when a zone has more again, nobody is told."""
        dear_at = self._too_dear[0][0] if self._too_dear else NEVER
        return min(super().next_at(), dear_at, self._events[-1][0] if self._events else NEVER)

    def _second(self) -> float:
        return self._clock.now() - self._began

    def _held(self, zone: int) -> list[Machine]:
        """Return the spot machines of a zone that exist now."""
        name = self.recording.zones[zone]
        found = [machine for machine in self._alive.get(name, ()) if machine.alive]
        self._alive[name] = found
        return found

    def _take(self, zone: int, drop: float) -> None:
        """Announce to as many machines as will be too many at a drop that they end then."""
        at = self._began + drop
        staying = [m for m in self._held(zone) if m.ends_at is None or m.ends_at > at]
        surplus = len(staying) - int(self.recording.capacity.at(drop)[zone])
        if surplus > 0:
            for machine in self._rng.random.sample(staying, surplus):
                self.preempt(machine, max(0.0, at - self._clock.now()))


class Bought:
    """A machine, and from when on it costs money: from the request that was granted."""

    def __init__(self, machine: Machine, offer: Offer, since: float) -> None:
        self.machine = machine
        self.offer = offer
        self.since = since

    def until(self, now: float) -> float:
        """Return when it ended; now, where it has not."""
        return now if self.machine.ended_at is None else self.machine.ended_at


def region_of(zone: str) -> str:
    """Return the region of a zone, where zones are named after their region: us-east-1a is in us-east-1."""
    return zone[:-1] if zone[-1:].isalpha() and zone[-2:-1].isdigit() else zone


def _job_of(request: LaunchRequest) -> str:
    return parts_of(request.node).job
