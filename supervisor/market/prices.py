"""Prices that an operator knows better than a cloud says: the table `[prices]` of the configuration. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from provisioners.base import Offer

# `cloud/place/instance type/market`; the place is a zone, a region, or `*`.
PRICE_KEY = r"^[a-z0-9]+/[^/\s]+/[^/\s]+/(spot|on-demand)$"
SOURCE = "[prices]"


def is_within(usd: float, limit_usd: float) -> bool:
    """True if a sum of prices is at most that; sums are rounded in their last digits."""
    return usd <= limit_usd + 1e-9


def priced(offers: Iterable[Offer], prices: Mapping[str, float]) -> tuple[Offer, ...]:
    """Return the offers with these prices where they have one; cheapest first, those without a known price last."""
    if not prices:
        return tuple(offers)
    found = [_priced(offer, prices) for offer in offers]
    return tuple(sorted(found, key=lambda offer: math.inf if offer.usd_per_hour is None else offer.usd_per_hour))


def _priced(offer: Offer, prices: Mapping[str, float]) -> Offer:
    places = (offer.zone, offer.region, "*")
    keys = (f"{offer.cloud}/{place}/{offer.instance_type}/{offer.market}" for place in places)
    price = next((prices[key] for key in keys if key in prices), None)
    return offer if price is None else replace(offer, usd_per_hour=price, price_source=SOURCE)


def named(offers: Iterable[Offer], max_names: int = 3) -> str:
    """Kinds of offers, for people."""
    kinds = list(dict.fromkeys(f"{each.instance_type} in {each.region} ({each.market})" for each in offers))
    more = f" and {len(kinds) - max_names} more" if len(kinds) > max_names else ""
    return ", ".join(kinds[:max_names]) + more
