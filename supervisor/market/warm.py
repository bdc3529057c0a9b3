"""Warm machines: those of ended jobs, which wait for the next job that they fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from provisioners.base import Offer
from supervisor.market.capacity import pool_of
from supervisor.market.prices import is_within
from supervisor.spec import JobSpec


@dataclass(frozen=True, slots=True)
class WarmRules:
    """How long machines wait, and how many."""

    keep_s: float = 0.0  # 0: none waits
    max_nodes: int | None = None  # None: any number
    usd_per_hour: float | None = None  # of all that wait together; None: any amount
    other_users: bool = False  # a job may get a machine of another user's job


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job takes: whose it is, its file, and the offers that it may ask for."""

    owner: str
    spec: JobSpec
    offers: tuple[Offer, ...]


def has_room(rules: WarmRules, offer: Offer, waiting: Iterable[Offer]) -> bool:
    """True if one more machine may wait beside those that do."""
    others = tuple(waiting)
    if rules.max_nodes is not None and len(others) >= rules.max_nodes:
        return False
    if rules.usd_per_hour is None:
        return True
    if offer.usd_per_hour is None:
        return False
    usd = sum(each.usd_per_hour or 0.0 for each in others) + offer.usd_per_hour
    return is_within(usd, rules.usd_per_hour)


def fits(rules: WarmRules, owner: str, spec: JobSpec, offer: Offer, wish: Wish) -> bool:
    """True if a machine that was launched as `offer`, and was `owner`'s with this job file, is one that a job asks for:
    the same kind in a place that it may use, the same disk, the same container image or none."""
    same_user = owner == wish.owner or rules.other_users
    return same_user and offered_as(offer, wish.offers) is not None and is_alike(spec, wish.spec)


def offered_as(offer: Offer, offers: Iterable[Offer]) -> Offer | None:
    """Return the offer of the same pool among those of a job; which of its alternatives it is of is the job's own
    matter."""
    return next((each for each in offers if pool_of(each) == pool_of(offer)), None)


def is_alike(spec: JobSpec, other: JobSpec) -> bool:
    """True if machines that were made for one job have what another asks for, as far as its offers do not say it."""
    return spec.disk_gb == other.disk_gb and spec.image == other.image
