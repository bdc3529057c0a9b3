"""What a job's money was for. Pure: the planner books, the API shows.

Each node has one purpose at a time. What it cost is booked where that changes, and the open rest belongs to its present
purpose: so the sum over the purposes is what it cost in all, always (P13). Members of a round share the round's times:
of these the job keeps totals, so that a round of a thousand nodes begins or ends by one write.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

HOUR_S = 3600.0
# A job's months beyond these are one row, named EARLIER; so is what was spent before there were bookings.
MAX_MONTHS = 36
EARLIER = ""


class Purpose(StrEnum):
    """What a dollar was spent for."""

    USEFUL = "useful"  # steps were made
    PAUSE = "pause"  # it was in a round that made no steps: parked, re-forming, starting, hanging
    BOOT = "boot"  # it started, and was prepared
    IDLE = "idle"  # it was ready outside a round, as a spare or because too few were; or it was being ended
    LOST = "lost"  # the steps were made again, for no checkpoint had them
    UNKNOWN = "unknown"  # it was in a round, and its program reports no steps; or no daemon watched


class Booking(NamedTuple):
    """What was spent in one month for one purpose."""

    month: str  # 2026-11, in UTC; EARLIER for those that are not kept apart
    purpose: Purpose
    seconds: float
    usd: float


class Spent(NamedTuple):
    """What a user's jobs have spent in one month."""

    owner: str
    month: str
    usd: float


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """For how long a job's rounds made steps, or did not. Totals are up to `since`; `phase` is what lasts since then.

    Of the round whose steps were counted last it has what is needed to count those that are made again.
    """

    useful_s: float = 0.0
    pause_s: float = 0.0
    lost_s: float = 0.0
    unknown_s: float = 0.0
    phase: Purpose = Purpose.UNKNOWN
    since: float = 0.0  # 0 before the first round
    round: int = 0
    first_step: int = 0  # of that round; 0: not reported
    first_step_at: float = 0.0
    step: int = 0  # the last one that was noted
    step_at: float = 0.0

    def until(self, at: float) -> RoundTimes:
        """Return the times with what lasts counted until `at`."""
        passed = max(0.0, at - self.since) if self.since else 0.0
        match self.phase:
            case Purpose.USEFUL:
                return replace(self, useful_s=self.useful_s + passed, since=max(at, self.since))
            case Purpose.PAUSE:
                return replace(self, pause_s=self.pause_s + passed, since=max(at, self.since))
            case _:
                return replace(self, unknown_s=self.unknown_s + passed, since=max(at, self.since))

    def totals(self) -> dict[Purpose, float]:
        """Seconds by purpose, until `since`."""
        return {
            Purpose.USEFUL: self.useful_s,
            Purpose.PAUSE: self.pause_s,
            Purpose.LOST: self.lost_s,
            Purpose.UNKNOWN: self.unknown_s,
        }


@dataclass(frozen=True, slots=True)
class NodeBilling:
    """What one node's cost was for."""

    purpose: Purpose | None = None  # of the time since `booked_to`; None before the first booking, and after its end
    in_round: bool = False  # that time has the purposes of its job's rounds
    booked_to: float = 0.0
    useful_s: float = 0.0  # the round totals at `booked_to`
    pause_s: float = 0.0
    lost_s: float = 0.0
    unknown_s: float = 0.0
    round: int = 0  # the last one that it was in
    left_at: float = 0.0  # when it left that; 0 while it is in it
    bookings: tuple[Booking, ...] = ()

    @property
    def usd(self) -> float:
        """Return what is booked."""
        return sum(each.usd for each in self.bookings)

    def counted(self) -> dict[Purpose, float]:
        """Return the round totals at `booked_to`."""
        return {
            Purpose.USEFUL: self.useful_s,
            Purpose.PAUSE: self.pause_s,
            Purpose.LOST: self.lost_s,
            Purpose.UNKNOWN: self.unknown_s,
        }


NO_ROUNDS = RoundTimes()
NOTHING_BOOKED = NodeBilling()


