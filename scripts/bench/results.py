"""Results of a benchmark: rows of statistics, the machine, `build/bench/<name>.json`, and the table for people."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one run. `value` None: it did not come to that, for the reason `why`; the run was watched
    for up to `limit_s`."""

    case: str
    subject: str
    metric: str
    unit: str
    value: float | None
    limit_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """All `n` runs of one measurement, of which `never` came to no value.

    Such a run counts as worse than any other: a statistic that rests on it is None.
    """

    case: str
    subject: str
    metric: str
    unit: str
    median: float | None
    min: float | None
    max: float | None
    n: int
    never: int = 0
    limit_s: float | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """The keys that every benchmark's rows have; and where a run came to no value, how often and why."""
        names = ["case", "subject", "metric", "unit", "median", "min", "max", "n"]
        if self.never:
            names += ["never", "limit_s", "why"]
        return {name: getattr(self, name) for name in names}


def summarise(samples: Iterable[Sample]) -> list[Row]:
    """One row per case, subject and metric, in the order of their first samples."""
    groups: dict[tuple[str, str, str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.case, sample.subject, sample.metric, sample.unit), []).append(sample)
    return [_row(key, group) for key, group in groups.items()]


def _row(key: tuple[str, str, str, str], group: Sequence[Sample]) -> Row:
    values = sorted(math.inf if sample.value is None else sample.value for sample in group)
    missing = [sample for sample in group if sample.value is None]
    return Row(
        *key,
        median=_finite(statistics.median(values)),
        min=_finite(values[0]),
        max=_finite(values[-1]),
        n=len(values),
        never=len(missing),
        limit_s=max((sample.limit_s for sample in missing if sample.limit_s is not None), default=None),
        why="; ".join(dict.fromkeys(sample.why for sample in missing if sample.why)),
    )


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def machine() -> dict[str, Any]:
    """What the numbers are measured on. `load_1min`: what others do on it; ask before the benchmark starts."""
    memory_kib = int(_pairs(Path("/proc/meminfo"))["MemTotal"].split()[0])
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": _pairs(Path("/proc/cpuinfo")).get("model name", platform.machine()),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _pairs(path: Path) -> dict[str, str]:
    """Lines `key: value`; the first of each key."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def write(path: Path, rows: Sequence[Row], about: Mapping[str, Any], subjects: Mapping[str, str]) -> None:
    """Write the JSON file in one go. `about`: the machine; `subjects`: how each was set up."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    content = {"machine": dict(about), "rows": [row.as_json() for row in rows], "subjects": dict(subjects)}
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def table(title: str, rows: Sequence[Row], floor: float | None) -> Table:
    """The rows for people, those of one case together; times also as multiples of `floor`, in seconds."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("metric", "subject"):
        made.add_column(column, no_wrap=True)
    for column in ("median", "min", "max", "n", "÷floor"):
        made.add_column(column, no_wrap=True, justify="right")
    metrics = list(dict.fromkeys(row.metric for row in rows))
    for case in dict.fromkeys(row.case for row in rows):
        made.add_row()
        made.add_row(case, style="bold")
        told = ""
        for row in sorted((row for row in rows if row.case == case), key=lambda row: metrics.index(row.metric)):
            made.add_row("" if row.metric == told else row.metric, row.subject, *_cells(row, floor))
            told = row.metric
    return made


def _cells(row: Row, floor: float | None) -> list[str]:
    """Median, min, max, n, and the median in floors."""
    floors = f"{row.median / floor:.1f}" if floor and row.unit == "s" and row.median is not None else ""
    if row.min is None:
        return [_told(None, row), "", "", str(row.n), floors]
    return [*(_told(value, row) for value in (row.median, row.min, row.max)), str(row.n), floors]


def _told(value: float | None, row: Row) -> str:
    if value is None:
        return "never" if row.limit_s is None else f">{row.limit_s:g} s"
    return f"{value:.2f} s" if row.unit == "s" else f"{value:g}"
