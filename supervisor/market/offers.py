"""Offer choice: which of a job's offers to request next, or why none can be."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

from provisioners.base import Market, Offer
from supervisor.market.capacity import CapacityMemory, CapacityRefusal, source_of
from supervisor.market.ends import MIN_LEFT_S, has_time
from supervisor.market.hazard import HOUR_S, HazardRules
from supervisor.market.prices import is_within, named
from supervisor.spec_places import NO_PREFERENCE, Preference

PRICE_REMEDY = "add one to [prices] in spotsupd.toml"


@dataclass(frozen=True, slots=True)
class OffersView:
    """A job's offers as last read."""

    offers: tuple[Offer, ...] = ()  # by market, then cheapest first
    known: bool = False  # whether they were ever read
    asked_at: float = 0.0  # UNIX seconds of the last attempt
    error: str = ""  # why the last attempt failed


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a job's file and its machines require of one more machine."""

    spread: str  # "zone" or "region": how far apart its nodes may be (P8)
    usd_per_hour: float | None  # the limit for all of its machines together (P3)
    needs_price: bool  # it has a limit of money: a machine without a known price would not count (P13)
    placed: tuple[Offer, ...]  # of the nodes that a new one has to be near
    billed: tuple[Offer, ...]  # of all machines that may cost money
    job: str = ""  # its name
    admitted_usd_per_hour: float | None = None  # what the operator's limits leave for all of its machines together
    kinds: tuple[str, ...] = ()  # names of its alternatives: all of its nodes are of one; empty where there is only one
    usd_per_node_hour: float | None = None  # the limit for each of its machines
    needed: int = 0  # fewer nodes are of no use to it

    def in_place(self, offer: Offer) -> bool:
        """True if it is where the job's nodes are."""
        return all(self.place(each) == self.place(offer) for each in self.placed)

    def place(self, offer: Offer) -> str:
        """Return where it is, as far apart as the job's nodes may be, and of which alternative."""
        return place_of(offer, self.spread, self.kinds)

    def within_cap(self, offer: Offer) -> bool:
        """True if it costs no more than each of its machines may. Offers without a known price are another matter."""
        return not is_above_cap(offer, self.usd_per_node_hour)

    def has_room(self, offer: Offer) -> bool:
        """True unless the job has all the machines that there are of it."""
        return not offer.room or sum(source_of(each) == source_of(offer) for each in self.billed) < offer.room

    def affordable(self, offer: Offer) -> bool:
        """True if one more machine at this price stays within the limits. A price that is not known does not."""
        if not self.within_cap(offer):
            return False
        limits = [limit for limit in (self.usd_per_hour, self.admitted_usd_per_hour) if limit is not None]
        if not limits:
            return offer.usd_per_hour is not None or not self.needs_price
        billed = sum(each.usd_per_hour or 0.0 for each in self.billed)
        return offer.usd_per_hour is not None and is_within(billed + offer.usd_per_hour, min(limits))


def place_of(offer: Offer, spread: str, kinds: tuple[str, ...] = ()) -> str:
    """Return its zone, or its region for a job whose nodes share no more than that; with what it is, where the job
    names alternatives: nodes of two are no more one gang than nodes of two zones."""
    where = offer.zone if spread == "zone" else offer.region
    return f"{where} ({kinds[min(offer.alternative, len(kinds) - 1)]})" if kinds else where


def ranked(
    offers: tuple[Offer, ...],
    memory: CapacityMemory,
    rules: HazardRules,
    lost_s: float,
    now: float,
    preference: Preference = NO_PREFERENCE,
) -> tuple[Offer, ...]:
    """Sort by the job's order of markets, its preference, then expected dollars per useful node-hour. `lost_s`: what
    a preemption costs a node."""

    def key(each: Offer) -> tuple[int, int, float]:
        usd = expected_usd(each, memory, rules, lost_s, now, preference)
        return preference.market_rank(each.market), preference.rank(each), usd

    return tuple(sorted(offers, key=key))


