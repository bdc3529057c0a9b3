"""The offers: the catalog, the types of each zone, and the project's quotas."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from provisioners.base import DeniedError, Market, Offer, OfferQuery, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, MachineType
from provisioners.codes import ApiError
from provisioners.gcp import disks, flex, names, quota
from provisioners.gcp.advice import Obtainability
from provisioners.gcp.client import Gcp
from provisioners.gcp.prices import SpotPrices
from provisioners.gcp.reservations import Reservations
from provisioners.gcp.settings import GcpSettings
from provisioners.offers import RESERVED, CloudOffers

_PAGE = 500
_UNKNOWN = 0.5  # the score of a zone without one

Limits: TypeAlias = Mapping[str, Mapping[str, float]]
"""Region, or "" for the whole project -> metric -> limit. A region that cannot be read is left out."""


class Offers(CloudOffers):
    """Compute Engine's offers: two listings for the project, and the quotas of each region.

    On-demand prices are the catalog's: Google has them in its billing service only. Spot prices are those of the
    history of capacity.
    """

    cloud = "gcp"
    other_markets = (Market.FLEX, Market.RESERVED)

    def __init__(self, gcp: Gcp, settings: GcpSettings, catalog: Catalog, now: Callable[[], float] = time.time) -> None:
        """`now`: UNIX seconds."""
        super().__init__(settings.regions, catalog)
        self._gcp = gcp
        self._now = now
        self._spot = SpotPrices(gcp)
        self._likely = Obtainability(gcp)
        self._settings = settings
        self._reservations = Reservations(gcp, settings, catalog)

    def find(self, query: OfferQuery, deadline: Deadline) -> Sequence[Offer]:
        """As the base says. Of spot machines of one type and price, those come first that Google most likely has."""
        found = super().find(query, deadline)
        if query.market is not Market.SPOT:
            return found
        places = [(each.zone, self._catalog.type_of("gcp", each.instance_type)) for each in found]
        likely = self._likely.of(places, self._now(), deadline)

        def order(offer: Offer) -> tuple[Any, ...]:
            *costs, zone = self._order(offer)
            return *costs, -likely.get((offer.zone, offer.instance_type), _UNKNOWN), zone

        return sorted(found, key=order)

    def _complaints(
        self, types: Mapping[str, MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> Mapping[Offer, str]:
        if query.market is Market.RESERVED:
            return dict.fromkeys(self._reserved(types.values(), regions, query, deadline), "")
        types = flex.sold(types) if query.market is Market.FLEX else types
        places = self.places(types.values(), regions, query, deadline)
        prices: Mapping[tuple[str, str], tuple[float, str]] = {}
        if query.market is Market.SPOT:
            prices = self._spot.of([(names.region_of(zone), each) for zone, each in places], self._now(), deadline)
        found = {self._offer_at(zone, machine, query.market, prices): machine for zone, machine in places}
        limits = self.limits(sorted({each.region for each in found}), deadline) if found else {}
        return {offer: self._complaint(offer, machine, limits) for offer, machine in found.items()}

    def _offer_at(
        self, zone: str, machine: MachineType, market: Market, prices: Mapping[tuple[str, str], tuple[float, str]]
    ) -> Offer:
        region, counts_towards = names.region_of(zone), quota.of_accelerator(machine.accelerator)
        live = prices.get((region, machine.name))
        if market is not Market.FLEX:
            return self._offer(region, zone, machine, market, live, counts_towards)
        live = flex.at_most(self._catalog.price(self.cloud, region, machine.name))
        offer = self._offer(region, zone, machine, market, live, counts_towards)
        return replace(offer, lasts_s=self._settings.flex_days * flex.DAY_S)

    def _reserved(
        self, types: Collection[MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> list[Offer]:
        """Return those within what is reserved. Raises ProvisionerError where there is none."""
        named = self._reservations.named
        if not named:
            raise ProvisionerError(
                'nothing is reserved: name the project\'s reservations in gcp.reservations, as "ZONE/NAME"'
            )
        zones = {each.zone for each in named if self._may_use(each.zone, regions, query)}
        offers, left_out = [], []
        for which, found in self._reservations.fitting(types, zones, self._now(), deadline):
            if isinstance(found, str):
                left_out.append(f"{which} {found}")
                continue
            reserved, machine = found
            offer = self._offer(names.region_of(which.zone), which.zone, machine, query.market, RESERVED)
            offers.append(replace(offer, room=reserved.count, reservation=which.target, ends_at=reserved.ends_at))
        if not offers:
            raise ProvisionerError(f"no machine can be had within gcp.reservations: {'; '.join(left_out)}")
        return offers

    def limits(self, regions: Sequence[str], deadline: Deadline) -> Limits:
        """Return the quotas of these regions and of the project: one that cannot be read blocks no launch."""
        found: dict[str, Mapping[str, float]] = {}
        for region in ("", *regions):
            try:
                if region:
                    answer = self._gcp.ask("regions", "get", deadline, region, kind="compute#region", region=region)
                else:
                    answer = self._gcp.ask("projects", "get", deadline, kind="compute#project")
            except (ApiError, DeniedError, UnreachableError):
                continue
            found[region] = {each.metric: each.limit for each in answer.quotas}
        return found

    def places(
        self, types: Collection[MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> list[tuple[str, MachineType]]:
        """(zone, machine type) of all in these regions, regardless of quota. Raises ProvisionerError."""
        machines = self._zones_of("machineTypes", "machine_types", {_kind(each) for each in types}, deadline)
        wanted = {each.accelerator for each in types if each.machine_type and each.accelerator}
        gpus = self._zones_of("acceleratorTypes", "accelerator_types", wanted, deadline) if wanted else {}
        found = []
        for machine in types:
            zones = machines.get(_kind(machine), set())
            if machine.machine_type and machine.accelerator:
                zones = zones & gpus.get(machine.accelerator, set())
            found += [(zone, machine) for zone in sorted(zones) if self._may_use(zone, regions, query)]
        return found

    def _zones_of(self, service: str, field: str, wanted: set[str], deadline: Deadline) -> dict[str, set[str]]:
        """Name -> the zones that have it."""
        filters = " OR ".join(f'(name = "{name}")' for name in sorted(wanted))
        found: dict[str, set[str]] = {}
        silent: dict[str, str] = {}
        for zone, item in self._gcp.aggregated(service, field, deadline, silent, filter=filters, max_results=_PAGE):
            if item.deprecated.state not in {"OBSOLETE", "DELETED"}:
                found.setdefault(item.name, set()).add(zone)
        if silent and not found:
            raise UnreachableError(next(iter(silent.values())))
        return found

    def _may_use(self, zone: str, regions: Sequence[str], query: OfferQuery) -> bool:
        region = names.region_of(zone)
        reachable = not self._settings.subnetworks or region in self._settings.subnetworks
        return region in regions and reachable and (not query.zones or zone in query.zones)

    def _size(self, offer: Offer) -> int:
        return offer.gpus

    def _order(self, offer: Offer) -> tuple[bool, float, float, int, str, str]:
        """Return the order: by price; where it is not known, by the on-demand price, to which spot prices are roughly
        proportional."""
        on_demand, _ = self._catalog.price("gcp", offer.region, offer.instance_type) or (float("inf"), "")
        price = offer.usd_per_hour
        return price is None, price or 0.0, on_demand, offer.gpus, offer.instance_type, offer.zone

    def _complaint(self, offer: Offer, machine: MachineType, limits: Limits) -> str:
        """Return why the project's quotas do not allow even one such instance; "" where they do, or are not known."""
        here, project = limits.get(offer.region, {}), limits.get("", {})
        found = quota.limit(machine.accelerator, offer.market, here)
        everywhere = project.get(quota.ALL_REGIONS)
        settings = self._settings
        other = quota.other_limit(
            machine.vcpus,
            settings.disk_gb,
            disks.of_type(_kind(machine), settings.disk_type),
            public=settings.public_address,
            limits=here,
            everywhere=project,
        )
        if everywhere is not None and everywhere < machine.gpus:
            metric, limit, what = quota.ALL_REGIONS, f"of the project is {everywhere:g} GPUs", f"{machine.gpus}"
        elif found is not None and found[1] < machine.gpus:
            metric, limit, what = found[0], f"of {offer.region} is {found[1]:g} GPUs", f"{machine.gpus}"
        elif other is not None:
            metric, limit, what = other[0], f"for {offer.region} is {other[1]:g}", other[2]
        else:
            return ""
        return f"the quota {metric} {limit}, and {machine.name} has {what}: request more at IAM & Admin, Quotas"


def _kind(machine: MachineType) -> str:
    return machine.machine_type or machine.name
