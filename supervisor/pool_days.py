"""What a cluster's jobs held of a pool in the course of a day, and were refused there: kept in etcd for
`spotsupctl plan --simulate`. Pure.

It decides nothing, and measures no capacity: a pool of which 2 machines were held had 2 at lowest. A time for which
nobody watched is a gap, and a record that does not fit is not used: guesses could only make the past look better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from spotsup_trainer.decoding import printable

from provisioners.base import Market, Offer
from supervisor.model import MAX_REASON_CHARACTERS, NodeRecord, NodeState

DAY_S = 86400
DAY_MINUTES = 24 * 60
# What happens within so many minutes is one row: a day has at most 288. Of what was held, the row has the least.
SLOT_MINUTES = 5
MAX_DAYS = 7
# Of each day. A day of a pool has at most 10 KB.
MAX_POOLS = 64
MAX_BYTES = 32 * 1024
MAX_COUNT = 100_000
MAX_USD_PER_HOUR = 10_000.0
MAX_NAME_CHARACTERS = 100

_GIVEN_BACK = frozenset({NodeState.TERMINATING, NodeState.LOST, NodeState.FAILED, NodeState.GONE})


class PoolName(NamedTuple):
    """Machines that a cloud has or has not."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    market: str

    @property
    def key(self) -> str:
        """Return the key of its records, below their day."""
        return "/".join(quote(each, safe="") for each in (self.cloud, self.zone, self.instance_type, self.market))


class Row(NamedTuple):
    """From a minute on, until the next row. In JSON a list; what a newer version adds to it is ignored."""

    minute: int  # of the day (UTC), a multiple of SLOT_MINUTES
    held: int | None  # machines that were held at least, by all jobs together; None: nobody watched
    granted: int  # requests since the last row that were answered with a machine
    refused: int  # requests since the last row that were answered with none, whatever the reason
    usd_per_hour: float | None  # of a machine, as last known


