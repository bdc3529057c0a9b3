"""What a job's cloud would be asked for, and at what price, before money is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from provisioners.base import (
    BY_THE_HOUR,
    DeniedError,
    Offer,
    OfferQuery,
    Provisioner,
    ProvisionerError,
    UnreachableError,
)
from supervisor.api.place_order import PricedPlace, places_by_price, prefers_the_cheapest, with_places
from supervisor.api.rows import OfferRow, QuoteRow
from supervisor.errors import CommandRefusedError
from supervisor.market.admission import Amount, QueueRules, why_never
from supervisor.market.capacity import CapacityMemory
from supervisor.market.hazard import HazardRules
from supervisor.market.offers import PRICE_REMEDY, is_above_cap, ranked
from supervisor.market.prices import is_within, named
from supervisor.planner.sentences import node_count
from supervisor.runtime.background import in_background
from supervisor.runtime.offers import offers_in_order
from supervisor.spec import JobSpec
from supervisor.spec_limits import LIMITS_OF_MONEY
from supervisor.spec_places import Resources

log = structlog.get_logger("spotsupd")

TIMEOUT_S = 15.0
# The provider's own limit is shorter than ours, because its error says more than "no answer".
PROVIDER_S = 13.0
MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Quote:
    """What the cloud offers for a job."""

    nodes: int  # asked for, spares included
    offers: tuple[Offer, ...]  # those that fit, in the order in which they are asked for
    known: bool  # False where the cloud did not answer
    warnings: tuple[str, ...]  # sentences for the user; none of them stops a job
    cap_usd: float | None = None  # what the job pays for a node and hour at most: dearer offers, the last ones, wait
    places: tuple[PricedPlace, ...] = ()  # of a job that prefers the cheapest of several, in that order

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars per hour of all nodes at the first offer's price; None if that is not known."""
        if not self.offers or self.offers[0].usd_per_hour is None:
            return None
        return self.nodes * self.offers[0].usd_per_hour


class Quotes:
    """Asks this daemon's clouds for offers. `timeout_s` bounds every answer, whatever a cloud does."""

    def __init__(
        self,
        provisioners: Mapping[str, Provisioner],
        timeout_s: float = TIMEOUT_S,
        provider_s: float = PROVIDER_S,
        prices: Mapping[str, float] = MappingProxyType({}),
        *,
        budgeted: bool = False,
    ) -> None:
        """`budgeted`: a budget of the installation needs prices, whatever a job's own limits are (P13)."""
        self._budgeted = budgeted
        self._prices = prices
        self._provisioners = provisioners
        self._timeout_s = timeout_s
        self._provider_s = provider_s

    def quote(self, spec: JobSpec) -> Quote:
        """Return the offers for a job. Raises CommandRefusedError if the cloud answers that it has none, or if none has
        the known price that a limit of money needs. A cloud that does not answer refuses nothing: the job waits.

        Of a job with several places they are of the first one; where it prefers the cheapest, of that."""
        places = places_by_price(spec, self._of_place) if prefers_the_cheapest(spec) else ()
        spec = with_places(spec, places)
        cloud = spec.placement.cloud
        nodes = spec.nodes.desired + spec.nodes.spares
        try:
            offers = places[0].answer() if places else self._of_place(spec)
        except (UnreachableError, DeniedError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._timeout_s:g} s"
            text = f"{cloud} did not list its offers ({why}): the job waits until it does"
            return Quote(nodes, (), known=False, warnings=(text,), places=places)
        except ProvisionerError as error:
            raise CommandRefusedError(f"{cloud} cannot give what {spec.name} asks for: {error}") from error
        if not offers:
            raise CommandRefusedError(
                f"{cloud} cannot give what {spec.name} asks for: no machine {_request(spec)}; ask "
                "for other `resources`, or "
                "for another `placement`"
            )
        if spec.kinds:
            offers = ranked(offers, CapacityMemory(), HazardRules(), 0.0, 0.0, spec.preference)
        _check_prices(spec, offers, budgeted=self._budgeted)
        offers = tuple(sorted(offers, key=lambda each: is_above_cap(each, spec.limits.usd_per_node_hour)))
        needs_prices = spec.limits.of_money or self._budgeted
        prices = (_unpriced(offers, needs_prices=needs_prices), _warning(spec, offers), _above_cap(spec, offers))
        warnings = tuple(filter(None, (*prices, _without_some(spec, offers), _elsewhere(spec, places))))
        cap = spec.limits.usd_per_node_hour
        return Quote(nodes, offers, known=True, warnings=warnings, cap_usd=cap, places=places)

    def _of_place(self, spec: JobSpec) -> tuple[Offer, ...]:
        return self.offers(spec.placement.cloud, spec.offer_queries)

    def offers(self, cloud: str, queries: Sequence[OfferQuery]) -> tuple[Offer, ...]:
        """Return a cloud's offers, with the prices of `[prices]`. Raises ProvisionerError, TimeoutError."""
        provisioner = self._provisioners[cloud]
        asked = in_background(
            lambda: offers_in_order(provisioner, queries, self._provider_s, self._prices), f"quote-{cloud}"
        )
        try:
            return asked.result(self._timeout_s)
        except (ProvisionerError, TimeoutError):
            raise
        except Exception as error:
            log.exception("offers cannot be read", cloud=cloud)
            raise UnreachableError(f"a fault of spotsup: {error!r}") from error


