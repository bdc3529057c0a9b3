"""The table of `make bench-recovery`: one line per subject, below what was done to it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from benchmarks import results
from benchmarks.recovery.goals import FIRST, FULL, LOST, PAUSED, floor_s
from benchmarks.results import Row

_COLUMNS = ("pause to\n1st step", "min-max", "to full\nworld", "paused\nin all", "steps\nlost", "n", "÷\nfloor")


def table(rows: Sequence[Row]) -> Table:
    """Medians, in seconds unless stated otherwise; rows with other metrics are not shown."""
    made = results.table_of("Training pauses when a machine is lost", [""], _COLUMNS, (0, 1, 0, 0))
    known = {(row.case, row.subject, row.metric): row for row in rows}
    floor, fault = floor_s(rows), ""
    for case in dict.fromkeys(row.case for row in rows):
        # A case begins with its fault; the rest names the victim and the recovery.
        first, _, rest = case.partition(", ")
        if first != fault:
            made.add_row()
            made.add_row(first, style="bold")
            fault = first
        if rest:
            made.add_row(f" {rest}", style="italic")
        for subject in dict.fromkeys(row.subject for row in rows if row.case == case):
            found = [known.get((case, subject, metric)) for metric in (FIRST, FULL, PAUSED, LOST)]
            made.add_row(f"  {subject}", *_cells(found, floor))
    return made


def _cells(found: Sequence[Row | None], floor: float | None) -> list[str]:
    """`found`: by metric, in the columns' order."""
    first, *others = found
    spread, floors, count = "", "", ""
    if first is not None:
        count = str(first.n)
        if first.min is not None and first.max is not None and first.n > 1:
            spread = f"{first.min:.2f}-{first.max:.2f}"
        if first.median is not None and floor:
            floors = f"{first.median / floor:.1f}"
    return [_told(first), spread, *(_told(row) for row in others), count, floors]


def _told(row: Row | None) -> str:
    """The median, or how long it was waited for without success."""
    if row is None:
        return ""
    if row.median is None:
        return "never" if row.limit_s is None else f">{row.limit_s:g} s"
    return f"{row.median:.2f} s" if row.unit == "s" else f"{row.median:g}"
