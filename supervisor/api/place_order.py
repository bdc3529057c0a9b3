"""In which order a job that prefers the cheapest goes to its places: by what their clouds ask now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from provisioners.base import Market, Offer, ProvisionerError
from supervisor.market.capacity import CapacityMemory
from supervisor.market.hazard import HazardRules
from supervisor.market.offers import expected_usd, is_above_cap, ranked
from supervisor.spec import JobSpec
from supervisor.spec_places import Placement


@dataclass(frozen=True, slots=True)
class PricedPlace:
    """A place, and what its cloud offers there."""

    place: Placement
    offers: tuple[Offer, ...] | None = None  # None: it did not say
    usd_per_hour: float | None = None  # of a node of speed 1; None: no price is known, or nothing that fits
    spot: bool = False
    error: ProvisionerError | TimeoutError | None = None  # why it did not

    def answer(self) -> tuple[Offer, ...]:
        """Return its offers. Raises what asking for them raised."""
        if self.error is not None:
            raise self.error
        return self.offers or ()

    def __str__(self) -> str:
        if self.offers is None:
            return f"{self.place} (its offers are not known)"
        if self.usd_per_hour is None:
            return f"{self.place} ({'no price is known' if self.offers else 'nothing that fits'})"
        return f"{self.place} (from {self.usd_per_hour:.4g} USD per node and hour{'' if self.spot else ', on demand'})"


def priced(spec: JobSpec, place: Placement, offers: tuple[Offer, ...]) -> PricedPlace:
    """Return what a node costs a job in one of its places, by the offers there."""
    cap, memory, rules = spec.limits.usd_per_node_hour, CapacityMemory(), HazardRules()
    known = tuple(each for each in offers if each.usd_per_hour is not None and not is_above_cap(each, cap))
    if not known:
        return PricedPlace(place, offers)
    first = ranked(known, memory, rules, 0.0, 0.0, spec.preference)[0]
    usd = expected_usd(first, memory, rules, 0.0, 0.0, spec.preference)
    return PricedPlace(place, offers, usd, first.market is Market.SPOT)


def by_price(places: Sequence[PricedPlace]) -> tuple[PricedPlace, ...]:
    """Spot before on-demand, as no place is asked for that while another one may have spot; then the cheapest first.
    Those without a price come last, of them those that have nothing; equal ones stay in their order."""

    def key(each: PricedPlace) -> tuple[bool, float, bool]:
        usd = math.inf if each.usd_per_hour is None else each.usd_per_hour
        return not each.spot, usd, each.offers == ()

    return tuple(sorted(places, key=key))


def prefers_the_cheapest(spec: JobSpec) -> bool:
    """True if prices decide in which of several places the job begins."""
    return bool(spec.places) and spec.prefer == "cheapest"


def places_by_price(spec: JobSpec, offers: Callable[[JobSpec], tuple[Offer, ...]]) -> tuple[PricedPlace, ...]:
    """Return all places of a job, the first one first. `offers`: of the place that the spec is in; raises
    ProvisionerError, TimeoutError: what that cloud asks is unknown then, and the job goes there last."""

    def look(place: Placement) -> PricedPlace:
        try:
            return priced(spec, place, offers(spec.at(place)))
        except (ProvisionerError, TimeoutError) as error:
            return PricedPlace(place, error=error)

    with ThreadPoolExecutor(len(spec.places)) as pool:  # a cloud that hangs costs the others no time
        return by_price(list(pool.map(look, spec.places)))


def with_places(spec: JobSpec, places: Sequence[PricedPlace]) -> JobSpec:
    """Return the job, in the first of its places, and with all of them in this order. As it is where there is none."""
    if not places:
        return spec
    ordered = tuple(each.place for each in places)
    return spec.model_copy(update={"places": ordered, "placement": ordered[0]})