def _request(spec: JobSpec) -> str:
    """Return what the job asks for, as the end of a sentence."""
    placement = spec.placement
    parts = [
        " or ".join(filter(None, (_machine(each) for each in spec.resources))),
        f"in {', '.join(placement.zones or placement.regions)}" if placement.zones or placement.regions else "",
        f"({spec.market})",
    ]
    return " ".join(part for part in parts if part)


def endless_cost(spec: JobSpec, quote: Quote) -> str:
    """Say that no limit of the job ends what it costs, else "", as where that is nothing."""
    limits = spec.limits
    if quote.usd_per_hour == 0.0 or any(each is not None for each in (limits.hours, limits.usd, limits.usd_per_month)):
        return ""
    cost = f"${quote.usd_per_hour:.2f} per hour" if quote.usd_per_hour else "money"
    return f"{spec.name} has no limit of money, and costs {cost} until it ends: `--usd 100` pauses it there"


def _elsewhere(spec: JobSpec, priced: Sequence[PricedPlace]) -> str:
    """Return where it goes if this place has no machine for it."""
    here, *others = priced or spec.all_places
    if not others:
        return ""
    after = ", then to ".join(map(str, others))
    return f"these are offers of {here}; where it has no machine for the job, it goes on to {after}"


def _machine(resources: Resources) -> str:
    kinds = " or ".join(resources.instance_types)
    gpus = f"with {resources.gpus_per_node} × {resources.gpu or 'GPU'}" if resources.gpus_per_node else ""
    return " ".join(filter(None, (f"of type {kinds}" if kinds else "", gpus)))


def _check_prices(spec: JobSpec, offers: tuple[Offer, ...], *, budgeted: bool) -> None:
    """Raise CommandRefusedError for a limit or a budget that cannot be kept (P13)."""
    if any(each.usd_per_hour is not None for each in offers):
        return
    if spec.limits.of_money:
        limit = next(name for name in LIMITS_OF_MONEY if getattr(spec.limits, name) is not None)
        raise CommandRefusedError(
            f"`limits.{limit}` cannot be kept: no price is known for {named(offers)}; {PRICE_REMEDY}, or leave the "
            "limit out"
        )
    if budgeted:
        raise CommandRefusedError(
            f"the budgets of this installation cannot be kept: no price is known for {named(offers)}; {PRICE_REMEDY}"
        )


def check_admissible(spec: JobSpec, owner: str, queue: QueueRules) -> None:
    """Raise CommandRefusedError for a job that the operator's limits would never let start."""
    if spec.priority > queue.max_priority:
        raise CommandRefusedError(
            f"job {spec.name} is refused: its priority is {spec.priority}, and queue.max_priority of spotsupd.toml is "
            f"{queue.max_priority}; lower it"
        )
    check_room(spec, owner, spec.nodes.min, queue)


