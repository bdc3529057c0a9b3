"""What pools granted and refused in the last day, as a heat map: one row per pool, one cell per half hour. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.journal.journal import DayKey
from supervisor.planner.world import JobView
from supervisor.pool_days import DAY_MINUTES, DAY_S, PoolDay, PoolName, is_held, pool_of
from supervisor.web.formats import money

CELLS = 48
CELL_S = DAY_S // CELLS
MAX_ROWS = 120
_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """Half an hour of a pool."""

    kind: str  # its class: none, held-1 … held-4, mixed-…, no-…
    text: str
    begin: float  # UNIX seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One pool."""

    pool: PoolName
    held: int  # machines now
    usd_per_hour: float | None  # of one machine, as last known
    granted: int  # in the last day
    refused: int
    cells: tuple[Cell, ...]


@dataclass(slots=True)
class _Slot:
    held: int = 0
    granted: int = 0
    refused: int = 0
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """The pools of one region."""

    cloud: str
    name: str
    rows: tuple[Row, ...]


def regions(views: Iterable[JobView], days: Mapping[DayKey, PoolDay | None], now: float) -> list[Region]:
    """Return, by cloud and region, the pools in which machines are held or were asked for in the last day."""
    begin = (int(now) // CELL_S + 1) * CELL_S - DAY_S
    slots: dict[PoolName, list[_Slot]] = {}
    for (day, _), record in days.items():
        if record is not None and (start := _start(day)) is not None:
            _fill(slots.setdefault(record.pool, [_Slot() for _ in range(CELLS)]), record, start, begin, now)
    held: dict[PoolName, int] = {}
    prices: dict[PoolName, float | None] = {}
    for view in views:
        for node in view.nodes.values():
            if is_held(node):
                pool = pool_of(node.offer)
                held[pool] = held.get(pool, 0) + 1
                prices[pool] = node.offer.usd_per_hour
    for pool, count in held.items():
        cells = slots.setdefault(pool, [_Slot() for _ in range(CELLS)])
        cells[-1].held = max(cells[-1].held, count)
    rows = [_row(pool, held.get(pool, 0), prices.get(pool), cells, begin) for pool, cells in slots.items()]
    rows = [row for row in rows if row.held or row.granted or row.refused or any(c.kind != "none" for c in row.cells)]
    rows = sorted(rows, key=lambda row: -row.held)[:MAX_ROWS]
    places = sorted({(row.pool.cloud, row.pool.region) for row in rows})
    return [
        Region(cloud, name, tuple(sorted((r for r in rows if r.pool[:2] == (cloud, name)), key=lambda row: row.pool)))
        for cloud, name in places
    ]


def _start(day: str) -> float | None:
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _fill(cells: list[_Slot], record: PoolDay, start: float, begin: float, now: float) -> None:
    for at, row in enumerate(record.rows):
        until = record.rows[at + 1].minute if at + 1 < len(record.rows) else min(record.until, DAY_MINUTES)
        first = int((start + row.minute * 60 - begin) // CELL_S)
        last = int((min(start + max(until, row.minute + 1) * 60, now) - 1 - begin) // CELL_S)
        for number in range(max(first, 0), min(last, CELLS - 1) + 1):
            cells[number].held = max(cells[number].held, row.held or 0)
            cells[number].usd = row.usd_per_hour if row.usd_per_hour is not None else cells[number].usd
        if 0 <= first < CELLS:
            cells[first].granted += row.granted
            cells[first].refused += row.refused


def _row(pool: PoolName, held: int, usd: float | None, cells: list[_Slot], begin: float) -> Row:
    highest = max((cell.held for cell in cells), default=0)
    known = [cell.usd for cell in cells if cell.usd is not None]
    return Row(
        pool,
        held,
        usd if usd is not None else (known[-1] if known else None),
        sum(cell.granted for cell in cells),
        sum(cell.refused for cell in cells),
        tuple(_cell(cell, highest, begin + number * CELL_S) for number, cell in enumerate(cells)),
    )


def _cell(cell: _Slot, highest: int, begin: float) -> Cell:
    said = ", ".join(_said(cell)) or "nothing asked for"
    level = max(1, -(-_LEVELS * cell.held // highest)) if highest and cell.held else 0
    if cell.refused and cell.refused >= cell.granted:
        kind = f"no-{level}" if level else "no"
    else:
        kind = f"held-{level}" if level else ("asked" if cell.granted else "none")
    return Cell(kind, said, begin)


def _said(cell: _Slot) -> Iterator[str]:
    if cell.held:
        yield f"{cell.held} held"
    if cell.granted:
        yield f"{cell.granted} granted"
    if cell.refused:
        yield f"{cell.refused} refused"
    if cell.usd is not None and (cell.held or cell.granted or cell.refused):
        yield f"{money(cell.usd)} per hour each"
