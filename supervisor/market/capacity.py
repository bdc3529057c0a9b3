"""Capacity memory: what clouds last answered to requests, and for how long that is believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from provisioners.base import NoCapacity, Offer, Quota, Scope

MAX_REFUSALS = 1000


@dataclass(frozen=True, slots=True)
class CapacityRefusal:
    """One "no" of a cloud."""

    offer: Offer  # what was requested
    scope: Scope  # how much of the cloud the answer covers
    until: float  # UNIX seconds; not believed any more after
    message: str
    spare: bool = False  # a spare was requested: the answer holds back nothing but spares

    def covers(self, offer: Offer) -> bool:
        """Whether `offer` lies within what was refused."""
        mine = self.offer
        if mine.cloud != offer.cloud or mine.market != offer.market:
            return False
        match self.scope:
            case Scope.TYPE_IN_ZONE:
                return (mine.zone, mine.instance_type) == (offer.zone, offer.instance_type)
            case Scope.ZONE:
                return mine.zone == offer.zone
            case Scope.REGION:
                return mine.region == offer.region
            case Scope.GLOBAL:
                return True


@dataclass(frozen=True, slots=True)
class CapacityMemory:
    """All refusals that are still believed, and which machine types keep being unhealthy."""

    refusals: tuple[CapacityRefusal, ...] = ()  # oldest first, at most MAX_REFUSALS
    # (cloud, instance type) -> how many of its machines in a row were unhealthy
    unhealthy_streaks: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))

    def refusal(self, offer: Offer, now: float, *, spare: bool) -> CapacityRefusal | None:
        """The refusal that speaks against requesting an offer now, for a spare or for a node that trains."""
        believed = (r for r in self.refusals if r.until > now and (spare or not r.spare))
        return next((r for r in believed if r.covers(offer)), None)

    def remember(self, offer: Offer, outcome: NoCapacity | Quota, now: float, *, spare: bool) -> CapacityMemory:
        """With one more refusal, and without those that have expired."""
        kept = tuple(r for r in self.refusals if r.until > now)[-MAX_REFUSALS + 1 :]
        refusal = CapacityRefusal(offer, outcome.scope, now + outcome.memory_s, outcome.message, spare)
        return replace(self, refusals=(*kept, refusal))

    def unhealthy_streak(self, offer: Offer) -> int:
        """How many machines in a row of the offer's cloud and type were unhealthy."""
        return self.unhealthy_streaks.get(_kind(offer), 0)

    def with_unhealthy_streak(self, offer: Offer, count: int) -> CapacityMemory:
        """With so many unhealthy machines in a row of the offer's cloud and type; 0 once one of them works."""
        others = {kind: streak for kind, streak in self.unhealthy_streaks.items() if kind != _kind(offer)}
        changed = {_kind(offer): count} if count else {}
        return replace(self, unhealthy_streaks=MappingProxyType(others | changed))


def _kind(offer: Offer) -> tuple[str, str]:
    return offer.cloud, offer.instance_type
