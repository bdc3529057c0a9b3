"""The table of `make bench-recovery`: one line per subject, below what was done to it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from spotsup_trainer.wire import PAUSE_PARTS

from benchmarks import results
from benchmarks.recovery.goals import FIRST, FULL, LOST, PAUSED, floor_s
from benchmarks.results import Row

_COLUMNS = ("pause to\n1st step", "min-max", "to full\nworld", "paused\nin all", "steps\nlost", "n", "÷\nfloor")
_PARTS = tuple(part.replace("_", "\n").replace("checkpoint", "check-\npoint") for part in PAUSE_PARTS)


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


def metric_of(part: str) -> str:
    """The metric of one part of a pause (wire.PAUSE_PARTS)."""
    return f"pause: {part}"


def parts_table(rows: Sequence[Row]) -> Table:
    """What the pauses of spotsup's subjects consisted of: medians, in seconds."""
    made = results.table_of("What the pause to the first step consisted of", [""], [*_PARTS, "sum"], (0, 1, 0, 0))
    known = {(row.case, row.subject, row.metric): row.median for row in rows}
    cases = dict.fromkeys(row.case for row in rows if row.metric in map(metric_of, PAUSE_PARTS))
    for case in cases:
        made.add_row(case, style="italic")
        for subject in dict.fromkeys(row.subject for row in rows if row.case == case):
            found = [known.get((case, subject, metric_of(part))) for part in PAUSE_PARTS]
            if any(each is not None for each in found):
                total = sum(each for each in found if each is not None)
                made.add_row(f"  {subject}", *("" if each is None else f"{each:.2f}" for each in [*found, total]))
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
