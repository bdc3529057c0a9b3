"""When jobs of a simulation are submitted, and how much work each has: `schedule.csv` beside their files. Pure but for
the reading of that file."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import UsageError

NAME = "schedule.csv"
COLUMNS = ("job", "hours", "work")
OWNER = "owner"  # a fourth column, which may be left out
MAX_JOBS = 1000
_HEAD = f"`{','.join(COLUMNS)}` or `{','.join((*COLUMNS, OWNER))}`"


@dataclass(frozen=True, slots=True)
class Entry:
    """A job file, and when it is submitted."""

    file: str  # its name
    hours: float  # of the recording
    work_node_h: float | None = None  # None: it trains to the recording's end
    owner: str = ""  # who submits it


def schedule_of(folder: Path, every_h: float = 0.0, work_node_h: float | None = None) -> list[Entry]:
    """Return the jobs of a folder: as its schedule says, else all of its *.yaml by name, `every_h` apart, with so much
    work each. Raises UsageError."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: --jobs names one with job files (*.yaml)")
    files = sorted(path.name for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    if not files:
        raise UsageError(f"{folder} has no job files (*.yaml)")
    path = folder / NAME
    found = (
        _read(path, work_node_h)
        if path.exists()
        else [Entry(file, number * every_h, work_node_h) for number, file in enumerate(files)]
    )
    if len(found) > MAX_JOBS:
        raise UsageError(f"{folder} has {len(found)} jobs; at most {MAX_JOBS} are simulated")
    for entry in found:
        if entry.file not in files:
            raise UsageError(f"{path} names {entry.file!r}, which {folder} does not have")
    return found


def _read(path: Path, work_node_h: float | None) -> list[Entry]:
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not CSV: {error}") from error
    head = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if head not in {COLUMNS, (*COLUMNS, OWNER)}:
        raise UsageError(f"{path} does not begin with {_HEAD}")
    if len(rows) == 1:
        raise UsageError(f"{path} has no rows below its first line")
    return [_entry(path, row, len(head), work_node_h) for row in rows[1:]]


def _entry(path: Path, row: Sequence[str], columns: int, work_node_h: float | None) -> Entry:
    if len(row) != columns:
        raise UsageError(f"{path}: {','.join(row)[:80]!r} has {len(row)} columns, not the {columns} of its first line")
    file, hours, work, *owner = (cell.strip() for cell in row)
    return Entry(file, _number(path, hours), _number(path, work) if work else work_node_h, *owner)


def _number(path: Path, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f"{path}: {cell[:40]!r} is no number of hours from 0 on")
    return number
