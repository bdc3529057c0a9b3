"""Recordings of spot markets: how many machines each zone would have granted, and at what price.

Two kinds of files, both CSV with a header. Availability: `seconds,ZONE…`, one row per probe, the number of machines
that the zone would have granted. Membership: `seconds,event,node`, the nodes that a group really held, `add` or
`remove`. A file of prices, `seconds,ZONE…` in USD per hour, may go with the first kind.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from supervisor.errors import UsageError

MEMBERSHIP = ("seconds", "event", "node")
MEMBERS = f"`{','.join(MEMBERSHIP)}`"
ONE_ZONE = "recorded"
MAX_MACHINES = 100_000
MAX_USD_PER_HOUR = 10_000.0


@dataclass(frozen=True, slots=True)
class Series:
    """A number for each zone that changes at times: `rows[i]` holds from `seconds[i]` on."""

    seconds: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    def at(self, second: float) -> tuple[float, ...]:
        """Return the row of a time; the first one before the first."""
        return self.rows[self.index(second)]

    def index(self, second: float) -> int:
        """Return the row's number."""
        return max(0, bisect_right(self.seconds, second) - 1)


@dataclass(frozen=True, slots=True)
class Recording:
    """A market, from second 0 to `end_s`."""

    name: str
    zones: tuple[str, ...]
    capacity: Series  # machines that each zone grants, whole numbers
    prices: Series | None  # USD per machine and hour
    end_s: float
    # Per zone, the times at which it grants fewer machines than before.
    drops: tuple[tuple[float, ...], ...] = field(default=())

    def cut(self, start_s: float, end_s: float) -> Recording:
        """Return the part between two times, which begins at second 0."""
        end_s = min(end_s, self.end_s)
        if not 0 <= start_s < end_s:
            raise UsageError(f"{self.name} has {self.end_s / 3600:.1f} h: nothing is left from {start_s / 3600:g} h on")
        prices = _cut(self.prices, start_s, end_s) if self.prices else None
        return made(self.name, self.zones, _cut(self.capacity, start_s, end_s), prices, end_s - start_s)


def read(path: Path, prices: Path | None = None) -> Recording:
    """Return a recording from its file. Raises UsageError, which names file and line."""
    rows = _rows(path)
    header = next(rows, None)
    if header is None:
        raise UsageError(f"{path} is empty: a recording begins with `seconds,ZONE,…` or {MEMBERS}")
    names = tuple(name.strip() for name in header[1])
    group = names == MEMBERSHIP
    if group and prices is not None:
        raise UsageError(f"{path} has one group of nodes and no zones, so a file of prices cannot go with it")
    zones = (ONE_ZONE,) if group else _zones(path, names)
    capacity = _members(path, rows) if group else _series(path, names, rows, MAX_MACHINES, whole=True)
    first = capacity.seconds[0]
    end_s = capacity.seconds[-1] - first + _last_interval_s(capacity)
    found = _prices(prices, zones) if prices else None
    return made(path.stem, zones, _earlier(capacity, first), _earlier(found, first) if found else None, end_s)


def _earlier(series: Series, by_s: float) -> Series:
    return replace(series, seconds=tuple(second - by_s for second in series.seconds))


