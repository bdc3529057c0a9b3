"""`make sim-mutants`: the daemon with one of its rules removed. The simulated world must detect each.

A mutant replaces text in a module's source while that module is imported in a process of its own: the daemon has no
switch for it. Text that is missing or not unique is an error: then the rule has moved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from tests.mutation.imports import replace_code
from tests.sim.removed_rules import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


def install(mutant: Mutant | None) -> None:
    """Remove the rule in this process. Raises ValueError if its module is imported, or lacks its text."""
    if mutant is None:
        return
    if mutant.module in sys.modules:
        raise ValueError(f"{mutant.module} is already imported: a mutant needs a process of its own")
    replace_code(mutant.module, mutated(mutant))


def mutated(mutant: Mutant) -> CodeType:
    """Its module without the rule. Raises ValueError if the module lacks the text."""
    folder = ROOT / "trainer" if mutant.module.startswith("spotsup_trainer") else ROOT
    path = (folder / Path(*mutant.module.split("."))).with_suffix(".py")
    source = path.read_text()
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"mutant {mutant.name}: its text occurs {found} times in {path}: update the mutant")
    return compile(source.replace(mutant.old, mutant.new), str(path), "exec")


def _run(asked: tuple[int, float]) -> tuple[int, str]:
    from tests.sim.run import run_seed

    result = run_seed(asked)
    return result.seed, result.broken


def _run_test(test: str) -> bool:
    """Whether a test, or all tests of a file, pass in this process."""
    import pytest

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        status = pytest.main([str(ROOT / "tests" / test), "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"])
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        raise ValueError(f"{test} did not run: pytest ended with {status!r}")
    return status is pytest.ExitCode.OK


def hunt(mutant: Mutant | None, seeds: int, start: int, hours: float, jobs: int) -> dict[str, object]:
    """Run the mutant's test; if it has none, or its test does not detect it, the seeds. Of the unchanged daemon, run
    the tests of all mutants and the seeds. Returns what detected it: the test, how many seeds, which promises."""
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    tests = sorted({each.test for each in ([mutant] if mutant else MUTANTS) if each.test})
    with context.Pool(jobs, initializer=install, initargs=(mutant,)) as pool:
        failed = [
            test for test, passed in zip(tests, pool.map(_run_test, tests, chunksize=1), strict=True) if not passed
        ]
        left = 0 if mutant and failed else seeds
        found = pool.map(_run, [(seed, hours) for seed in range(start, start + left)], chunksize=1)
    broken = {seed: text for seed, text in found if text}
    return {
        "mutant": mutant.name if mutant else "none",
        "found": len(broken) + len(failed),
        "tests": failed,
        "seeds": left,
        "first": min(broken, default=None),
        "by": sorted({text.partition(":")[0] for text in broken.values()}),
        "wall_s": round(time.monotonic() - begun, 1),
    }


def _line(row: Mapping[str, Any]) -> str:
    by = ", ".join([*row["by"], *(test.rpartition("::")[2] for test in row["tests"])])
    how = f"{row['found']:>4} of {row['seeds']} seeds" if row["seeds"] else "    its test"
    return f"{row['mutant']:<66} {how:<17} {by}"


def main() -> int:
    """The command line: exit status 1 if a mutant was not detected, or the unchanged daemon breaks a promise."""
    parser = argparse.ArgumentParser(prog="tests.sim.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=24, help="per mutant")
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="mutants with this in their name")
    args = parser.parse_args()
    rows = []
    for mutant in (None, *MUTANTS):
        if args.only and (mutant is None or args.only not in mutant.name):
            continue
        row = hunt(mutant, args.seeds, args.start, args.hours, args.jobs)
        rows.append(row)
        print(_line(row), flush=True)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "sim-mutants.json").write_text(json.dumps({"rows": rows}))
    missed = [row["mutant"] for row in rows if not row["found"] and row["mutant"] != "none"]
    wrong = any(row["found"] for row in rows if row["mutant"] == "none")
    print(f"sim-mutants: {len(rows)} rows, not detected: {', '.join(map(str, missed)) or 'none'}")
    return 1 if missed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
