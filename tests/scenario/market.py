"""The spot markets of the day: pools of three clouds whose capacity and prices change, by a seed or by a recording."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotsup_simulator.clock import NEVER, VirtualClock
from spotsup_simulator.cloud import SimCloud
from spotsup_simulator.faults import FaultRng
from spotsup_simulator.hooks import Hooks
from spotsup_simulator.machine import Machine
from spotsup_simulator.replay.cloud import region_of
from spotsup_simulator.replay.recording import Recording

from provisioners.base import (
    Coverage,
    Finding,
    Instance,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Owner,
    Scope,
)

CLOUDS = ("aws", "gcp", "azure")
# How long before a preemption each cloud announces it, and how long its machines take to boot.
NOTICE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}
BOOT_S = {"aws": 75.0, "gcp": 45.0, "azure": 110.0}
REFUSED_S = 180.0
STEP_S = 300.0  # capacity changes at such times


@dataclass(frozen=True, slots=True)
class Type:
    """An instance type. Prices are made up, of the usual size; they change with time, on-demand ones do not."""

    cloud: str
    name: str
    gpu: str
    spot_usd_per_h: float
    on_demand_usd_per_h: float


TYPES = (
    Type("aws", "p3.2xlarge", "V100", 0.92, 3.06),
    Type("azure", "Standard_NC6s_v3", "V100", 0.98, 3.06),
    Type("gcp", "a2-highgpu-1g", "A100", 1.32, 3.67),
    Type("azure", "Standard_NC24ads_A100_v4", "A100", 1.41, 3.67),
    Type("aws", "g6.xlarge", "L4", 0.29, 0.81),
    Type("gcp", "g2-standard-4", "L4", 0.27, 0.71),
)


@dataclass(frozen=True, slots=True)
class Series:
    """A value for each step of the day."""

    values: tuple[float, ...]

    def at(self, second: float) -> float:
        return self.values[min(len(self.values) - 1, max(0, int(second // STEP_S)))]


@dataclass(frozen=True, slots=True)
class Pool:
    """One instance type in one zone."""

    kind: Type
    zone: str
    capacity: Series
    prices: Series

    @property
    def key(self) -> tuple[str, str]:
        return self.zone, self.kind.name


def pools_of(seed: int, hours: float, recording: Recording | None) -> tuple[Pool, ...]:
    """All pools of a day. A recording takes the place of AWS's zones with V100: its zones, and their machines."""
    zones = {
        "aws": ("us-east-1a", "us-east-1b", "us-west-2c"),
        "gcp": ("us-central1-a", "us-central1-b"),
        "azure": ("eastus-1", "westeurope-2"),
    }
    found = []
    steps = int(hours * 3600 / STEP_S) + 1
    for kind in TYPES:
        recorded = recording if recording is not None and kind.name == "p3.2xlarge" else None
        for number, zone in enumerate(recorded.zones if recorded else zones[kind.cloud]):
            rng = random.Random(f"{seed} {kind.name} {zone}")
            if recorded:
                capacity = [recorded.capacity.at(step * STEP_S % recorded.end_s)[number] for step in range(steps)]
            else:
                capacity = _capacity(rng, steps, 16 if kind.gpu != "L4" else 12)
            found.append(Pool(kind, zone, Series(tuple(capacity)), Series(tuple(_prices(rng, steps, kind)))))
    return tuple(found)


