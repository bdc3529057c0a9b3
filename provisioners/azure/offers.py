"""The offers: the catalog, the sizes of each zone, and their prices now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioners.azure import files, reservations
from provisioners.azure.client import Azure, prices
from provisioners.azure.settings import AzureSettings
from provisioners.base import (
    BY_THE_HOUR,
    DeniedError,
    Market,
    Offer,
    OfferQuery,
    ProvisionerError,
    UnreachableError,
)
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, MachineType
from provisioners.codes import ApiError
from provisioners.kept import Kept
from provisioners.listings import of_those_that_answer
from provisioners.offers import RESERVED, CloudOffers, read_at

LIVE = "Azure retail prices"
SPOT_QUOTA = "lowPriorityCores"
SIZES_KEPT_S = 3600.0
PRICES_KEPT_S = 3600.0
_MAX_PRICE_PAGES = 10
_PRICES_SHARE = 0.5  # of the time that is left


@dataclass(frozen=True, slots=True)
class Place:
    """A size in one zone."""

    size: str
    region: str
    zone: str
    family: str  # of its on-demand quota
    spot: bool  # whether Azure offers it as a spot machine


class Offers(CloudOffers):
    """Azure's offers."""

    cloud = "azure"
    kind = "Azure size"
    other_markets = (Market.RESERVED,)
    absent = (
        "none of {types} is offered to this subscription in {places}: name other regions, zones or types, or ask Azure "
        "to lift the restriction"
    )

    def __init__(
        self, azure: Azure, settings: AzureSettings, catalog: Catalog, now: Callable[[], float] = time.time
    ) -> None:
        """`now`: UNIX seconds."""
        super().__init__(settings.regions, catalog)
        self._azure = azure
        self._settings = settings
        self._now = now
        self._reservations = reservations.Reservations(azure, settings, now)
        self._places: Kept[str, list[Place]] = Kept(SIZES_KEPT_S)
        self._prices: Kept[tuple[str, str], dict[Market, float | None]] = Kept(PRICES_KEPT_S)

    def _complaints(
        self, types: Mapping[str, MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> Mapping[Offer, str]:
        by_size = {name.lower(): each for name, each in types.items()}
        regions = files.regions_of(self._azure, self._settings, query.file_servers, regions, deadline)
        if query.market is Market.RESERVED:
            return dict.fromkeys(self._reserved(by_size, regions, query, deadline), "")
        # A region's sizes are megabytes: one after the other, a few regions would use up the time of a submit.
        answers = of_those_that_answer(regions, lambda region: self._in_region(region, by_size, query, deadline))
        return {
            each: _complaint(each, place, types[each.instance_type], limits)
            for offers, limits in answers
            for each, place in offers.items()
        }

    def _reserved(
        self, types: Mapping[str, MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> list[Offer]:
        """Return what is reserved and fits, whoever uses it now. A reservation has its quota already. Raises
        ProvisionerError, with the reason of each, where none does. `types`: by name in lower case."""
        listed, reasons = self._reservations.named(deadline)
        found: list[Offer] = []
        for each in listed:
            machine = types.get(each.size.lower())
            if why := each.why_unusable(self._now()):
                reasons.append(why)
            elif machine is None:
                reasons.append(f"{each.label} is of {each.size}, which is not asked for")
            elif each.region not in regions or (query.zones and each.zone not in query.zones):
                reasons.append(f"{each.label} is in {each.zone}, which is not asked for")
            else:
                offer = self._offer(each.region, each.zone, machine, query.market, RESERVED)
                found.append(replace(offer, reservation=each.group, room=each.machines, ends_at=each.ends_at))
        if not found:
            raise ProvisionerError(f"nothing that is reserved on azure can be used: {'; '.join(reasons)}")
        return found

    def _in_region(
        self, region: str, types: Mapping[str, MachineType], query: OfferQuery, deadline: Deadline
    ) -> tuple[dict[Offer, Place], Mapping[str, int] | None]:
        spot = query.market is Market.SPOT
        places = [
            each
            for each in self.places(region, deadline)
            if each.size.lower() in types and (each.spot or not spot) and (not query.zones or each.zone in query.zones)
        ]
        live = self._live_prices(region, sorted({each.size for each in places}), query.market, deadline)
        made = {}
        for place in places:
            size = place.size.lower()
            price = live.get(size)
            quota = SPOT_QUOTA if spot else place.family
            made[self._offer(region, place.zone, types[size], query.market, price, quota)] = place
        return made, quotas(self._azure, region, deadline) if made else None

    def places(self, region: str, deadline: Deadline) -> list[Place]:
        """Return every size in the region that the subscription may use, by zone. Raises ProvisionerError.

        Kept for an hour: which sizes exist and may be used changes with Azure's expansions and with support requests.
        """
        return self._places.get(region, self._now(), lambda: self._read_places(region, deadline))

    def _read_places(self, region: str, deadline: Deadline) -> list[Place]:
        listed = self._azure.pages(
            f"sizes in {region}",
            lambda clients, more: clients.compute.resource_skus.list(filter=f"location eq '{region}'", **more),
            deadline,
        )
        return [each for sku in listed for each in places_of(sku, region)]

    def _live_prices(
        self, region: str, sizes: Sequence[str], market: Market, deadline: Deadline
    ) -> dict[str, tuple[float, str]]:
        """Size in lower case -> (US dollars per hour, source). Kept for an hour: Azure changes list prices monthly, and
        spot prices daily. Sizes whose prices cannot be read are left out: offers do not need them.
        """
        now = self._now()
        unknown = [each for each in sizes if self._prices.known((region, each.lower()), now) is None]
        if unknown and self._settings.prices:
            try:
                found = self._read_prices(region, unknown, deadline)
            except UnreachableError:
                found = None
            for size in unknown if found is not None else ():
                both = {kind: (found or {}).get(kind, {}).get(size.lower()) for kind in BY_THE_HOUR}
                self._prices.put((region, size.lower()), now, both)
        kept = {each.lower(): self._prices.known((region, each.lower()), now) for each in sizes}
        return {
            size: (price, read_at(LIVE, each[0]))
            for size, each in kept.items()
            if each is not None and (price := each[1][market]) is not None
        }

    def _read_prices(self, region: str, sizes: Sequence[str], deadline: Deadline) -> dict[Market, dict[str, float]]:
        """Market -> size in lower case -> US dollars per hour."""
        names = " or ".join(f"armSkuName eq '{size}'" for size in sizes)
        params = {
            "$filter": f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' "
            f"and priceType eq 'Consumption' and ({names})"
        }
        within = Deadline(deadline.left_s() * _PRICES_SHARE)
        found: dict[Market, dict[str, float]] = {kind: {} for kind in BY_THE_HOUR}
        for page in range(_MAX_PRICE_PAGES):
            skip = {"$skip": str(page * 1000)} if page else {}
            answer = prices(self._settings, {**params, **skip}, max(within.left_s(), 0.1))
            for kind in BY_THE_HOUR:
                found[kind] |= prices_of(answer["Items"], kind)
            if not answer.get("NextPageLink"):
                break
        return found


def places_of(sku: Mapping[str, Any], region: str) -> list[Place]:
    """Return the places of a SKU in Azure's listing, one for each zone; none where the subscription may not use it."""
    if sku.get("resourceType") != "virtualMachines":
        return []
    here = [each for each in sku.get("locationInfo") or () if each.get("location", "").lower() == region.lower()]
    zones = sorted({zone for each in here for zone in each.get("zones") or ()})
    closed: set[str] = set()
    for each in sku.get("restrictions") or ():
        if each.get("type") == "Location":
            return []
        closed |= set((each.get("restrictionInfo") or {}).get("zones") or ())
    has = {each.get("name"): each.get("value") for each in sku.get("capabilities") or ()}
    spot = str(has.get("LowPriorityCapable", "")).lower() == "true"
    names = [f"{region}-{zone}" for zone in zones if zone not in closed] if zones else [region]
    return [Place(str(sku.get("name")), region, name, str(sku.get("family", "")), spot) for name in names]


def prices_of(items: Iterable[Mapping[str, Any]], market: Market) -> dict[str, float]:
    """Size in lower case -> US dollars per hour, of Linux machines."""
    found: dict[str, float] = {}
    for each in items:
        sku, product = str(each.get("skuName", "")), str(each.get("productName", ""))
        kind = Market.SPOT if sku.endswith(" Spot") else Market.ON_DEMAND
        usable = each.get("type") == "Consumption" and each.get("currencyCode") == "USD"
        hourly = each.get("unitOfMeasure") == "1 Hour"
        if kind is not market or "Low Priority" in sku or "Windows" in product or not usable or not hourly:
            continue
        price = each.get("retailPrice")
        if isinstance(price, int | float) and price > 0:
            found[str(each.get("armSkuName", "")).lower()] = float(price)
    return found


def quotas(azure: Azure, region: str, deadline: Deadline) -> dict[str, int] | None:
    """Quota's name in lower case -> vCPUs; None where it may not be read, which blocks no launch. Raises
    UnreachableError: sizes may be known from before."""
    try:
        listed = azure.pages(
            f"quotas in {region}", lambda clients, more: clients.compute.usage.list(region, **more), deadline
        )
        return {str((each.get("name") or {}).get("value", "")).lower(): int(each["limit"]) for each in listed}
    except (ApiError, DeniedError, KeyError, TypeError, ValueError):
        return None


def _complaint(offer: Offer, place: Place, machine: MachineType, limits: Mapping[str, int] | None) -> str:
    """Return why the subscription's quota does not allow even one such machine; "" where it does, or is not known."""
    names = [SPOT_QUOTA] if offer.market is Market.SPOT else ["cores", place.family]
    for name in names:
        limit = (limits or {}).get(name.lower())
        if limit is not None and machine.vcpus is not None and limit < machine.vcpus:
            return (
                f"the subscription's quota {name} in {offer.region} is {limit} vCPUs, and {machine.name} needs "
                f"{machine.vcpus}: request more under Quotas in the portal"
            )
    return ""