def wished(offers: Sequence[Offer], dear: Collection[Market]) -> tuple[Offer, ...]:
    """Return those that are not of a dear market; all where there are no others."""
    return tuple(offer for offer in offers if offer.market not in dear) or tuple(offers)


def expected_usd(
    offer: Offer,
    memory: CapacityMemory,
    rules: HazardRules,
    lost_s: float,
    now: float,
    preference: Preference = NO_PREFERENCE,
) -> float:
    """Dollars per useful node-hour of an offer, of a node of speed 1; without end where no price is known."""
    if offer.usd_per_hour is None:
        return math.inf
    usd = offer.usd_per_hour * (1 + lost_s / HOUR_S * memory.preemptions_per_hour(offer, now, rules))
    return usd / preference.speed(offer)


def is_allowed(offer: Offer, memory: CapacityMemory, constraints: Constraints, now: float, *, spare: bool) -> bool:
    """True if an offer may be requested: not refused, in one place with the job's nodes, and affordable."""
    refused = memory.refusal(offer, now, spare=spare, job=constraints.job, needed=constraints.needed) is not None
    fits = constraints.in_place(offer) and constraints.has_room(offer) and has_time(offer, now)
    return not refused and fits and constraints.affordable(offer)


def obstacle(
    offers: tuple[Offer, ...], memory: CapacityMemory, constraints: Constraints, now: float, *, spare: bool
) -> str:
    """Return why none of these offers may be requested now, in one clause; "" if one may."""
    if any(is_allowed(offer, memory, constraints, now, spare=spare) for offer in offers):
        return ""
    near = [offer for offer in offers if constraints.in_place(offer)]
    if not near:
        return f"no offer in {constraints.place(constraints.placed[0])}, where the job's nodes are"
    if not any(map(constraints.has_room, near)):
        return f"it has all {len(near)} that there are in {constraints.place(near[0])}"
    near = [offer for offer in near if constraints.has_room(offer)]
    if not any(has_time(offer, now) for offer in near):
        return f"what is reserved in {constraints.place(near[0])} ends within {MIN_LEFT_S / 60:g} min"
    near = [offer for offer in near if has_time(offer, now)]
    within = [offer for offer in near if constraints.within_cap(offer)]
    if len(within) < len(near) and all(offer.usd_per_hour is None for offer in within):
        return _above_cap(near, constraints)
    job, needed = constraints.job, constraints.needed
    refusals = [(offer, memory.refusal(offer, now, spare=spare, job=job, needed=needed)) for offer in within]
    open_offers = [offer for offer, refusal in refusals if refusal is None]
    if not open_offers:
        first = refusals[0][1]
        assert first is not None
        return f"{_why(first)}: {first.message}"
    if all(offer.usd_per_hour is None for offer in open_offers):
        return f"no price is known for {named(open_offers)}, and the job has a limit of money: {PRICE_REMEDY}"
    own = replace(constraints, admitted_usd_per_hour=None)
    if any(own.affordable(offer) for offer in open_offers):
        return "the operator's limit of dollars per hour allows no more machines at these prices"
    return f"limits.usd_per_hour (${constraints.usd_per_hour:g}) allows no more machines"


def _why(refusal: CapacityRefusal) -> str:
    """Return what kind of refusal it is."""
    if refusal.denied:
        return "the account may not"
    return "too dear" if refusal.above_cap else "the request is refused" if refusal.job else "no capacity"


def is_above_cap(offer: Offer, cap_usd: float | None) -> bool:
    """True if it is known to cost more than that per hour; None: whatever it costs."""
    return cap_usd is not None and offer.usd_per_hour is not None and not is_within(offer.usd_per_hour, cap_usd)


def _above_cap(offers: Sequence[Offer], constraints: Constraints) -> str:
    cheapest = min(each.usd_per_hour for each in offers if each.usd_per_hour is not None)
    enough = Decimal(str(cheapest)).quantize(Decimal("0.01"), ROUND_CEILING)
    return (
        f"the cheapest costs ${enough} per hour, your limit is ${constraints.usd_per_node_hour:g}; raise it: "
        f"`spotsupctl limits {constraints.job} --usd-per-node-hour {enough}`"
    )
