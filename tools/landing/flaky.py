"""Decide which failed tests are run once more, and which are in quarantine: the rules of docs/contributing/landing.md.

`tests/flaky.toml` has two tables. `[[seen]]`: a test that failed in CI, and passed when it was run once more.
`[[quarantined]]`: a test that runs in `make nightly` only, until a day.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

MAX_RERUN = 3
MAX_SEEN = 3
MAX_QUARANTINED = 10
WINDOW = timedelta(days=14)
# What these folders hold gives the same result each time: a failure there is a fault.
DETERMINISTIC = ("tests/unit/", "tests/sim/")
# These promises are about money and working machines: what holds them is repaired, never put aside.
PROTECTED_PROMISES = ("P1", "P2", "P4", "P10")


@dataclass(frozen=True)
class Sighting:
    """A test that failed in CI and passed when it was run once more; `issue` says where the repair is discussed."""

    test: str
    day: date
    commit: str
    issue: str

    def as_toml(self) -> str:
        """Return the entry for tests/flaky.toml."""
        return "\n".join(
            [
                "[[seen]]",
                f"test = {json.dumps(self.test)}",
                f"day = {self.day}",
                f"commit = {json.dumps(self.commit)}",
                f"issue = {json.dumps(self.issue)}",
            ]
        )


@dataclass(frozen=True)
class Quarantine:
    """A test that does not run in CI from `since` until `until`, the last day."""

    test: str
    since: date
    until: date
    issue: str


@dataclass(frozen=True)
class FlakyTests:
    """What tests/flaky.toml says."""

    seen: tuple[Sighting, ...] = ()
    quarantined: tuple[Quarantine, ...] = ()


def read_flaky(path: Path) -> FlakyTests:
    """Read tests/flaky.toml; no file is an empty one. Raises TypeError where an entry has other keys."""
    if not path.exists():
        return FlakyTests()
    tables = tomllib.loads(path.read_text())
    return FlakyTests(
        seen=tuple(Sighting(**entry) for entry in tables.get("seen", [])),
        quarantined=tuple(Quarantine(**entry) for entry in tables.get("quarantined", [])),
    )


def why_no_rerun(failed: Sequence[str], flaky: FlakyTests, today: date) -> str:
    """Return why these failed tests get no second try, or "" where they do."""
    if len(failed) > MAX_RERUN:
        return f"{len(failed)} tests failed; at most {MAX_RERUN} are run once more"
    if faults := [test for test in failed if test.startswith(DETERMINISTIC)]:
        return f"{faults[0]} is in a folder whose tests give the same result each time: that is a fault"
    often = Counter(each.test for each in flaky.seen if today - each.day <= WINDOW)
    for test in failed:
        if often[test] >= MAX_SEEN:
            return (
                f"{test} has failed now and then {often[test]} times in {WINDOW.days} days: repair it, or put it into "
                f"quarantine in tests/flaky.toml"
            )
    return ""


def protected_files(promises: str) -> frozenset[str]:
    """Return the test files that the text of docs/promises.md names for the protected promises."""
    rows = (line for line in promises.splitlines() if line.startswith("| P"))
    protected = (row for row in rows if row.split("|")[1].strip() in PROTECTED_PROMISES)
    return frozenset(file for row in protected for file in re.findall(r"`(tests/[^`]+\.py)`", row))


def problems(flaky: FlakyTests, protected: Collection[str], today: date) -> list[str]:
    """Return a sentence for each entry in quarantine that may not be there."""
    found = []
    if len(flaky.quarantined) > MAX_QUARANTINED:
        found.append(f"{len(flaky.quarantined)} tests are in quarantine; at most {MAX_QUARANTINED} may be: repair some")
    for each in flaky.quarantined:
        if each.until < today:
            found.append(f"the quarantine of {each.test} ended on {each.until}: repair the test, then delete the entry")
        if each.until - each.since > WINDOW:
            found.append(f"the quarantine of {each.test} is longer than {WINDOW.days} days")
        if each.test.split("::")[0] in protected:
            found.append(f"{each.test} holds a promise that is never put aside (docs/promises.md): repair it")
        if each.test.startswith(DETERMINISTIC):
            found.append(f"{each.test} gives the same result each time: repair it")
    return found
