"""The offers: the catalog, the types of each zone, and their prices now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from provisioners.aws.client import Aws
from provisioners.aws.quota import VcpuQuota, quota_of
from provisioners.aws.settings import AwsSettings
from provisioners.base import DeniedError, Market, Offer, OfferQuery, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, MachineType
from provisioners.codes import ApiError

_LIVE = "EC2 spot price history, live"
_CLOCKS_MAY_DIFFER = timedelta(minutes=5)

Limits: TypeAlias = Mapping[tuple[str, str], float | None]
"""(region, quota code) -> vCPUs, None where it cannot be read."""


class Offers:
    """EC2's offers. `now` returns the time from which on spot prices are read."""

    def __init__(self, aws: Aws, settings: AwsSettings, catalog: Catalog, now: Callable[[], datetime]) -> None:
        self._aws = aws
        self._settings = settings
        self._catalog = catalog
        self._now = now

    def find(self, query: OfferQuery, deadline: Deadline) -> Sequence[Offer]:
        """Cheapest first, those without a price last. Raises ProvisionerError where there are none."""
        types = {each.name: each for each in self._catalog.select("aws", query)}
        if not types:
            raise ProvisionerError(f"no EC2 instance type has {query.gpus_per_node} or more {query.gpu or 'GPUs'}")
        regions = [each for each in self._settings.regions if not query.regions or each in query.regions]
        if not regions:
            raise ProvisionerError(
                f"none of {', '.join(query.regions)} is one of aws.regions ({', '.join(self._settings.regions)})"
            )
        found = [each for region in regions for each in self._in_region(region, types, query, deadline)]
        if not found:
            raise ProvisionerError(_absent(types, regions, query))
        limits = self._limits(found, deadline)
        complaints = {each: _complaint(each, types[each.instance_type], limits) for each in found}
        if all(complaints.values()):
            least = min(complaints, key=lambda each: types[each.instance_type].vcpus or 0)
            raise ProvisionerError(complaints[least])
        return sorted((each for each in found if not complaints[each]), key=_order)

    def _in_region(
        self, region: str, types: dict[str, MachineType], query: OfferQuery, deadline: Deadline
    ) -> list[Offer]:
        filters = [{"Name": "instance-type", "Values": list(types)}]
        listed = self._pages(
            region,
            "describe_instance_type_offerings",
            deadline,
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=filters,
        )
        places = [
            (each["InstanceType"], each["Location"]) for each in listed if self._may_use(each["Location"], region)
        ]
        places = [place for place in places if not query.zones or place[1] in query.zones]
        spot = query.market is Market.SPOT
        prices = self._spot_prices(region, sorted({each for each, _ in places}), deadline) if spot and places else {}
        return [self._offer(region, place, types[place[0]], query.market, prices) for place in places]

    def _may_use(self, zone: str, region: str) -> bool:
        """With subnets configured for a region, only their zones."""
        subnets = [each for each in self._settings.subnets if each.startswith(region)]
        return not subnets or zone in subnets

    def _offer(
        self,
        region: str,
        place: tuple[str, str],
        machine: MachineType,
        market: Market,
        prices: dict[tuple[str, str], float],
    ) -> Offer:
        price, source = prices.get(place), _LIVE
        if market is Market.ON_DEMAND:
            price, source = self._catalog.price("aws", region, machine.name) or (None, "")
        return Offer(
            cloud="aws",
            region=region,
            zone=place[1],
            instance_type=machine.name,
            market=market,
            usd_per_hour=price,
            gpu=machine.gpu,
            gpus=machine.gpus,
            price_source=source if price is not None else "",
        )

    def _spot_prices(self, region: str, types: list[str], deadline: Deadline) -> dict[tuple[str, str], float]:
        """(type, zone) -> US dollars per hour. EC2 returns the price at the start and each change since."""
        history = self._pages(
            region,
            "describe_spot_price_history",
            deadline,
            "SpotPriceHistory",
            InstanceTypes=types,
            ProductDescriptions=["Linux/UNIX"],
            StartTime=self._now() - _CLOCKS_MAY_DIFFER,
        )
        latest: dict[tuple[str, str], tuple[datetime, float]] = {}
        for each in history:
            place = (each["InstanceType"], each["AvailabilityZone"])
            if place not in latest or each["Timestamp"] > latest[place][0]:
                latest[place] = (each["Timestamp"], float(each["SpotPrice"]))
        return {place: price for place, (_, price) in latest.items()}

    def _limits(self, offers: Sequence[Offer], deadline: Deadline) -> Limits:
        """The quotas that the offers count towards, each read once."""
        wanted = {(each.region, quota_of(each.instance_type, each.market)) for each in offers}
        return {
            (region, quota.code): quota_limit(self._aws, region, quota, deadline) for region, quota in wanted if quota
        }

    def _pages(self, region: str, call: str, deadline: Deadline, key: str, **parameters: Any) -> list[dict[str, Any]]:
        try:
            return list(self._aws.pages("ec2", region, call, deadline, key, **parameters))
        except ApiError as error:
            raise ProvisionerError(str(error)) from error


def _complaint(offer: Offer, machine: MachineType, limits: Limits) -> str:
    """Why the account's quota does not allow even one such instance; "" where it does, or is not known."""
    quota = quota_of(offer.instance_type, offer.market)
    limit = limits[offer.region, quota.code] if quota else None
    if quota is None or limit is None or machine.vcpus is None or limit >= machine.vcpus:
        return ""
    return (
        f"the account's quota {quota.name!r} ({quota.code}) in {offer.region} is {limit:g} vCPUs, and "
        f"{machine.name} needs {machine.vcpus}: request more in Service Quotas"
    )


def quota_limit(aws: Aws, region: str, quota: VcpuQuota, deadline: Deadline) -> float | None:
    """The account's limit in vCPUs; None where it cannot be read, which blocks no launch."""
    try:
        answer = aws.ask(
            "service-quotas", region, "get_service_quota", deadline, ServiceCode="ec2", QuotaCode=quota.code
        )
        return float(answer["Quota"]["Value"])
    except (ApiError, DeniedError, UnreachableError, KeyError):
        return None


def _order(offer: Offer) -> tuple[bool, float, str, str]:
    return offer.usd_per_hour is None, offer.usd_per_hour or 0.0, offer.instance_type, offer.zone


def _absent(types: dict[str, MachineType], regions: list[str], query: OfferQuery) -> str:
    names = ", ".join(types)
    zones = f" in zones {', '.join(query.zones)}" if query.zones else ""
    return f"none of {names} is offered in {', '.join(regions)}{zones}: name other regions, zones or types"
