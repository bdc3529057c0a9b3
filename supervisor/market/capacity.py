"""Capacity memory: what clouds last answered to requests, and for how long that is believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from provisioners.base import Denied, Market, NoCapacity, Offer, Quota, Scope
from supervisor.market.hazard import Exposure, HazardRules, per_hour

MAX_REFUSALS = 1000
# A machine ended before it was of use: its pool is not asked for so long, twice that after each further one, at most …;
# a pool without another one for a while is trusted a step more.
LATE_S = 30.0
MAX_LATE_S = 600.0
LATE_DECAY_S = 900.0
# A pool that had too few machines for a job is not asked for so long, times the square of how many it had: each bills a
# minute at least, so that few are asked for often, and many seldom. At least … for each that the job needs; at most …
TOO_FEW_S = 15.0
MIN_TOO_FEW_S = 30.0
MAX_TOO_FEW_S = 1800.0
MAX_LATE_POOLS = 1000
MAX_EXPOSURES = 1000
# For so long after a refusal is not believed any more, its pool is asked for one machine, and for more once it grants.
WARY_S = 3600.0

# (cloud, zone, instance type, market)
Pool: TypeAlias = tuple[str, str, str, Market]
# What offers have in common that one refusal covers, after its number in `_reaches`.
JobsPool: TypeAlias = tuple[str, str, str, str, Market]  # of this job
Key = TypeVar("Key")
Known = TypeVar("Known")
Reach: TypeAlias = tuple[int | str, ...]
_SCOPES = tuple(Scope)
_WARY_REACHES = (0, 1)  # numbers of the reaches that make wary: one type in a zone, and a zone


@dataclass(frozen=True, slots=True)
class CapacityRefusal:
    """One "no" of a cloud."""

    offer: Offer  # what was requested, without its price and its GPUs
    scope: Scope  # how much of the cloud the answer covers
    until: float  # UNIX seconds; not believed any more after
    message: str
    spare: bool = False  # a spare was requested: the answer holds back nothing but spares
    job: str = ""  # the answer is about this job's request, and holds back no other
    above_cap: bool = False  # that pays too little for now; else it can never work
    denied: bool = False  # the account may not: that is no matter of capacity

    @property
    def reach(self) -> Reach:
        """Return what was refused."""
        unnamed = self.scope is Scope.QUOTA and not self.offer.quota
        return _reaches(self.offer)[-1 if unnamed else _SCOPES.index(self.scope)]


@dataclass(frozen=True, slots=True)
class LateRefusal:
    """What a pool has granted and not kept: machines that ended before they were bootstrapped."""

    count: int  # in a row; those that were requested together are one
    at: float  # of the last one
    until: float  # not asked before
    message: str
    spare: bool  # as of CapacityRefusal


@dataclass(frozen=True, slots=True)
class TooFew:
    """What a pool had for a job that needed more."""

    machines: int
    until: float  # UNIX seconds; not asked before


@dataclass(frozen=True)
class CapacityMemory:
    """All refusals that are still believed, and which machine types keep being unhealthy."""

    refusals: tuple[CapacityRefusal, ...] = ()  # oldest first, at most MAX_REFUSALS, one of each `_Subject`
    # (cloud, instance type, owner of the job) -> how many of its machines in a row were unhealthy
    unhealthy_streaks: Mapping[tuple[str, str, str], int] = field(default_factory=lambda: MappingProxyType({}))

    # Pool -> its last late refusal; oldest first, at most MAX_LATE_POOLS
    late: Mapping[Pool, LateRefusal] = field(default_factory=lambda: MappingProxyType({}))
    # A job, and a pool that had too few machines for it -> how many; oldest first, at most MAX_LATE_POOLS
    too_few: Mapping[JobsPool, TooFew] = field(default_factory=lambda: MappingProxyType({}))
    # Spot pool -> what was counted of its preemptions; oldest first, at most MAX_EXPOSURES
    exposures: Mapping[Pool, Exposure] = field(default_factory=lambda: MappingProxyType({}))

    def refusal(
        self, offer: Offer, now: float, *, spare: bool, job: str = "", needed: int = 0
    ) -> CapacityRefusal | None:
        """Return the refusal that speaks against requesting an offer now for this job, for a spare or a node that
        trains. `needed`: fewer nodes are of no use to the job."""
        if self.refusals:
            for subject in product(_reaches(offer), (False, True) if spare else (False,), ("", job)):
                found = self._by_subject.get(subject)
                if found is not None and found.until > now:
                    return found
        return self._late_refusal(offer, now, spare=spare) or self._too_few(offer, now, job, needed)

    @cached_property
    def _by_subject(self) -> Mapping[_Subject, CapacityRefusal]:
        """Cached: a tick may look up each offer of each job that lacks nodes."""
        return {_subject(refusal): refusal for refusal in self.refusals}

    def _late_refusal(self, offer: Offer, now: float, *, spare: bool) -> CapacityRefusal | None:
        late = self.late.get(pool_of(offer))
        if late is None or late.until <= now or (late.spare and not spare):
            return None
        return CapacityRefusal(offer, Scope.TYPE_IN_ZONE, late.until, late.message, late.spare)

    def _too_few(self, offer: Offer, now: float, job: str, needed: int) -> CapacityRefusal | None:
        few = self.too_few.get((job, *pool_of(offer)))
        if few is None or few.until <= now or few.machines >= needed:
            return None
        said = f"{offer.zone} had {few.machines} of {needed} {offer.instance_type}"
        return CapacityRefusal(offer, Scope.TYPE_IN_ZONE, few.until, said)

    def with_late_refusal(self, offer: Offer, requested_at: float, now: float, *, spare: bool) -> CapacityMemory:
        """After a machine that was requested then has ended, or proved to be of no use, before it was bootstrapped."""
        before = self.late.get(pool_of(offer))
        if before is not None and requested_at <= before.at:
            return self  # requested together with the last one
        said = f"{offer.instance_type} in {offer.zone} ended before it was ready"
        return replace(self, late=_with_one_more(self.late, pool_of(offer), now, said, spare=spare))

    def with_too_few(self, job: str, offer: Offer, machines: int, needed: int, now: float) -> CapacityMemory:
        """After a pool has granted a job this many machines, and refused the rest of those that it needs."""
        key = (job, *pool_of(offer))
        wait_s = min(MAX_TOO_FEW_S, max(MIN_TOO_FEW_S * needed, TOO_FEW_S * machines**2))
        newest = [*_without(self.too_few, key).items(), (key, TooFew(machines, now + wait_s))]
        return replace(self, too_few=MappingProxyType(dict(newest[-MAX_LATE_POOLS:])))

    def had_too_few(self, job: str, offer: Offer, now: float) -> bool:
        """True if the pool had too few machines for the job, and was to be asked again not long ago."""
        found = self.too_few.get((job, *pool_of(offer)))
        return found is not None and now < found.until + LATE_DECAY_S

    def with_enough(self, job: str, offer: Offer) -> CapacityMemory:
        """Note that the pool has what the job needs to train."""
        key = (job, *pool_of(offer))
        return replace(self, too_few=_without(self.too_few, key)) if key in self.too_few else self

    def with_a_machine_that_works(self, offer: Offer) -> CapacityMemory:
        """Note that one of the offer's machines was bootstrapped: its type is healthy, and its pool keeps what it
        grants."""
        return replace(self.without_unhealthy(offer), late=_without(self.late, pool_of(offer)))

    def can_never_work(self, offers: Iterable[Offer], now: float, job: str) -> bool:
        """True if the job's requests for all of these offers were refused for good."""
        fatal = {
            refusal.reach
            for refusal in self.refusals
            if refusal.until > now and refusal.job == job and not refusal.above_cap
        }
        return all(not fatal.isdisjoint(_reaches(offer)) for offer in offers)

    def remember(
        self, offer: Offer, outcome: NoCapacity | Quota | Denied, now: float, *, spare: bool, job: str = ""
    ) -> CapacityMemory:
        """Return the memory with one more refusal in place of an older one of the same, and without those that have
        expired."""
        above_cap = isinstance(outcome, NoCapacity) and outcome.above_cap
        until, place = now + outcome.memory_s, _place(offer)
        about = outcome.message, spare, job, above_cap, isinstance(outcome, Denied)
        refusal = CapacityRefusal(place, outcome.scope, until, *about)
        before = self._by_subject.get(_subject(refusal))
        if before is not None:
            refusal = replace(refusal, until=max(refusal.until, before.until))
        kept = tuple(r for r in self.refusals if is_remembered(r, now) and r is not before)[-MAX_REFUSALS + 1 :]
        return replace(self, refusals=(*kept, refusal))

    def is_wary(self, offer: Offer, now: float, lately_s: float | None = None) -> bool:
        """True if the offer's pool last refused, and that was believed until so long ago (else WARY_S): it is asked for
        one machine first."""
        lately_s = WARY_S if lately_s is None else lately_s
        found = (self._by_subject.get((reach, False, "")) for reach in _wary_reaches(offer))
        return any(refusal is not None and refusal.until + lately_s > now for refusal in found)

    def with_a_grant(self, offer: Offer, now: float) -> CapacityMemory:
        """Note that the offer's pool granted a machine: what was refused there says nothing once it is not believed any
        more. What is still believed may be of another kind, such as a block of unhealthy machines, or newer."""
        subjects = {(reach, False, "") for reach in _wary_reaches(offer)}
        if subjects.isdisjoint(self._by_subject):
            return self
        kept = tuple(r for r in self.refusals if r.until > now or _subject(r) not in subjects)
        return replace(self, refusals=kept)

    def with_an_end(
        self, offer: Offer, hours: float, now: float, rules: HazardRules, *, preempted: bool
    ) -> CapacityMemory:
        """After a spot machine has ended, or will be taken, which ran for so long."""
        if offer.market is not Market.SPOT:
            return self
        pool = pool_of(offer)
        before = self.exposures.get(pool, Exposure(now))
        after = before.plus(max(0.0, hours), int(preempted), now, rules)
        newest = [*_without(self.exposures, pool).items(), (pool, after)]
        return replace(self, exposures=MappingProxyType(dict(newest[-MAX_EXPOSURES:])))

    def preemptions_per_hour(self, offer: Offer, now: float, rules: HazardRules) -> float:
        """Return how many preemptions per node-hour to expect of the offer."""
        if offer.market is not Market.SPOT:
            return 0.0
        return per_hour(self.exposures.get(pool_of(offer)), now, rules)

    def unhealthy_streak(self, offer: Offer) -> Mapping[str, int]:
        """Return how many machines in a row of the offer's cloud and type were unhealthy, by the owner of their job."""
        return {owner: count for (*kind, owner), count in self.unhealthy_streaks.items() if tuple(kind) == _kind(offer)}

    def with_unhealthy(self, offer: Offer, owner: str) -> CapacityMemory:
        """Return the memory with one more unhealthy machine in a row of the offer's cloud and type."""
        key = (*_kind(offer), owner)
        streaks = {**self.unhealthy_streaks, key: self.unhealthy_streaks.get(key, 0) + 1}
        return replace(self, unhealthy_streaks=MappingProxyType(streaks))

    def without_unhealthy(self, offer: Offer) -> CapacityMemory:
        """Return the memory once a machine of the offer's cloud and type works, or is not asked for."""
        others = {key: count for key, count in self.unhealthy_streaks.items() if key[:2] != _kind(offer)}
        return replace(self, unhealthy_streaks=MappingProxyType(others))


