"""Results side by side, for people and for scripts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from spotsup_simulator.replay.ledger import Part, Result, Total

# What a line says, and of a result what it shows.
_LINES: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("useful node-hours", lambda r: f"{r.useful_node_h:.1f}"),
    ("  of what was offered", lambda r: _percent(r.goodput_of_offered)),
    ("  of what was desired", lambda r: _percent(r.goodput_of_desired)),
    ("paid node-hours", lambda r: f"{r.paid_node_h:.1f}"),
    ("  of them on demand", lambda r: f"{r.on_demand_node_h:.1f}"),
    ("USD per useful node-hour", lambda r: _money(r.usd_per_useful_node_h, 4)),
    ("USD", lambda r: _money(r.usd, 2)),
    ("USD on demand instead", lambda r: _money(r.usd_at_on_demand, 2)),
    ("hours", lambda r: f"{r.hours:.1f}{'' if r.finished else ' (not ended)'}"),
    ("  waited", lambda r: f"{r.waited_h:.2f}"),
    ("  paused", lambda r: f"{r.paused_h:.2f}"),
    ("node-hours repeated", lambda r: f"{r.lost_node_h:.2f}"),
    ("pauses", lambda r: f"{r.pauses}"),
    ("moves to another zone", lambda r: f"{r.moves}"),
    ("requests", lambda r: f"{r.requests}"),
    ("  refused", lambda r: f"{r.refusals}"),
)


def table(results: Sequence[Result]) -> str:
    """Return a table with one column per policy."""
    rows = [["", *(result.policy for result in results)]]
    return _aligned(rows + [[name, *(show(result) for result in results)] for name, show in _LINES])


def table_of_jobs(parts: Sequence[Part], totals: Sequence[Total]) -> str:
    """Return a table with one line per job, one for all of them, and one for each other way to play them."""
    head = ("job", "submitted h", "first step h", "ended h", *_SUMS)
    lines = [
        _line(part.job, f"{part.submitted_h:.2f}", part.first_step_h, _hours(part.ended_h, "not ended"), part.result)
        for part in parts
    ]
    for each in totals:
        end = _hours(each.makespan_h, f"{each.finished} of {each.jobs}")
        lines.append(_line(f"all: {each.policy}", "", each.first_step_h, end, each))
    return _aligned([head, *lines])


_SUMS = ("node-hours", "paid", "USD", "USD/h", "pauses", "moves", "requests")


def _line(name: str, submitted: str, first_step_h: float | None, end: str, found: Result | Total) -> list[str]:
    return [
        name,
        submitted,
        _hours(first_step_h, "never"),
        end,
        f"{found.useful_node_h:.1f}",
        f"{found.paid_node_h:.1f}",
        _money(found.usd, 2),
        _money(found.usd_per_useful_node_h, 4),
        *(str(each) for each in (found.pauses, found.moves, found.requests)),
    ]


def _hours(hours: float | None, otherwise: str) -> str:
    return otherwise if hours is None else f"{hours:.2f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return all numbers, without rounding."""
    return [
        asdict(result)
        | {
            "goodput_of_offered": result.goodput_of_offered,
            "goodput_of_desired": result.goodput_of_desired,
            "usd_per_useful_node_h": result.usd_per_useful_node_h,
        }
        for result in results
    ]


def jobs_as_json(parts: Sequence[Part], totals: Sequence[Total]) -> dict[str, Any]:
    """Return the same for several jobs."""
    jobs = [asdict(part) | {"ended_h": part.ended_h, "result": as_json([part.result])[0]} for part in parts]
    return {"jobs": jobs, "totals": [asdict(total) for total in totals]}


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _money(usd: float | None, digits: int) -> str:
    return "unknown" if usd is None else f"{usd:.{digits}f}"
