"""`make nightly`: run all that CI leaves out. Writes build/nightly.json and a line into docs/verification/nightly.md.

Each part has a time limit, and its output in build/nightly/PART.log. After one that fails the next runs all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tools.stack import ROOT
from tools.stages import Stage, Taken, wait_for

OUT = ROOT / "build" / "nightly"
RECORD = ROOT / "docs" / "verification" / "nightly.md"


@dataclass(frozen=True)
class Part:
    """A command that CI does not run, and what a person reads of it in the record."""

    name: str
    command: str
    max_minutes: float


PARTS = (
    Part("tests", f"{sys.executable} -m pytest -n 4 -m nightly", 60),
    Part("sim", "make sim SEEDS=300", 60),
    Part("frameworks", "make test-frameworks", 40),
    Part("exactness", "make exactness CHANGES=10", 60),
    Part("fuzz", "make fuzz MINUTES=5", 15),
    Part("fuzz-api", "make fuzz-api EXAMPLES=25", 20),
)


@dataclass(frozen=True)
class Ran:
    """What a part took, the last line that it printed, and which tests failed, if it has tests."""

    part: Part
    taken: Taken
    last_line: str
    failed: tuple[str, ...]

    def what_failed(self) -> str:
        """Return the failed tests, or else what the part said last."""
        return ", ".join(self.failed) or self.last_line or f"status {self.taken.status}"

    def as_json(self) -> dict[str, object]:
        """Return the entry of build/nightly.json."""
        return {
            **self.taken.as_json(),
            "command": self.part.command,
            "last_line": self.last_line,
            "failed": self.failed,
        }


def read_output(part: Part, taken: Taken, output: str) -> Ran:
    """Return what the output of a part says: which tests failed, or seeds of the simulated world. What make says is
    left out."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not re.match(r"make(\[\d+\])?: ", line)]
    tests = [line.split()[1] for line in lines if line.startswith(("FAILED tests/", "ERROR tests/"))]
    failed = tuple(tests + [line for line in lines if re.match(r"seed \d+: ", line)])
    return Ran(part, taken, lines[-1].strip("= ") if lines else "", failed)


def record_line(day: str, commit: str, ran: Sequence[Ran]) -> str:
    """Return the row of docs/verification/nightly.md."""
    what = "; ".join(f"{each.part.name} {each.taken.wall_s / 60:.0f} min" for each in ran)
    failed = [each for each in ran if each.taken.status != 0]
    named = "; ".join(f"{each.part.name}: {each.what_failed()}" for each in failed)
    return f"| {day} | {commit} | {what} | {named.replace('|', '/') or '–'} |"


def run_part(part: Part) -> Ran:
    """Run a part to its end, or to its time limit."""
    log = OUT / f"{part.name}.log"
    print(f"{part.name}: {part.command}", flush=True)
    with log.open("wb") as out:
        (taken,) = wait_for(Stage(part.name, shlex.split(part.command), part.max_minutes * 60, out))
    ran = read_output(part, taken, log.read_text(errors="replace"))
    print(f"  status {taken.status} after {taken.wall_s:.0f} s: {ran.last_line}", *ran.failed, sep="\n  ", flush=True)
    return ran


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every part that was asked for passed."""
    parser = argparse.ArgumentParser(prog="make nightly", description=__doc__)
    parser.add_argument("--only", default=",".join(part.name for part in PARTS))
    asked = parser.parse_args(arguments).only.split(",")
    if unknown := set(asked) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in PARTS)}")
    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    day = datetime.now(UTC).date().isoformat()
    ran = []
    for part in PARTS:
        if part.name in asked:
            ran.append(run_part(part))
            found = {"date": day, "commit": commit.stdout.strip(), "cpus": os.cpu_count()}
            report = json.dumps(found | {"parts": [each.as_json() for each in ran]}, indent=1)
            Path(ROOT / "build" / "nightly.json").write_text(report)
    with RECORD.open("a") as record:
        record.write(record_line(day, commit.stdout.strip(), ran) + "\n")
    return 0 if all(each.taken.status == 0 for each in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
