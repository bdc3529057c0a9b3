"""What grows over the hours: resident memory, threads and descriptors of each process, and etcd's data. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

# Before that a process is still filling its caches.
WARM_S = 120.0
# A slope over less time than that is noise, and no verdict.
MIN_SPAN_S = 600.0
MIN_SAMPLES = 8
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `life`: which process of the `role` it was; `at`, `age_s`: seconds since the run and the life began."""

    role: str
    life: str
    at: float
    age_s: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bound:
    """What is allowed: growth per hour, and the most that may ever be."""

    per_hour: float
    most: float


# rss in bytes. Python's allocator keeps what a burst needed once: the bounds leave room for that, not for a leak.
BOUNDS: dict[tuple[str, str], Bound] = {
    ("spotsupd", "rss"): Bound(48 * MIB, 400 * MIB),
    # Its pools of threads (96, and 40 for the API) fill as they are needed, each thread with a connection.
    ("spotsupd", "threads"): Bound(60, 200),
    ("spotsupd", "files"): Bound(60, 400),
    ("agent", "rss"): Bound(24 * MIB, 150 * MIB),
    ("agent", "threads"): Bound(3, 30),
    ("agent", "files"): Bound(6, 60),
    ("cloud", "rss"): Bound(48 * MIB, 300 * MIB),
    ("cloud", "threads"): Bound(20, 100),
    ("cloud", "files"): Bound(20, 300),
    ("etcd", "data"): Bound(16 * MIB, 64 * MIB),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity of one role. `per_hour`: the slope within lives, None where none was looked at for long enough."""

    role: str
    what: str
    typical: float
    most: float
    per_hour: float | None
    over_s: float

    def broken(self) -> list[str]:
        """What is more than its bound, in words."""
        bound = BOUNDS.get((self.role, self.what))
        if bound is None:
            return []
        words = []
        if self.per_hour is not None and self.per_hour > bound.per_hour:
            words.append(f"{self.role}: {self.what} grew by {self.per_hour:.3g} an hour; at most {bound.per_hour:.3g}")
        if self.most > bound.most:
            words.append(f"{self.role}: {self.what} was {self.most:.3g}; at most {bound.most:.3g}")
        return words


def growth(samples: Iterable[Sample]) -> list[Growth]:
    """Per role and quantity. The slope is one for all lives, each with a start of its own (least squares)."""
    series: defaultdict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    every: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        for what, value in sample.values.items():
            every[sample.role, what].append(value)
            if sample.age_s >= WARM_S:
                series[sample.role, what][sample.life].append((sample.age_s, value))
    found = []
    for (role, what), values in sorted(every.items()):
        slope, span_s = _slope(list(series[role, what].values()))
        found.append(Growth(role, what, median(values), max(values), slope, span_s))
    return found


def _slope(lives: Sequence[Sequence[tuple[float, float]]]) -> tuple[float | None, float]:
    """(per hour, the seconds that were looked at)."""
    above = below = span_s = 0.0
    count = 0
    for life in lives:
        if len(life) < 2:
            continue
        at, value = (fmean(each[index] for each in life) for index in (0, 1))
        above += sum((x - at) * (y - value) for x, y in life)
        below += sum((x - at) ** 2 for x, _ in life)
        span_s += life[-1][0] - life[0][0]
        count += len(life)
    if span_s < MIN_SPAN_S or count < MIN_SAMPLES or not below:
        return None, span_s
    return above / below * 3600.0, span_s