def booked(billing: NodeBilling, usd: float, at: float, rounds: RoundTimes) -> NodeBilling:
    """Return the billing with all of `usd`, what the node has cost until `at`, booked."""
    at = max(at, billing.booked_to)
    length_s = at - billing.booked_to
    counts = rounds.until(at)
    if billing.in_round:
        billing, shares = _round_shares(billing, counts, length_s)
    else:
        shares = {billing.purpose or Purpose.UNKNOWN: 1.0}
    rest = usd - billing.usd
    if rest < 0:  # a clock was set back, and its cost with it: no purpose may have more than all
        factor = usd / billing.usd if billing.usd > 0 else 0.0
        billing = replace(billing, bookings=tuple(each._replace(usd=each.usd * factor) for each in billing.bookings))
        rest = 0.0
    months = _months(billing.booked_to, at)
    new = [
        Booking(month, purpose, share * part * length_s, share * part * rest)
        for month, part in months
        for purpose, share in shares.items()
    ]
    return replace(
        billing,
        booked_to=at,
        useful_s=counts.useful_s,
        pause_s=counts.pause_s,
        lost_s=counts.lost_s,
        unknown_s=counts.unknown_s,
        bookings=merged((*billing.bookings, *new)),
    )


def _round_shares(
    billing: NodeBilling, counts: RoundTimes, length_s: float
) -> tuple[NodeBilling, dict[Purpose, float]]:
    """Share out the time since `booked_to`, by the growth of the round totals. Useful time that turned out not to be so
    since it was booked moves to what it was."""
    before = billing.counted()
    growth = {purpose: seconds - before[purpose] for purpose, seconds in counts.totals().items()}
    gained = {purpose: seconds for purpose, seconds in growth.items() if seconds > 0}
    total = sum(gained.values())
    if not total:
        return billing, {counts.phase: 1.0}
    shares = {purpose: seconds / total for purpose, seconds in gained.items()}
    too_much_s = max(0.0, min(-growth[Purpose.USEFUL], total - length_s))
    for purpose, share in shares.items():
        billing = moved(billing, too_much_s * share, purpose)
    return billing, shares


def moved(billing: NodeBilling, seconds: float, purpose: Purpose) -> NodeBilling:
    """Return the billing with so many of its last useful seconds booked for another purpose."""
    kept: list[Booking] = []
    for each in sorted(billing.bookings, key=lambda booking: booking.month, reverse=True):
        if each.purpose is not Purpose.USEFUL or seconds <= 0 or each.seconds <= 0:
            kept.append(each)
            continue
        part = min(1.0, seconds / each.seconds)
        seconds -= part * each.seconds
        kept.append(each._replace(seconds=each.seconds * (1 - part), usd=each.usd * (1 - part)))
        kept.append(each._replace(purpose=purpose, seconds=each.seconds * part, usd=each.usd * part))
    return replace(billing, bookings=merged(kept))


def priced(billing: NodeBilling, usd_per_hour: float) -> NodeBilling:
    """Return the billing of a node whose price was not known until now: it is taken for that of the whole time."""
    found = tuple(each._replace(usd=each.seconds / HOUR_S * usd_per_hour) for each in billing.bookings)
    return replace(billing, bookings=found)


def merged(bookings: Iterable[Booking]) -> tuple[Booking, ...]:
    """Return one booking per month and purpose, in order; the oldest months together."""
    sums: dict[tuple[str, Purpose], tuple[float, float]] = {}
    found = [each for each in bookings if each.seconds or each.usd]
    kept = set(sorted({each.month for each in found})[-MAX_MONTHS:])
    for each in found:
        key = (each.month if each.month in kept else EARLIER, each.purpose)
        seconds, usd = sums.get(key, (0.0, 0.0))
        sums[key] = (seconds + each.seconds, usd + each.usd)
    return tuple(Booking(*key, *sums[key]) for key in sorted(sums))


def month_of(at: float) -> str:
    """`2026-11`, in UTC."""
    return time.strftime("%Y-%m", time.gmtime(at))


def month_start(at: float) -> float:
    """Return when the month of this time began, in UTC."""
    now = time.gmtime(at)
    return float(calendar.timegm((now.tm_year, now.tm_mon, 1, 0, 0, 0)))


def _months(begin: float, end: float) -> list[tuple[str, float]]:
    """Return the months from `begin` to `end`, each with its share of that time."""
    if end <= begin or month_of(begin) == month_of(end):
        return [(month_of(end), 1.0)]
    parts: list[tuple[str, float]] = []
    at = end
    while at > begin and len(parts) < MAX_MONTHS:
        start = max(begin, month_start(at))
        if start == at:  # `at` is a month's first moment: what is before it is of the last one
            start = max(begin, month_start(at - 1.0))
        last = len(parts) == MAX_MONTHS - 1
        parts.append((month_of(start), (at - (begin if last else start)) / (end - begin)))
        at = start
    return parts


def by_purpose(bookings: Iterable[Booking]) -> dict[Purpose, float]:
    """US dollars of each purpose, all of them named."""
    sums = dict.fromkeys(Purpose, 0.0)
    for each in bookings:
        sums[each.purpose] += each.usd
    return sums