def is_remembered(refusal: CapacityRefusal, now: float) -> bool:
    """True if it is believed, or makes wary of its pool."""
    makes_wary = refusal.reach[0] in _WARY_REACHES and not (refusal.spare or refusal.job)
    return refusal.until + (WARY_S if makes_wary else 0.0) > now


# Its reach, whether for spares only, and the only job that it concerns, or "".
_Subject: TypeAlias = tuple[Reach, bool, str]


def _subject(refusal: CapacityRefusal) -> _Subject:
    return refusal.reach, refusal.spare, refusal.job


def _reaches(offer: Offer) -> tuple[Reach, ...]:
    """Return what a refusal that covers this offer may reach: one for each scope, in their order, and its type in the
    region, where the name of its quota is not known."""
    cloud, market, region, zone, kind = offer.cloud, offer.market, offer.region, offer.zone, offer.instance_type
    one = (zone, kind, offer.reservation) if offer.reservation else (zone, kind)
    places = (one, (zone,), (region, offer.quota), (region,), (), (region, kind))
    return tuple((number, cloud, market, *place) for number, place in enumerate(places))


def _place(offer: Offer) -> Offer:
    """Return what of an offer says how far a refusal reaches."""
    where = offer.cloud, offer.region, offer.zone, offer.instance_type, offer.market
    return Offer(*where, None, quota=offer.quota, reservation=offer.reservation)


