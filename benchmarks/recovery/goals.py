"""The goals of a recovery, and whether they were met. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table

from benchmarks import results
from benchmarks.recovery.grid import (
    CELLS,
    FLOOR,
    FLOOR_SESSION,
    LAUNCHERS_COLD,
    LAUNCHERS_COLD_SESSION,
    LAUNCHERS_WARM,
    SPOTSUP,
    SPOTSUP_CHAR,
    Cell,
    Fault,
    Recovery,
)
from benchmarks.results import Row

FIRST, FULL, PAUSED, LOST = "pause to first step", "time to full world", "paused until then", "steps lost"
FENCED, LATE = "old workers gone after a thaw", "steps completed after a thaw"

FLOORS = 1.3
WARM_S = 0.3
# Of the char model, in a whole installation.
NOTICE_S = 0.3
LEASE_AND_S = 1.0


@dataclass(frozen=True, slots=True)
class Goal:
    """`value` may be `limit` at most. `value` None: not measured, or it never happened; then the goal is not met."""

    goal: str
    subject: str
    case: str
    metric: str
    statistic: Literal["median", "max"]
    unit: str
    value: float | None
    limit: float

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.value is not None and self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return asdict(self) | {"met": self.met}


def floor_s(rows: Iterable[Row], subject: str = FLOOR) -> float | None:
    """The median of a floor, in seconds."""
    return next((row.median for row in rows if row.subject == subject), None)


def judge(rows: Sequence[Row], lease_s: float) -> list[Goal]:
    """Every goal with a measurement; those relative to the floor only where the floor was measured."""
    known = {(row.subject, row.case, row.metric): row for row in rows}
    floor, session_floor = floor_s(rows), floor_s(rows, FLOOR_SESSION)
    found: list[Goal] = []

    def ask(
        goal: str, subject: str, cell: Cell, metric: str, limit: float | None, *, statistic: Literal["median", "max"]
    ) -> None:
        row = known.get((subject, cell.case, metric))
        if row is not None and limit is not None:
            value = row.median if statistic == "median" else row.max
            found.append(Goal(goal, subject, cell.case, metric, statistic, row.unit, value, round(limit, 4)))

    floors, with_session = (FLOORS * floor if floor is not None else None for floor in (floor, session_floor))
    after_lease = None if floors is None else lease_s + floors
    for cell in _spared_after(Fault.KILL, LAUNCHERS_WARM):
        ask(f"tombstone and spare, warm: {WARM_S:g} s", LAUNCHERS_WARM, cell, FIRST, WARM_S, statistic="median")
    for subject in (LAUNCHERS_WARM, LAUNCHERS_COLD, SPOTSUP):
        for cell in _spared_after(Fault.KILL, subject):
            ask(f"tombstone and spare: {FLOORS:g} floors", subject, cell, FIRST, floors, statistic="median")
    for cell in _spared_after(Fault.KILL, LAUNCHERS_COLD_SESSION):
        text = f"the same, of {FLOOR_SESSION}"
        ask(text, LAUNCHERS_COLD_SESSION, cell, FIRST, with_session, statistic="median")
    for cell in _cells(Fault.FREEZE):
        text = f"silent loss: lease + {FLOORS:g} floors"
        ask(text, SPOTSUP, cell, FIRST, after_lease, statistic="median")
        # The step in which it froze may already have had its peers' gradients: nothing can stop that one.
        ask("a thawed node ends the step it froze in, at most", SPOTSUP, cell, LATE, 1.0, statistic="max")
    for cell in _cells(Fault.NOTICE):
        if cell.recovery is not Recovery.SHRINKING:
            ask(f"notice: {FLOORS:g} floors", SPOTSUP, cell, PAUSED, floors, statistic="median")
        ask("notice: no step lost", SPOTSUP, cell, LOST, 0.0, statistic="max")
    for cell in CELLS[SPOTSUP_CHAR]:
        if cell.fault is Fault.NOTICE:
            ask(f"char model, notice: {NOTICE_S:g} s", SPOTSUP_CHAR, cell, PAUSED, NOTICE_S, statistic="median")
        else:
            text = f"char model, loss: lease + {LEASE_AND_S:g} s"
            ask(text, SPOTSUP_CHAR, cell, FIRST, lease_s + LEASE_AND_S, statistic="median")
    return found


def _cells(fault: Fault) -> list[Cell]:
    return [cell for cell in CELLS[SPOTSUP] if cell.fault is fault]


def _spared_after(fault: Fault, subject: str) -> list[Cell]:
    return [cell for cell in CELLS[subject] if cell.fault is fault and cell.recovery is Recovery.SPARE]


def table(goals: Sequence[Goal]) -> Table:
    """For people: one line per figure."""
    made = results.table_of("Goals", ("subject", "case"), ("figure", "may be", ""), (0, 1, 0, 0))
    printed = ""
    order = list(dict.fromkeys(goal.goal for goal in goals))
    for goal in sorted(goals, key=lambda goal: order.index(goal.goal)):
        if goal.goal != printed:
            made.add_row(goal.goal, style="italic")
            printed = goal.goal
        verdict = "[green]met[/green]" if goal.met else "[red]missed[/red]"
        figures = [_figure(number, goal.unit) for number in (goal.value, goal.limit)]
        made.add_row(f" {goal.subject}", goal.case.partition(", ")[2], *figures, verdict)
    return made


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "never"
    return f"{value:.2f} s" if unit == "s" else f"{value:g}"