def _prices(path: Path, zones: tuple[str, ...]) -> Series:
    rows = _rows(path)
    header = next(rows, None)
    names = tuple(name.strip() for name in header[1]) if header else ()
    found = _zones(path, names)
    missing = [zone for zone in zones if zone not in found]
    if missing:
        raise UsageError(f"{path} has no prices of {', '.join(missing)}")
    series = _series(path, names, rows, MAX_USD_PER_HOUR, whole=False)
    order = [found.index(zone) for zone in zones]
    return Series(series.seconds, tuple(tuple(row[i] for i in order) for row in series.rows))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells, without empty lines."""
    try:
        with path.open(newline="") as file:
            for row in (reader := csv.reader(file)):
                if any(cell.strip() for cell in row):
                    yield reader.line_num, row
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not CSV: {error}") from error


def _zones(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) < 2 or names[0] != "seconds":
        raise UsageError(f"{path} begins with {','.join(names)[:80]!r}, not with `seconds,ZONE,…` or {MEMBERS}")
    zones = names[1:]
    if "" in zones or len(set(zones)) < len(zones):
        raise UsageError(f"{path} names a zone twice, or not at all, in its first line")
    return zones


def _series(
    path: Path, names: tuple[str, ...], rows: Iterator[tuple[int, list[str]]], maximum: float, *, whole: bool
) -> Series:
    seconds: list[float] = []
    values: list[tuple[float, ...]] = []
    for line, row in rows:
        if len(row) != len(names):
            raise UsageError(f"{path}:{line} has {len(row)} columns, and the first line has {len(names)}")
        second, *cells = (_number(path, line, cell) for cell in row)
        if seconds and second <= seconds[-1]:
            raise UsageError(f"{path}:{line}: {second:g} s does not come after {seconds[-1]:g} s")
        if any(not 0 <= cell <= maximum or (whole and cell != int(cell)) for cell in cells):
            kind = "a whole number" if whole else "a number"
            raise UsageError(
                f"{path}:{line}: {','.join(row[1:])[:80]} is not {kind} from 0 to {maximum:g} in each column"
            )
        seconds.append(second)
        values.append(tuple(cells))
    if not seconds:
        raise UsageError(f"{path} has no rows below its first line")
    return Series(tuple(seconds), tuple(values))


def _members(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Series:
    """Return how many nodes the group held."""
    present: set[str] = set()
    counts: dict[float, tuple[float, ...]] = {}
    last = -math.inf
    for line, row in rows:
        if len(row) != len(MEMBERSHIP):
            raise UsageError(f"{path}:{line} has {len(row)} columns, not {','.join(MEMBERSHIP)}")
        second, event, node = _number(path, line, row[0]), row[1].strip(), row[2].strip()
        if second < last:
            raise UsageError(f"{path}:{line}: {second:g} s comes before {last:g} s")
        if event not in {"add", "remove"} or (node in present) is (event == "add"):
            raise UsageError(f"{path}:{line}: {event} {node} is neither a new node nor the end of one that is there")
        present ^= {node}
        last, counts[second] = second, (len(present),)
    if not counts:
        raise UsageError(f"{path} has no rows below its first line")
    return Series(tuple(counts), tuple(counts.values()))


def _number(path: Path, line: int, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        raise UsageError(f"{path}:{line}: {cell[:40]!r} is no number") from None
    if not math.isfinite(number):
        raise UsageError(f"{path}:{line}: {cell[:40]!r} is no number of seconds, machines or dollars")
    return number


def _last_interval_s(series: Series) -> float:
    """Return how long the last row holds: as long as most do."""
    gaps = sorted(later - earlier for earlier, later in zip(series.seconds, series.seconds[1:], strict=False))
    return gaps[len(gaps) // 2] if gaps else 300.0


def _cut(series: Series, start_s: float, end_s: float) -> Series:
    inside = [i for i, second in enumerate(series.seconds) if start_s < second < end_s]
    seconds = (0.0, *(series.seconds[i] - start_s for i in inside))
    return Series(seconds, (series.at(start_s), *(series.rows[i] for i in inside)))


def made(name: str, zones: Sequence[str], capacity: Series, prices: Series | None, end_s: float) -> Recording:
    """Return a recording with the times of its drops."""
    drops = tuple(tuple(_drops(capacity, zone)) for zone in range(len(zones)))
    return Recording(name, tuple(zones), capacity, prices, end_s, drops)


def _drops(series: Series, zone: int) -> Iterable[float]:
    for second, before, after in zip(series.seconds[1:], series.rows, series.rows[1:], strict=False):
        if after[zone] < before[zone]:
            yield second