def _wary_reaches(offer: Offer) -> tuple[Reach, ...]:
    return tuple(_reaches(offer)[number] for number in _WARY_REACHES)


def _with_one_more(
    late: Mapping[Pool, LateRefusal], pool: Pool, now: float, said: str, *, spare: bool
) -> Mapping[Pool, LateRefusal]:
    before = late.get(pool)
    decayed = before.count - int((now - before.at) // LATE_DECAY_S) if before is not None else 0
    count = 1 + max(0, decayed)
    wait_s = min(MAX_LATE_S, LATE_S * 2.0 ** min(count - 1, 30))
    message = f"{said}, {count} times in a row"
    newest = [*_without(late, pool).items(), (pool, LateRefusal(count, now, now + wait_s, message, spare))]
    return MappingProxyType(dict(newest[-MAX_LATE_POOLS:]))


def _without(known: Mapping[Key, Known], key: Key) -> Mapping[Key, Known]:
    return MappingProxyType({pool: each for pool, each in known.items() if pool != key})


def pool_of(offer: Offer) -> Pool:
    """Return the pool that an offer is of."""
    return offer.cloud, offer.zone, offer.instance_type, offer.market


def source_of(offer: Offer) -> tuple[str, ...]:
    """Return what machines a cloud takes for an offer: those of its pool, or of one reservation in it."""
    return *pool_of(offer), offer.reservation


def _kind(offer: Offer) -> tuple[str, str]:
    return offer.cloud, offer.instance_type
