"""A recording of a market from what a cluster's own jobs held of its pools and were refused there (`pool_days`). Pure.

What was held is no measure of a pool: a zone that granted 2 of 2 has 2 at least. So a zone grants here what was held of
it at the time, and never more; what nobody asked for is not there. Times in which nothing is known of any of the pools
are left out, and what was before and after is played without a break.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

from spotsup_simulator.replay.recording import Recording, Series, made
from supervisor.errors import CommandRefusedError
from supervisor.pool_days import DAY_MINUTES, SLOT_MINUTES, PoolDay, PoolName, Row, totals

NAME = "what this cluster's jobs held"
SLOT_S = 60.0 * SLOT_MINUTES
DAY_SLOTS = DAY_MINUTES // SLOT_MINUTES
# After a refusal, a pool of which nothing is held counts as known, with nothing to give, for so many slots (15 min).
REFUSED_SLOTS = 3
# A recording of less says nothing.
MIN_HOURS = 1.0


@dataclass(frozen=True, slots=True)
class Basis:
    """What a recording was made from."""

    hours: float  # of which something is known
    stretches: int  # in so many parts
    first_day: str
    last_day: str
    pools: int
    granted: int  # requests
    refused: int  # requests
    most: Mapping[str, int]  # by zone: how many machines were ever held at once


def recording_of(days: Sequence[tuple[str, PoolDay]], listed_usd: Mapping[str, float]) -> tuple[Recording, Basis]:
    """Return the recording of days (as 2026-01-31) of pools. `listed_usd`: by zone, what a machine costs now, for those
    whose price was never recorded. Raises CommandRefusedError where too little is known."""
    by_pool: dict[PoolName, list[tuple[int, PoolDay]]] = {}
    for day, record in days:
        by_pool.setdefault(record.pool, []).append((date.fromisoformat(day).toordinal() * DAY_SLOTS, record))
    floors: dict[str, dict[int, int]] = {}
    for pool, records in by_pool.items():
        zone = floors.setdefault(pool.zone, {})
        for slot, held in _floors(records).items():
            zone[slot] = zone.get(slot, 0) + held  # a job's nodes may be of several types
    zones = sorted(zone for zone, known in floors.items() if known)
    slots = sorted({slot for zone in zones for slot in floors[zone]})
    basis = _basis(days, by_pool, floors, slots)
    if basis.hours < MIN_HOURS:
        raise CommandRefusedError(_too_little(basis))
    seconds = tuple(number * SLOT_S for number in range(len(slots)))
    capacity = Series(seconds, tuple(tuple(float(floors[zone].get(slot, 0)) for zone in zones) for slot in slots))
    prices = [_prices(by_pool, zone, slots, listed_usd.get(zone)) for zone in zones]
    known = [column for column in prices if column is not None]
    rows = tuple(zip(*known, strict=True)) if len(known) == len(prices) else None
    return made(NAME, zones, capacity, Series(seconds, rows) if rows else None, len(slots) * SLOT_S), basis


def _floors(records: Sequence[tuple[int, PoolDay]]) -> dict[int, int]:
    """Return by slot: how many machines there were at least. Slots of which nothing is known are missing."""
    found: dict[int, int] = {}
    for first, day in records:
        ends = [row.minute // SLOT_MINUTES for row in day.rows[1:]]
        for row, next_row in zip(day.rows, [*ends, None], strict=False):
            begin = row.minute // SLOT_MINUTES
            end = min(day.until // SLOT_MINUTES + 1, DAY_SLOTS) if next_row is None else next_row
            for slot in range(begin, _known_until(row, begin, end, last=next_row is None)):
                found[first + slot] = row.held or 0
    return found


def _known_until(row: Row, begin: int, end: int, *, last: bool) -> int:
    """Return the slot up to which a row says how much there was at least."""
    if row.held:
        return end
    if row.held is None or not (row.granted or row.refused):
        return begin
    known = begin + (REFUSED_SLOTS if row.refused else 1)
    return min(known, DAY_SLOTS if last else end)


def _basis(
    days: Sequence[tuple[str, PoolDay]],
    by_pool: Mapping[PoolName, object],
    floors: Mapping[str, Mapping[int, int]],
    slots: Sequence[int],
) -> Basis:
    granted, refused = totals(record for _, record in days)
    names = [date.fromordinal(slot // DAY_SLOTS).isoformat() for slot in (*slots[:1], *slots[-1:])]
    return Basis(
        hours=len(slots) * SLOT_S / 3600,
        stretches=sum(later - earlier > 1 for earlier, later in pairwise(slots)) + bool(slots),
        first_day=names[0] if names else "",
        last_day=names[-1] if names else "",
        pools=len(by_pool),
        granted=granted,
        refused=refused,
        most={zone: max(known.values()) for zone, known in sorted(floors.items()) if known},
    )


def _too_little(basis: Basis) -> str:
    if not basis.pools:
        return (
            "nothing is recorded of any pool that this job may use: it takes jobs of this cluster that ask for such "
            "machines. `spotsupd simulate` plays other recordings"
        )
    return (
        f"too little is recorded of the pools that this job may use: {basis.hours:.1f} h, with "
        f"{basis.granted + basis.refused} requests; at least {MIN_HOURS:g} h are needed. `spotsupd simulate` plays "
        "other recordings"
    )


def _prices(
    by_pool: Mapping[PoolName, Sequence[tuple[int, PoolDay]]],
    zone: str,
    slots: Sequence[int],
    listed_usd: float | None,
) -> list[float] | None:
    """Return the highest price of a zone's pools in each slot: as last recorded, else as first, else as it is now."""
    columns: list[list[float]] = []
    for pool, records in by_pool.items():
        if pool.zone != zone:
            continue
        known = sorted(
            (first + row.minute // SLOT_MINUTES, row.usd_per_hour)
            for first, day in records
            for row in day.rows
            if row.usd_per_hour is not None
        )
        if known:
            times = [slot for slot, _ in known]
            columns.append([known[max(0, bisect_right(times, slot) - 1)][1] for slot in slots])
    if not columns:
        return None if listed_usd is None or not math.isfinite(listed_usd) else [listed_usd] * len(slots)
    return [max(prices) for prices in zip(*columns, strict=True)]


def sentences(basis: Basis, nodes: int) -> list[str]:
    """Return what people must know of it. `nodes`: how many the job wants."""
    days = basis.first_day if basis.first_day == basis.last_day else f"{basis.first_day} to {basis.last_day}"
    parts = f", in {basis.stretches} parts without what was between them" if basis.stretches > 1 else ""
    pools = f"{basis.pools} {'pool' if basis.pools == 1 else 'pools'}"
    made_of = (
        f"Made from what this cluster's own jobs held and were refused: {basis.hours:.1f} h of {days} (UTC){parts}, "
        f"{basis.granted + basis.refused} requests ({basis.granted} granted, {basis.refused} refused), {pools}."
    )
    at_least = (
        "No zone was measured: one of which 2 were held had at least 2, and counts as having 2. Where none was held, "
        "none counts as there; machines that were given back count as taken."
    )
    found = [made_of, at_least]
    max_held = max(basis.most.values(), default=0)
    if max_held < nodes:
        found.append(
            f"No zone ever held more than {max_held} at once, and the job wants {nodes}: whether there were more is "
            "unknown."
        )
    return found
