"""`make ci`: run the checks beside the tests; run up to three failed tests once more, alone; say what took how long.

Writes build/ci: checks.log, collection.log, first.xml and second.xml (JUnit), landing.json (the table at the end).
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.landing.flaky import Sighting, read_flaky, why_no_rerun
from tools.stages import Stage, Taken, table, wait_for

OUT = Path("build/ci")
FLAKY = Path("tests/flaky.toml")
FAILURES = OUT / "first-cache/v/cache/lastfailed"
TESTS_FAILED = 1  # pytest's exit status; 2 to 5 are its own troubles, which no second run heals
PYTEST = (sys.executable, "-m", "pytest")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if this commit may land."""
    parser = argparse.ArgumentParser(prog="make ci")
    parser.add_argument("--workers", type=int, default=4, help="pytest's processes; two of them run whole jobs")
    parser.add_argument("--checks", default="make check", help="the command that runs beside the tests")
    parser.add_argument("--max-minutes", type=float, default=60, help="after which a stage is ended, and has failed")
    parser.add_argument("--min-free-gb", type=float, default=3, help="of room for temporary files, to begin at all")
    parser.add_argument("pytest", nargs="*", help="more arguments for the first run of pytest")
    options = parser.parse_args(arguments)
    if trouble := _why_no_room(options.min_free_gb):
        print(f"make ci: {trouble}", file=sys.stderr)
        return 1
    shutil.rmtree(OUT, ignore_errors=True)  # pytest's cache keeps failures of tests that a later run leaves out
    OUT.mkdir(parents=True)
    limit_s = options.max_minutes * 60

    with (OUT / "checks.log").open("wb") as log, (OUT / "collection.log").open("wb") as collected:
        # The tests have the CPU first: the checks need a minute of it, the tests a quarter of an hour.
        checking = Stage("checks", shlex.split(options.checks), limit_s, log, niceness=10)
        # In a fresh clone each of pytest's processes would compile all tests, if none had done so before.
        collecting = Stage("collection", [*PYTEST, "--collect-only", "-q", *options.pytest], limit_s, collected)
        (collection,) = wait_for(collecting, beside=[checking])
        testing = Stage("tests", [*PYTEST, "-n", str(options.workers), *_results("first"), *options.pytest], limit_s)
        first, checks = wait_for(testing, checking)
    print((OUT / "checks.log").read_text(errors="replace"), flush=True)
    again = _run_again(limit_s) if first.status == TESTS_FAILED else None
    taken = [collection, first, checks] + ([again] if again else [])
    (OUT / "landing.json").write_text(json.dumps([each.as_json() for each in taken], indent=1))
    print(table(taken))
    return 0 if checks.status == 0 and (again or first).status == 0 else 1


def _results(name: str) -> list[str]:
    return [f"--junitxml={OUT / name}.xml", "-o", f"cache_dir={OUT / name}-cache"]


def _why_no_room(min_free_gb: float) -> str:
    """Return what is to be done where a full disk would fail hundreds of tests, or ""."""
    folder = tempfile.gettempdir()
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb >= min_free_gb:
        return ""
    return f"{folder} has {free_gb:.1f} GB left, and the tests take {min_free_gb:.0f}: make room, or set TMPDIR"


def _run_again(limit_s: float) -> Taken | None:
    """Run failed tests once more where the rules allow it, and say loudly what came of it."""
    if not FAILURES.is_file():
        _say([f"Not run once more: pytest has not written {FAILURES}. Is the disk full?"])
        return None
    failed = list(json.loads(FAILURES.read_text()))
    today = datetime.now(UTC).date()
    if refusal := why_no_rerun(failed, read_flaky(FLAKY), today):
        _say([f"Not run once more: {refusal}.", *failed])
        return None
    (again,) = wait_for(Stage("tests once more", [*PYTEST, "-n", "0", "-m", "", *_results("second"), *failed], limit_s))
    if again.status != 0:
        _say(["Failed, and failed again when run once more, alone:", *failed])
        return again
    _say(["FLAKY: failed, and passed when run once more, alone:", *failed])
    print("Before the next landing, open an issue for each and add to tests/flaky.toml:\n")
    print("\n\n".join(Sighting(test, today, _commit(), "").as_toml() for test in failed), "\n", flush=True)
    return again


def _say(lines: Sequence[str]) -> None:
    width = max(map(len, lines))
    print("\n" + "#" * (width + 4), *(f"# {line:{width}} #" for line in lines), "#" * (width + 4), sep="\n", flush=True)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
