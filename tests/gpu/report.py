"""The report, written anew after every check: the machine may be taken back at any moment. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsup_trainer.worker_files import replace_file

Row = dict[str, Any]


@dataclass
class Report:
    """What is known so far."""

    folder: Path
    dry: bool
    gpus: int
    at: str
    rows: list[Row] = field(default_factory=list)
    # The check that was cut off.
    unfinished: Row | None = None

    def write(self, state: str) -> None:
        """Replace report.md and report.json; `state` says how far it is."""
        head = {"at": self.at, "dry": self.dry, "gpus": self.gpus, "state": state}
        found = {**head, "checks": self.rows, **({"unfinished": self.unfinished} if self.unfinished else {})}
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / "report.json", json.dumps(found, indent=2).encode())
        rows = [*self.rows, *([self.unfinished] if self.unfinished else [])]
        replace_file(self.folder / "report.md", markdown(rows, dry=self.dry, at=self.at, state=state).encode())


def failed(name: str, why: str, seconds: float, facts: dict[str, object], tail: str) -> Row:
    """Return the row of a check that has left no result: what it had found until then, and the end of its output."""
    row: Row = {"check": name, "what": "", "outcome": "failed", "why": why, "seconds": seconds, "facts": facts}
    return row | ({"traceback": tail} if tail.strip() else {})


def not_run(name: str) -> Row:
    """Return the row of a check for which there was no time."""
    return {"check": name, "what": "", "outcome": "not run", "why": "no time left", "seconds": 0.0}


def markdown(rows: Sequence[Row], *, dry: bool, at: str, state: str) -> str:
    """Return the report as people read it."""
    lines = [
        "# What was seen on a GPU" if not dry else "# A dry run on the CPU: no GPU was used",
        "",
        at,
        "",
        state,
        "",
    ]
    lines += ["| check | outcome | seconds | what it is |", "|---|---|---|---|"]
    lines += [
        f"| {row['check']} | {row['outcome']} | {row['seconds']} | {' '.join(row['what'].split())} |" for row in rows
    ]
    for row in rows:
        lines += ["", f"## {row['check']}", ""]
        lines += [f"{row['outcome']}: {row['why'].splitlines()[0]}"] if "why" in row else []
        lines += [f"- {name}: {value}" for name, value in row.get("facts", {}).items()]
        lines += ["", "```", row["traceback"].rstrip(), "```"] if "traceback" in row else []
    return "\n".join(lines) + "\n"
