"""Ends that are known before: of what is reserved, and of machines that a cloud lends for a limited time."""

from __future__ import annotations

from provisioners.base import Offer

# A machine is replaced so long before its end, or in the last quarter of its time: it goes once its replacement is
# ready.
NOTICE_S = 900.0
# With less left, a machine would hardly have trained when its replacement is asked for.
MIN_LEFT_S = 2 * NOTICE_S


def known_end(offer: Offer, launched_at: float) -> tuple[float, str] | None:
    """Return when its cloud ends a machine, in UNIX seconds, and why; None where that is not known before."""
    ends = []
    if offer.ends_at:
        ends.append((offer.ends_at, f"the end of {offer.reservation.rpartition('/')[2] or 'what is reserved'}"))
    if offer.lasts_s and launched_at:
        ends.append((launched_at + offer.lasts_s, f"{offer.market} machines last {offer.lasts_s / 86400:g} d"))
    return min(ends, default=None)


def is_near(offer: Offer, end: float, now: float) -> bool:
    """True if a machine is to be replaced, as its end is near. One that is there after its end has another, or the
    clock is wrong: replacing all such machines at once would help nobody."""
    return 0 < end - now < (min(NOTICE_S, offer.lasts_s / 4) if offer.lasts_s else NOTICE_S)


def has_time(offer: Offer, now: float) -> bool:
    """True if a machine of it that is asked for now would train long enough to be worth it."""
    return not offer.ends_at or offer.ends_at - now >= MIN_LEFT_S
