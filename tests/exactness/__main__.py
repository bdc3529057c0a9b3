"""`make exactness`: trainings over many membership changes, each compared with one that nothing interrupts.

Prints the table of docs/training/data.md, in Markdown; exits non-zero if a row is not exact.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.exactness.membership import MODES, Outcome, run

HEAD = "| | processes | parked | killed | steps | of these repeated | samples repeated, missed | weights |"


def row(outcome: Outcome) -> str:
    """A row of the table."""
    worlds = " to ".join(map(str, sorted({min(outcome.worlds), max(outcome.worlds)})))
    weights = "the same bits" if outcome.difference == 0 else f"within {outcome.difference:.0e}"
    counts = f"{outcome.parked} | {outcome.killed} | {outcome.steps} | {outcome.repeated}"
    samples = f"{outcome.samples_repeated}, {outcome.samples_missed}"
    return f"| {outcome.name} | {worlds} | {counts} | {samples} | {weights} |"


def main() -> int:
    """Print row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(MODES), help=f"of {', '.join(MODES)}")
    options = parser.parse_args()
    print(HEAD, "|---" * 8 + "|", sep="\n", flush=True)
    exact = True
    for key in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(key, options.changes, options.seed, Path(folder))
        exact = exact and outcome.exact
        print(row(outcome) + ("" if outcome.exact else "  NOT EXACT"), flush=True)
        print(f"{key}: {outcome.wall_s:.0f} s", file=sys.stderr, flush=True)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
