"""The results of `make chaos`: tables, and a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import results
from tests.chaos.context import Outcome
from tests.chaos.growth import MIB, Growth, Sample, growth
from tests.chaos.plan import Kind
from tests.support.console import console, write_result


@dataclass
class Result:
    """The result of one testbed. `ran_s`: for how long faults were injected."""

    etcds: int
    outcomes: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    ran_s: float = 0.0

    def all_broken(self) -> list[str]:
        """Every broken promise, and by which fault."""
        found = [f"fault {o.planned.number}, {o.planned.kind}: {text}" for o in self.outcomes for text in o.broken]
        return [f"etcd of {self.etcds}: {text}" for text in [*found, *self.broken]]


def show(found: Sequence[Result]) -> list[Growth]:
    """Print the tables at the end; returns the growth."""
    by_kind: defaultdict[Kind, list[Outcome]] = defaultdict(list)
    for result in found:
        for outcome in result.outcomes:
            by_kind[outcome.planned.kind].append(outcome)
    table = Table(title="Cost of each fault", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for head in ("fault", "times", "longest\npause", "longest\nrecovery", "takeover", ""):
        table.add_column(head, justify="left" if head == "fault" else "right")
    for kind in [kind for kind in Kind if kind in by_kind]:
        group = by_kind[kind]
        recovered = [each.recovered_s for each in group if each.recovered_s is not None]
        takeovers = [each.notes["takeover_s"] for each in group if "takeover_s" in each.notes]
        table.add_row(
            kind,
            str(len(group)),
            f"{max(each.pause_s for each in group):.2f} s",
            f"{max(recovered):.1f} s" if recovered else "never",
            f"{max(takeovers):.2f} s" if takeovers else "-",
            "[red]broken[/red]" if any(each.broken or each.recovered_s is None for each in group) else "kept",
        )
    console.print()
    console.print(table)
    sizes = Table(title="Growth", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for head in ("process", "what", "typical", "max", "per hour", "measured for"):
        sizes.add_column(head, justify="left" if head in {"process", "what"} else "right")
    grown = [each for result in found for each in growth(result.samples)]
    for each in grown:
        unit = MIB if each.what in {"rss", "data"} else 1
        values = f"{each.typical / unit:.1f}", f"{each.most / unit:.1f}"
        slope = "too short" if each.per_hour is None else f"{each.per_hour / unit:+.2f}"
        sizes.add_row(each.role, each.what + (" (MiB)" if unit == MIB else ""), *values, slope, f"{each.over_s:.0f} s")
    console.print(sizes)
    return grown


def write(path: Path, found: Sequence[Result], grown: Sequence[Growth], **about: Any) -> None:
    """Write the result file. `about`: what concerns the whole run."""
    content = {
        **about,
        "machine": results.machine(),
        "testbeds": [
            {
                "etcds": result.etcds,
                "ran_s": round(result.ran_s, 1),
                **result.facts,
                "faults": [asdict(outcome) for outcome in result.outcomes],
                "samples": [asdict(sample) for sample in result.samples],
            }
            for result in found
        ],
        "growth": [asdict(each) for each in grown],
    }
    write_result(path, content)