def _capacity(rng: random.Random, steps: int, most: int) -> list[float]:
    """Machines that a zone would grant: it is full for an hour or some, then short for a while, seldom empty."""
    values: list[float] = []
    while len(values) < steps:
        values += [float(rng.randint(most * 2 // 3, most))] * rng.randint(6, 30)
        values += [float(rng.choice((0, 0, 2, 4, 6, 8)))] * rng.randint(1, 8)
    start = rng.randrange(6)
    return (values[start:] + values[:start])[:steps]


def _prices(rng: random.Random, steps: int, kind: Type) -> list[float]:
    """Dollars per hour, which change once an hour by some percent."""
    values, usd, hour = [], kind.spot_usd_per_h * rng.uniform(0.95, 1.1), int(3600 / STEP_S)
    for step in range(steps):
        if step % hour == 0 and step:
            usd = min(kind.on_demand_usd_per_h * 0.8, max(kind.spot_usd_per_h * 0.8, usd * rng.uniform(0.94, 1.06)))
        values.append(round(usd, 4))
    return values


class DayCloud(SimCloud):
    """The machines of all clouds. A zone that has fewer than are held takes as many, and announces it before."""

    name = CLOUDS[0]

    def __init__(self, clock: VirtualClock, rng: FaultRng, hooks: Hooks, pools: Sequence[Pool]) -> None:
        super().__init__(clock, rng, hooks)
        self.pools = {pool.key: pool for pool in pools}
        self.no_capacity_s = REFUSED_S
        # Zones in which nothing is granted until then, whatever their series says: an outage.
        self.closed_until: dict[str, float] = {}
        self.refusals = self.preemptions = 0
        # Every machine that was ever granted: (machine, pool, market, since).
        self.bought: list[tuple[Machine, Pool, Market, float]] = []
        self._terms: dict[str, tuple[Pool, Market, float]] = {}  # the same, by the machine's id
        self._began = clock.now()
        self._steps_taken = 0

    @property
    def _second(self) -> float:
        return self._clock.now() - self._began

    # -- the provider's API --------------------------------------------------------------------------------

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """Of all clouds; OneCloud keeps its own."""
        self._maybe_unreachable()
        return [
            Offer(
                pool.kind.cloud,
                region_of(pool.zone),
                pool.zone,
                pool.kind.name,
                query.market,
                self.price(pool, query.market),
                gpu=pool.kind.gpu,
                gpus=1,
                quota=f"{pool.kind.cloud} {pool.kind.name} {query.market}",
            )
            for pool in self.pools.values()
            if query.gpu in {"", pool.kind.gpu}
            and (not query.instance_types or pool.kind.name in query.instance_types)
            and (not query.zones or pool.zone in query.zones)
            and (not query.regions or region_of(pool.zone) in query.regions)
        ]

    def price(self, pool: Pool, market: Market) -> float:
        """Dollars per hour now."""
        return pool.kind.on_demand_usd_per_h if market is Market.ON_DEMAND else pool.prices.at(self._second)

    def cost_usd(self, machine: Machine) -> float:
        pool, market, since = self._terms[machine.instance.id]
        until = self._clock.now() if machine.ended_at is None else machine.ended_at
        if market is Market.ON_DEMAND:
            return pool.kind.on_demand_usd_per_h * (until - since) / 3600.0
        usd, at = 0.0, since
        while at < until:
            step_s = min(STEP_S, until - at)
            usd += pool.prices.at(at - self._began) * step_s / 3600.0
            at += step_s
        return usd

    def _refusal(self, request: LaunchRequest) -> LaunchOutcome | None:
        pool = self.pools[request.offer.zone, request.offer.instance_type]
        closed = self._clock.now() < self.closed_until.get(pool.zone, 0.0)
        if closed or (request.offer.market is Market.SPOT and len(self._held(pool)) >= pool.capacity.at(self._second)):
            self.refusals += 1
            return NoCapacity(
                Scope.TYPE_IN_ZONE, self.no_capacity_s, f"{pool.zone} has no capacity of {pool.kind.name}"
            )
        return None

    def _create(self, request: LaunchRequest) -> Machine:
        machine = super()._create(request)
        pool = self.pools[request.offer.zone, request.offer.instance_type]
        now = self._clock.now()
        machine.runs_at = now + BOOT_S[pool.kind.cloud] * self._rng.uniform(0.8, 1.3)
        machine.instance = replace(machine.instance, region=region_of(pool.zone))
        machine.history = [(now, machine.instance)]
        self.bought.append((machine, pool, request.offer.market, now))
        self._terms[machine.instance.id] = (pool, request.offer.market, now)
        return machine

    # -- time ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Announce what the next step of the day takes, then as any cloud."""
        while self._second >= self._steps_taken * STEP_S:
            self._steps_taken += 1
            for pool in self.pools.values():
                self._take(pool)
        super().step()

    def next_at(self) -> float:
        return min(super().next_at(), self._began + self._steps_taken * STEP_S, NEVER)

    def _held(self, pool: Pool) -> list[Machine]:
        return [
            machine
            for machine, where, market, _ in self.bought
            if where is pool and market is Market.SPOT and machine.alive and machine.ends_at is None
        ]

    def _take(self, pool: Pool) -> None:
        held = self._held(pool)
        surplus = len(held) - int(pool.capacity.at(self._second))
        for machine in self._rng.random.sample(held, max(0, surplus)):
            self.preemptions += 1
            self.preempt(machine, NOTICE_S[pool.kind.cloud])

    def lose_zone(self, zone: str, until: float) -> int:
        """All machines of a zone end at once, without a notice; it grants none until then. Returns how many."""
        self.closed_until[zone] = until
        lost = [each for each in self.machines.values() if each.alive and each.instance.zone == zone]
        for machine in lost:
            self.vanish(machine)
        return len(lost)


class OneCloud:
    """One of the clouds, as a daemon's provisioner."""

    def __init__(self, name: str, everything: DayCloud) -> None:
        self._name = name
        self._all = everything
        self._zones = frozenset(pool.zone for pool in everything.pools.values() if pool.kind.cloud == name)

    @property
    def name(self) -> str:
        return self._name

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        found = [each for each in self._all.offers(query, timeout_s) if each.cloud == self._name]
        return sorted(found, key=lambda offer: offer.usd_per_hour or 0.0)

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        return self._all.launch(request, timeout_s)

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        return self._all.find(owner, token, timeout_s)

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        return [each for each in self._all.instances(owner, timeout_s) if each.zone in self._zones]

    def coverage(self, timeout_s: float) -> Coverage:
        return self._all.coverage(timeout_s)

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        self._all.terminate(instance_id, timeout_s)

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        return ()

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        self._all.remove(leftover, timeout_s)

    def console(self, instance_id: str, timeout_s: float) -> str:
        return self._all.console(instance_id, timeout_s)

    def check(self, timeout_s: float) -> Sequence[Finding]:
        return ()
