"""How a rented cloud's offers are found: the catalogue's types, the configured regions, the account's quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from provisioners.base import Market, Offer, OfferQuery, ProvisionerError
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, MachineType


def read_at(source: str, at: float) -> str:
    """Return the source of a price, and when it was read (UNIX seconds)."""
    return f"{source}, read {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


RESERVED = (0.0, "reserved: billed whether it is used or not")
"""What a machine within a reservation adds to the bill, in US dollars per hour, and why."""


class CloudOffers:
    """One cloud's offers. Each cloud says where its types are, and what its quotas forbid."""

    cloud: ClassVar[str]
    kind: ClassVar[str] = "machine type"
    other_markets: ClassVar[tuple[Market, ...]] = ()  # beside those on which each type is sold or not
    absent: ClassVar[str] = "none of {types} is offered in {places}: name other regions, zones or types"

    def __init__(self, regions: Sequence[str], catalog: Catalog) -> None:
        self._regions = regions
        self._catalog = catalog

    def find(self, query: OfferQuery, deadline: Deadline) -> Sequence[Offer]:
        """Cheapest first, those without a price last. Raises ProvisionerError where there are none."""
        types = {each.name: each for each in self._catalog.select(self.cloud, query)}
        if not types:
            raise ProvisionerError(f"no {self.kind} has {query.gpus_per_node} or more {query.gpu or 'GPUs'}")
        sold = {name: each for name, each in types.items() if query.market in {*each.markets, *self.other_markets}}
        if not sold:
            raise ProvisionerError(
                f"{self.cloud} does not sell {', '.join(types)} as {query.market} machines: ask for another market, or "
                "other types"
            )
        types = sold
        regions = [each for each in self._regions if not query.regions or each in query.regions]
        if not regions:
            raise ProvisionerError(
                f"none of {', '.join(query.regions)} is one of {self.cloud}.regions ({', '.join(self._regions)})"
            )
        complaints = self._complaints(types, regions, query, deadline)
        if not complaints:
            zones = f" in zones {', '.join(query.zones)}" if query.zones else ""
            raise ProvisionerError(self.absent.format(types=", ".join(types), places=", ".join(regions) + zones))
        if all(complaints.values()):
            raise ProvisionerError(complaints[min(complaints, key=self._size)])
        return sorted((offer for offer, complaint in complaints.items() if not complaint), key=self._order)

    def _complaints(
        self, types: Mapping[str, MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> Mapping[Offer, str]:
        """Return every offer, and why the account's quota does not allow even one such machine; "" where it does, or is
        not known. `types`: by name."""
        raise NotImplementedError

    def _offer(
        self,
        region: str,
        zone: str,
        machine: MachineType,
        market: Market,
        live: tuple[float, str] | None = None,
        quota: str = "",
    ) -> Offer:
        """`live`: the price now, in US dollars per hour, and its source. Without it, the catalogue has on-demand
        prices. `quota`: as of Offer."""
        on_demand = self._catalog.price(self.cloud, region, machine.name) if market is Market.ON_DEMAND else None
        price, source = live or on_demand or (None, "")
        return Offer(
            cloud=self.cloud,
            region=region,
            zone=zone,
            instance_type=machine.name,
            market=market,
            usd_per_hour=price,
            gpu=machine.gpu,
            gpus=machine.gpus,
            price_source=source,
            quota=quota,
        )

    def _size(self, offer: Offer) -> int:
        return self._catalog.type_of(self.cloud, offer.instance_type).vcpus or 0

    def _order(self, offer: Offer) -> tuple[Any, ...]:
        return offer.usd_per_hour is None, offer.usd_per_hour or 0.0, offer.instance_type, offer.zone
