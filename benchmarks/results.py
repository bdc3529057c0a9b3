"""Results of a benchmark: rows of statistics, the machine, and `build/bench/<name>.json`."""

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
    """One measurement of one run. `value` None: it never happened, because of `why`; the run was watched for
    `limit_s`."""

    case: str
    subject: str
    metric: str
    unit: str
    value: float | None
    limit_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """All `n` runs of one measurement; `never` of them have no value.

    A run without a value counts as worse than any other: a statistic that depends on it is None.
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
        """The keys of every benchmark's rows; and how often and why a run has no value."""
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


def table_of(
    title: str, left: Iterable[str], right: Iterable[str], padding: tuple[int, int, int, int] = (0, 1, 0, 1)
) -> Table:
    """An empty table for people. `left`, `right`: the heads of columns, by how they are justified."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=padding)
    for column in left:
        made.add_column(column, no_wrap=True)
    for column in right:
        made.add_column(column, no_wrap=True, justify="right")
    return made


def figures(row: Row, digits: int) -> list[str]:
    """Median, smallest and largest value in seconds, for a table."""
    return [f"{value:.{digits}f} s" for value in (row.median, row.min, row.max) if value is not None]


def machine() -> dict[str, Any]:
    """The machine that is measured on. `load_1min`: its load before the benchmark; call this before it starts."""
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


def write(
    path: Path,
    rows: Sequence[Row],
    about: Mapping[str, Any],
    subjects: Mapping[str, str],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write the JSON file in one go. `about`: the machine; `subjects`: how each was set up; `more`: a benchmark's own
    keys beside those that all have.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    rows_json = [row.as_json() for row in rows]
    content = {"machine": dict(about), "rows": rows_json, "subjects": dict(subjects), **(more or {})}
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)
