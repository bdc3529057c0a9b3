"""What a run may cost, before it begins: from known prices, or not at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from provisioners.base import Market, Offer
from tests.contract.metered import EXTRAS_USD_PER_HOUR

# The smallest types with 4 GiB and more that are sold as spot machines: torch does not start with less. Azure's B sizes
# are sold on demand only; EC2's T types bill CPU credits beside their price.
TYPES: Mapping[str, tuple[str, ...]] = {
    "aws": ("c5.large", "c6i.large", "c7i.large", "m5.large", "m6i.large", "m7i.large"),
    "gcp": ("e2-medium", "e2-standard-2", "n2-standard-2"),
    "azure": ("Standard_D2as_v5", "Standard_D2s_v5", "Standard_D2s_v3"),
}
# The probe's machine, and a second one should its token not hold.
PROBE_MACHINES, PROBE_S = 2, 1800.0
# Two nodes, and one that replaces the one that is taken; Azure takes up to 30 minutes to do that.
JOB_MACHINES, JOB_S = 3, 3000.0
# A run that was cut short with its computer: its machines' dead-man switch ends them.
DEAD_MAN_S = 1800.0


class UnknownCostError(Exception):
    """No budget can be kept: one sentence."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most that a run may cost. Rates are in US dollars per hour and machine, with disk and address."""

    instance_type: str
    region: str
    usd_per_hour: float
    bound_by: str  # where the rate is from

    @property
    def probe_usd(self) -> float:
        """The probe's part."""
        return self.usd_per_hour * PROBE_MACHINES * (PROBE_S + DEAD_MAN_S) / 3600

    @property
    def job_usd(self) -> float:
        """The job's part."""
        return self.usd_per_hour * JOB_MACHINES * (JOB_S + DEAD_MAN_S) / 3600

    @property
    def usd(self) -> float:
        """All of it."""
        return self.probe_usd + self.job_usd


def estimate(spot: Iterable[Offer], on_demand: Sequence[Offer], budget_usd: float) -> Estimate:
    """The cheapest type, at the higher of its prices: a spot price can rise while the run goes on, but no cloud charges
    more than its price on demand. Raises UnknownCostError, also where the run could exceed the budget."""
    ceilings: dict[tuple[str, str], float] = {}
    for each in on_demand:
        if each.usd_per_hour is not None:
            place = (each.region, each.instance_type)
            ceilings[place] = max(each.usd_per_hour, ceilings.get(place, 0.0))
    found: list[Estimate] = []
    for offer in spot:
        if offer.market is not Market.SPOT or offer.usd_per_hour is None:
            continue
        ceiling = ceilings.get((offer.region, offer.instance_type))
        if ceiling is None:
            # Nothing says how far it can rise: twice today's price is kept free for it.
            bound, by = (
                2 * offer.usd_per_hour,
                f"twice the spot price of ${offer.usd_per_hour:g} ({offer.price_source})",
            )
        else:
            bound = max(ceiling, offer.usd_per_hour)
            by = f"the price on demand, ${ceiling:g}; spot ${offer.usd_per_hour:g} ({offer.price_source})"
        found.append(Estimate(offer.instance_type, offer.region, bound + EXTRAS_USD_PER_HOUR, by))
    if not found:
        raise UnknownCostError(
            "no price of a small spot machine is known here, so no budget can be kept: name prices in [prices]"
        )
    cheapest = min(found, key=lambda each: each.usd)
    if cheapest.usd > budget_usd:
        raise UnknownCostError(
            f"the run may cost ${cheapest.usd:.2f} ({JOB_MACHINES + PROBE_MACHINES} machines of type "
            f"{cheapest.instance_type} at {cheapest.bound_by}), and the budget is ${budget_usd:.2f}"
        )
    return cheapest
