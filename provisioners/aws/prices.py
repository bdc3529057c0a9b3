"""On-demand prices of every region, from AWS's price list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provisioners.aws.client import Aws
from provisioners.base import ProvisionerError
from provisioners.calls import Deadline
from provisioners.kept import Kept
from provisioners.offers import read_at

KEPT_S = 86400.0  # AWS changes list prices a few times a year
SOURCE = "AWS price list"
# The price list's service is in a few regions only, for the prices of all ("Price List Query API endpoints").
_REGION = "us-east-1"
_SHARE = 0.3  # of the time that is left: offers do not need prices
_MAX_VALUE = 900  # characters of one filter's value; the API allows 1,024
_COMMON = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


class OnDemandPrices:
    """Reads them once a day. Thread-safe."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._kept: Kept[tuple[str, str], float | None] = Kept(KEPT_S)

    def of(self, region: str, types: Sequence[str], now: float, deadline: Deadline) -> Mapping[str, tuple[float, str]]:
        """Type -> (US dollars per hour, source). Those that cannot be read are left out. `now`: UNIX seconds."""
        unknown = [each for each in types if self._kept.known((region, each), now) is None]
        within = Deadline(deadline.left_s() * _SHARE)
        for some in _chunks(unknown):
            try:
                found = self._read(region, some, within)
            except ProvisionerError:
                break
            for name in some:
                self._kept.put((region, name), now, found.get(name))
        known = {name: self._kept.known((region, name), now) for name in types}
        return {
            name: (each[1], read_at(SOURCE, each[0]))
            for name, each in known.items()
            if each is not None and each[1] is not None
        }

    def _read(self, region: str, types: Sequence[str], deadline: Deadline) -> dict[str, float]:
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in _COMMON.items()]
        filters.append({"Type": "TERM_MATCH", "Field": "regionCode", "Value": region})
        filters.append({"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(types)})
        listed = self._aws.pages(
            "pricing",
            _REGION,
            "get_products",
            deadline,
            "PriceList",
            ServiceCode="AmazonEC2",
            FormatVersion="aws_v1",
            Filters=filters,
        )
        return prices_of(listed)


def prices_of(listed: Iterable[Any]) -> dict[str, float]:
    """Instance type -> US dollars per hour; of the entries that cannot be read, none. Pure."""
    found: dict[str, float] = {}
    for each in listed:
        try:
            product = json.loads(each) if isinstance(each, str) else each
            name = product["product"]["attributes"]["instanceType"]
            for term in product["terms"]["OnDemand"].values():
                for dimension in term["priceDimensions"].values():
                    price = float(dimension["pricePerUnit"]["USD"])
                    if dimension["unit"] in {"Hrs", "Hours"} and 0 < price < 1e5:
                        found[str(name)] = price
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def _chunks(types: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = []
    for name in types:
        if not found or len(",".join([*found[-1], name])) > _MAX_VALUE:
            found.append([])
        found[-1].append(name)
    return found