@dataclass(frozen=True, slots=True)
class PoolDay:
    """A pool's day."""

    pool: PoolName
    rows: tuple[Row, ...] = ()  # by minute; one is written only where something differs from the one before
    until: int = 0  # the minute up to which the last row is known to hold


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool, as it was just seen."""

    held: int = 0
    granted: int = 0  # since it was last seen
    refused: int = 0  # since it was last seen
    usd_per_hour: float | None = None

    def plus(self, other: Seen) -> Seen:
        """Return the sum with what another job has there."""
        usd = self.usd_per_hour if other.usd_per_hour is None else other.usd_per_hour
        return Seen(self.held + other.held, self.granted + other.granted, self.refused + other.refused, usd)


def pool_of(offer: Offer) -> PoolName:
    """Return the pool that an offer is of."""
    return PoolName(offer.cloud, offer.region, offer.zone, offer.instance_type, str(offer.market))


def extended(day: PoolDay, minute: int, before: int, seen: Seen) -> PoolDay:
    """Return the day with what was seen in a minute; the same object if that is nothing new.

    `before`: how many were held when it was last seen. Within one row the lowest counts; machines that were granted
    meanwhile may have come after others had gone.
    """
    slot = minute - minute % SLOT_MINUTES
    last = day.rows[-1] if day.rows else Row(-1, 0, 0, 0, None)
    if minute < max(last.minute, day.until):
        return day  # the clock went back
    lowest = max(0, min(before, seen.held - seen.granted))
    usd = last.usd_per_hour if seen.usd_per_hour is None else round(seen.usd_per_hour, 6)
    if slot == last.minute:
        low = None if last.held is None else min(last.held, lowest)
        row = Row(slot, low, last.granted + seen.granted, last.refused + seen.refused, usd)
        rows = (*day.rows[:-1], row)
    else:
        row = Row(slot, lowest, seen.granted, seen.refused, usd)
        changed = seen.granted or seen.refused or seen.held != before
        changed = changed or (row.held, usd) != (last.held, last.usd_per_hour)
        rows = (*day.rows, row) if changed else day.rows
    if rows == day.rows and (minute == day.until or not rows[-1:] or not rows[-1].held):
        return day
    return replace(day, rows=rows, until=minute)


def interrupted(day: PoolDay, minute: int) -> PoolDay:
    """Return the day, taken up in a minute by who did not watch it since `day.until`."""
    last = day.rows[-1] if day.rows else None
    slot = day.until - day.until % SLOT_MINUTES + SLOT_MINUTES
    if last is None or not last.held or slot > minute - minute % SLOT_MINUTES:
        return day
    return replace(day, rows=(*day.rows, Row(slot, None, 0, 0, last.usd_per_hour)), until=slot)


# -- what nodes say of their pools ------------------------------------------------------------------------------


def seen_of(nodes: Mapping[str, NodeRecord], before: Mapping[str, NodeRecord] | None) -> dict[PoolName, Seen]:
    """Return what a job holds of each pool, and was answered since its nodes were `before`; None: nothing is new."""
    found: dict[PoolName, Seen] = {}
    for node in nodes.values():
        earlier = before.get(node.id) if before is not None else node
        granted = bool(node.launched_at) and not node.launched_as and not (earlier is not None and earlier.launched_at)
        refused = was_refused(node) and not (earlier is not None and was_refused(earlier))
        held = is_held(node)
        if held or granted or refused:
            pool = pool_of(node.offer)
            seen = Seen(int(held), int(granted), int(refused), node.offer.usd_per_hour)
            found[pool] = found.get(pool, Seen()).plus(seen)
    return found


def is_held(node: NodeRecord) -> bool:
    """True if its cloud has granted its machine, and neither took it back nor was given it back."""
    return bool(node.launched_at) and not node.ended_at and node.state not in _GIVEN_BACK


def was_refused(node: NodeRecord) -> bool:
    """True if its cloud answered with no machine. A request that was withdrawn has another reason than its error."""
    if node.state is not NodeState.GONE or node.launched_at or not node.error or not node.history:
        return False
    last = node.history[-1]
    return last.before == NodeState.REQUESTED and last.reason == printable(node.error, MAX_REASON_CHARACTERS)


# -- as JSON ----------------------------------------------------------------------------------------------------


def encode_day(day: PoolDay) -> bytes:
    """Return the day as it is kept in etcd."""
    return json.dumps(as_json(day), separators=(",", ":")).encode()


def as_json(day: PoolDay) -> dict[str, Any]:
    """Return the day as plain JSON."""
    return {"pool": list(day.pool), "until": day.until, "rows": [list(row) for row in day.rows]}


def decode_day(raw: bytes) -> PoolDay | None:
    """Return a record of etcd, of this or of another version; None if it does not fit."""
    if len(raw) > MAX_BYTES:
        return None
    try:
        return from_json(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def from_json(value: Any) -> PoolDay | None:
    """Return the same from plain JSON. Keys and columns that a newer version has added are ignored."""
    if not isinstance(value, dict):
        return None
    pool, rows, until = _pool(value.get("pool")), value.get("rows"), value.get("until")
    if pool is None or not isinstance(rows, list) or not (isinstance(until, int) and _is_count(until, DAY_MINUTES)):
        return None
    found = [_row(row) for row in rows[: DAY_MINUTES // SLOT_MINUTES + 1]]
    minutes = [-1 if row is None else row.minute for row in found]
    if -1 in minutes or len(set(minutes)) < len(minutes) or minutes != sorted(minutes):
        return None
    return PoolDay(pool, tuple(row for row in found if row is not None), until)


def _pool(value: Any) -> PoolName | None:
    if not isinstance(value, list) or len(value) < len(PoolName._fields):
        return None
    texts = value[: len(PoolName._fields)]
    fits = all(isinstance(each, str) and 0 < len(each) <= MAX_NAME_CHARACTERS and each.isprintable() for each in texts)
    return PoolName(*texts) if fits and texts[-1] in set(Market) else None


def _row(value: Any) -> Row | None:
    if not isinstance(value, list) or len(value) < len(Row._fields):
        return None
    minute, held, granted, refused, usd = value[: len(Row._fields)]
    counts = _is_count(granted, MAX_COUNT) and _is_count(refused, MAX_COUNT) and _is_count(minute, DAY_MINUTES - 1)
    if not counts or minute % SLOT_MINUTES or not (held is None or _is_count(held, MAX_COUNT)):
        return None
    if usd is not None and not (isinstance(usd, int | float) and not isinstance(usd, bool) and _is_price(usd)):
        return None
    return Row(minute, held, granted, refused, None if usd is None else float(usd))


def _is_count(value: Any, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def _is_price(value: float) -> bool:
    return 0 <= value <= MAX_USD_PER_HOUR and math.isfinite(value)


def fits(pool: PoolName) -> bool:
    """True if a pool's names can be kept."""
    return _pool(list(pool)) is not None


def totals(days: Iterable[PoolDay]) -> tuple[int, int]:
    """Requests that were granted, and refused."""
    rows = [row for day in days for row in day.rows]
    return sum(row.granted for row in rows), sum(row.refused for row in rows)
