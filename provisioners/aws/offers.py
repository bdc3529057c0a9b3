"""The offers: the catalog, the types of each zone, and their prices now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeAlias

from provisioners.aws import efs, reservations
from provisioners.aws.client import Aws
from provisioners.aws.prices import OnDemandPrices
from provisioners.aws.quota import VcpuQuota, quota_of
from provisioners.aws.reservations import Reservation
from provisioners.aws.settings import AwsSettings
from provisioners.base import DeniedError, Market, Offer, OfferQuery, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, MachineType
from provisioners.codes import ApiError
from provisioners.listings import of_those_that_answer
from provisioners.offers import RESERVED, CloudOffers, read_at

_LIVE = "EC2 spot price history"
_CLOCKS_MAY_DIFFER = timedelta(minutes=5)

Limits: TypeAlias = Mapping[tuple[str, str], float | None]
"""(region, quota code) -> vCPUs, None where it cannot be read."""


class Offers(CloudOffers):
    """EC2's offers. `now` returns the time from which on spot prices are read."""

    cloud = "aws"
    kind = "EC2 instance type"
    other_markets = (Market.RESERVED,)

    def __init__(self, aws: Aws, settings: AwsSettings, catalog: Catalog, now: Callable[[], datetime]) -> None:
        super().__init__(settings.regions, catalog)
        self._aws = aws
        self._subnets = settings.subnets
        self._groups = settings.placement_groups
        self._reservations = tuple(dict.fromkeys(settings.reservations))
        self._now = now
        self._on_demand = OnDemandPrices(aws)
        self._file_systems = efs.FileSystems(aws, settings.security_groups)

    def _complaints(
        self, types: Mapping[str, MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> Mapping[Offer, str]:
        regions = efs.check_regions(query.file_servers, regions)
        if query.market is Market.RESERVED:
            return dict.fromkeys(self._reserved(types, regions, query, deadline), "")
        answers = of_those_that_answer(regions, lambda region: self._in_region(region, types, query, deadline))
        found = [each for offers in answers for each in offers]
        limits = self._limits(found, deadline)
        return {each: _complaint(each, types[each.instance_type], limits) for each in found}

    def _in_region(
        self, region: str, types: Mapping[str, MachineType], query: OfferQuery, deadline: Deadline
    ) -> list[Offer]:
        filters = [{"Name": "instance-type", "Values": list(types)}]
        listed = self._aws.pages(
            "ec2",
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
        now = self._now().timestamp()
        mountable = self._file_systems.zones_of(region, query.file_servers, now, deadline)
        if mountable is not None:
            offered, places = places, [place for place in places if place[1] in mountable]
            if offered and not places:
                zones, there = sorted({zone for _, zone in offered}), ", ".join(sorted(mountable)) or "no common zone"
                raise ProvisionerError(
                    f"the job's EFS file systems have mount targets in {there}, and these "
                    f"types are in {', '.join(zones)}: create mount targets there, or ask for other types"
                )
        names = sorted({each for each, _ in places})
        prices: Mapping[tuple[str, str], tuple[float, str]] = {}
        if names and query.market is Market.SPOT:
            prices = self._spot_prices(region, names, deadline)
        elif names:
            listed_prices = self._on_demand.of(region, names, self._now().timestamp(), deadline)
            prices = {(name, zone): listed_prices[name] for name, zone in places if name in listed_prices}
        return [
            self._offer(region, zone, types[name], query.market, prices.get((name, zone)), _quota(name, query.market))
            for name, zone in places
        ]

    def _reserved(
        self, types: Mapping[str, MachineType], regions: Sequence[str], query: OfferQuery, deadline: Deadline
    ) -> list[Offer]:
        """Return an offer for each reservation that fits. Raises ProvisionerError where none does: why, for each.

        No quota is in the way: a Capacity Reservation has taken its part when it was made, and a block takes none.
        """
        if not self._reservations:
            raise ProvisionerError(
                "no machines of EC2's are configured as reserved: name your Capacity Reservations (cr-…) in "
                "aws.reservations, or ask for another market"
            )
        known, silent = reservations.read(self._aws, self._reservations, regions, deadline)
        now = self._now().timestamp()
        mountable = {
            region: self._file_systems.zones_of(region, query.file_servers, now, deadline)
            for region in {each.region for each in known.values()}
        }
        offers, left_out = [], []
        for ec2_id in self._reservations:
            found = known.get(ec2_id)
            if found is None:
                left_out.append(f"{ec2_id} is not in {', '.join(each for each in regions if each not in silent)}")
            elif why := found.why_unusable(now) or self._unfit(found, types, query.zones, mountable[found.region]):
                left_out.append(f"{ec2_id} {why}")
            else:
                machine = types[found.instance_type]
                offer = self._offer(found.region, found.zone, machine, query.market, RESERVED)
                offers.append(replace(offer, room=found.machines, reservation=found.name, ends_at=found.ends_at))
        if not offers and silent:
            raise next(iter(silent.values()))
        if not offers:
            raise ProvisionerError(f"nothing in aws.reservations can be used: {'; '.join(left_out)}")
        return offers

    def _unfit(
        self,
        found: Reservation,
        types: Mapping[str, MachineType],
        zones: Sequence[str],
        mountable: set[str] | None,
    ) -> str:
        """Return why a reservation is none for this job, as the end of a sentence; "" if it is."""
        name, zone = found.instance_type, found.zone
        if name not in types:
            if not self._catalog.type_of(self.cloud, name).gpus:
                return f"is of {name}, which the catalogue does not have: run spotsupd catalogue refresh"
            return f"is of {name}, and the job asks for {', '.join(types)}"
        if zones and zone not in zones:
            return f"is in {zone}, and the job asks for {', '.join(zones)}"
        if not self._may_use(zone, found.region):
            return f"is in {zone}, for which there is no subnet in aws.subnets"
        if mountable is not None and zone not in mountable:
            return f"is in {zone}, where the job's EFS file systems have no mount target"
        if found.group and not found.is_block and self._groups.get(zone) != found.group:
            return f'was made in the placement group {found.group}: set aws.placement_groups.{zone} = "{found.group}"'
        return ""

    def _may_use(self, zone: str, region: str) -> bool:
        """True if nodes may use it: with subnets configured for a region, only their zones."""
        subnets = [each for each in self._subnets if each.startswith(region)]
        return not subnets or zone in subnets

    def _spot_prices(
        self, region: str, types: list[str], deadline: Deadline
    ) -> dict[tuple[str, str], tuple[float, str]]:
        """(type, zone) -> (US dollars per hour, source). EC2 returns the price at the start and each change since."""
        history = self._aws.pages(
            "ec2",
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
        source = read_at(_LIVE, self._now().timestamp())
        return {place: (price, source) for place, (_, price) in latest.items()}

    def _limits(self, offers: Sequence[Offer], deadline: Deadline) -> Limits:
        """Return the quotas that the offers count towards, each read once."""
        wanted = {(each.region, quota_of(each.instance_type, each.market)) for each in offers}
        return {
            (region, quota.code): quota_limit(self._aws, region, quota, deadline) for region, quota in wanted if quota
        }


def _quota(instance_type: str, market: Market) -> str:
    found = quota_of(instance_type, market)
    return found.code if found else ""


def _complaint(offer: Offer, machine: MachineType, limits: Limits) -> str:
    """Return why the account's quota does not allow even one such instance; "" where it does, or is not known."""
    quota = quota_of(offer.instance_type, offer.market)
    limit = limits[offer.region, quota.code] if quota else None
    if quota is None or limit is None or machine.vcpus is None or limit >= machine.vcpus:
        return ""
    return (
        f"the account's quota {quota.name!r} ({quota.code}) in {offer.region} is {limit:g} vCPUs, and "
        f"{machine.name} needs {machine.vcpus}: request more in Service Quotas"
    )


def quota_limit(aws: Aws, region: str, quota: VcpuQuota, deadline: Deadline) -> float | None:
    """Return the account's limit in vCPUs; None where it cannot be read, which blocks no launch."""
    try:
        return permitted_limit(aws, region, quota, deadline)
    except DeniedError:
        return None


def permitted_limit(aws: Aws, region: str, quota: VcpuQuota, deadline: Deadline) -> float | None:
    """Return the same. Raises DeniedError where the permission is missing."""
    try:
        answer = aws.ask(
            "service-quotas", region, "get_service_quota", deadline, ServiceCode="ec2", QuotaCode=quota.code
        )
        return float(answer["Quota"]["Value"])
    except (ApiError, UnreachableError, KeyError):
        return None