def check_room(spec: JobSpec, owner: str, nodes: int, queue: QueueRules) -> None:
    """Raise CommandRefusedError for a job that needs more nodes than the operator's limits can ever leave for it."""
    fewest = min(each.gpus_per_node for each in spec.resources)
    if why := why_never(owner, spec.name, Amount(1, fewest).times(nodes), queue):
        raise CommandRefusedError(f"job {spec.name} is refused: {why}")


def check_prices_known(quote: Quote, queue: QueueRules) -> None:
    """Raise CommandRefusedError where the operator's limit of dollars could not be kept (P13)."""
    if queue.of_money and quote.offers and all(each.usd_per_hour is None for each in quote.offers):
        raise CommandRefusedError(
            f"the operator's limit of dollars per hour cannot be kept: no price is known for {named(quote.offers)}; "
            f"{PRICE_REMEDY}"
        )


def _unpriced(offers: tuple[Offer, ...], *, needs_prices: bool) -> str:
    """Say which offers have no known price, else ""."""
    unpriced = [each for each in offers if each.usd_per_hour is None]
    if not unpriced or (offers[0] not in unpriced and not needs_prices):
        return ""
    use = "they are not asked for, because of a limit of money" if needs_prices else "they cost unseen"
    return f"no price is known for {named(unpriced)}: {use}; {PRICE_REMEDY}"


def _without_some(spec: JobSpec, offers: tuple[Offer, ...]) -> str:
    """Say of which markets there is nothing, which have to be set up or exist for some machines only, else ""."""
    found = {each.market for each in offers}
    asked = [each.market for each in spec.offer_queries if each.market not in {*BY_THE_HOUR, *found}]
    if not asked:
        return ""
    which = " and ".join(dict.fromkeys(asked))
    return f"{spec.placement.cloud} has no {which} machines for it: `spotsupctl plan --market {asked[0]}` says why"


def _warning(spec: JobSpec, offers: tuple[Offer, ...]) -> str:
    """Say if the job's own `usd_per_hour` keeps it from running, else ""."""
    limit = spec.limits.usd_per_hour
    if limit is None:
        return ""
    prices = [each.usd_per_hour for each in offers if each.usd_per_hour is not None]
    minimum_usd = min(prices) * spec.nodes.min
    if is_within(minimum_usd, limit):
        return ""
    return (
        f"`limits.usd_per_hour` is {limit:g}, and the job's minimum ({node_count(spec.nodes.min)}) costs "
        f"{minimum_usd:.2f} per hour now: the job waits for lower prices"
    )


def _above_cap(spec: JobSpec, offers: tuple[Offer, ...]) -> str:
    """Say how many offers the job's `usd_per_node_hour` leaves out, else ""."""
    cap = spec.limits.usd_per_node_hour
    above = [each for each in offers if is_above_cap(each, cap)]
    if not above:
        return ""
    if len(above) == len(offers):
        cheapest = min(each.usd_per_hour for each in above if each.usd_per_hour is not None)
        return (
            f"`limits.usd_per_node_hour` is {cap:g}, and the cheapest node costs {cheapest:.4g} per hour now: the job "
            "waits for lower prices"
        )
    return f"`limits.usd_per_node_hour` is {cap:g}: {len(above)} of {len(offers)} offers cost more, and wait"


def quote_row(quote: Quote) -> QuoteRow:
    """Return a quote as JSON; money in US dollars."""
    rows: list[OfferRow] = [
        {
            "cloud": each.cloud,
            "region": each.region,
            "zone": each.zone,
            "instance_type": each.instance_type,
            "gpu": each.gpu or None,
            "gpus": each.gpus,
            "market": each.market,
            "usd_per_hour": each.usd_per_hour,
            "price_source": each.price_source or None,
            "above_limit": is_above_cap(each, quote.cap_usd),
        }
        for each in quote.offers[:MAX_SHOWN]
    ]
    return {
        "offers_known": quote.known,
        "nodes": quote.nodes,
        "usd_per_hour": quote.usd_per_hour,
        "offers": rows,
        "offers_total": len(quote.offers),
        "warnings": list(quote.warnings),
    }
