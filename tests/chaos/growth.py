"""Growth over hours: resident memory, threads and descriptors of each process, and etcd's data. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

# Younger processes still fill their caches.
WARM_S = 120.0
# A slope over less time, or fewer samples, is noise.
MIN_SPAN_S = 600.0
MIN_SAMPLES = 8
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one process."""

    role: str
    # Which process of the role.
    life: str
    # Seconds since the run began, and since the process started.
    at: float
    age_s: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits: growth per hour, and the value itself."""

    per_hour: float
    most: float


# rss in bytes. Python's allocator keeps what a burst once needed: the bounds allow for that, not for a leak.
BOUNDS: dict[tuple[str, str], Bound] = {
    ("spotsupd", "rss"): Bound(48 * MIB, 400 * MIB),
    # Its pools of threads (96, and 40 for the API) fill as they are needed, each thread with a connection.
    ("spotsupd", "threads"): Bound(60, 200),
    ("spotsupd", "files"): Bound(60, 400),
    ("agent", "rss"): Bound(24 * MIB, 150 * MIB),
    ("agent", "threads"): Bound(3, 30),
    ("agent", "files"): Bound(6, 60),
    ("launcher", "rss"): Bound(24 * MIB, 500 * MIB),
    ("launcher", "threads"): Bound(3, 30),
    # The one of rank 0 serves the round's store to all workers: 6 to 9 files become 21 to 25 within one life.
    ("launcher", "files"): Bound(60, 60),
    ("cloud", "rss"): Bound(48 * MIB, 300 * MIB),
    ("cloud", "threads"): Bound(20, 100),
    ("cloud", "files"): Bound(20, 300),
    ("etcd", "data"): Bound(16 * MIB, 64 * MIB),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity of one role. `per_hour`: the slope within lives; None if it was not measured for long enough."""

    role: str
    what: str
    typical: float
    most: float
    per_hour: float | None
    over_s: float

    def broken(self) -> list[str]:
        """The exceeded bounds, one sentence each."""
        bound = BOUNDS.get((self.role, self.what))
        if bound is None:
            return []
        sentences = []
        if self.per_hour is not None and self.per_hour > bound.per_hour:
            sentences.append(
                f"{self.role}: {self.what} grew by {self.per_hour:.3g} an hour; limit {bound.per_hour:.3g}"
            )
        if self.most > bound.most:
            sentences.append(f"{self.role}: {self.what} was {self.most:.3g}; limit {bound.most:.3g}")
        return sentences


def growth(samples: Iterable[Sample]) -> list[Growth]:
    """Per role and quantity. One slope for all lives, each with its own intercept (least squares)."""
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
    """(slope per hour, seconds measured)."""
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
