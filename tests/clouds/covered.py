"""What of the providers' own descriptions the tests' requests and answers have met, counted per document.

Each process counts for itself, and writes its counts to $SPOTSUP_CONTRACT_COVERAGE when it ends, if that names a
folder. `python -m tests.clouds.covered FOLDER` prints the table of all processes.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = "SPOTSUP_CONTRACT_COVERAGE"
WAYS = ("request", "answer")

# (document, "request" or "answer") -> operation -> how many were checked; and the members (type.member) that they had.
_calls: dict[tuple[str, str], Counter[str]] = {}
_members: dict[tuple[str, str], set[str]] = {}


def note_call(document: str, way: str, operation: str) -> None:
    """Count one request or answer that was checked."""
    _calls.setdefault((document, way), Counter())[operation] += 1


def note_member(document: str, way: str, member: str) -> None:
    """Note a member of a type, as `TYPE.MEMBER`."""
    _members.setdefault((document, way), set()).add(member)


def write(folder: Path) -> None:
    """Write this process's counts."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {
        document: {
            way: {"calls": _calls.get((document, way), {}), "members": sorted(_members.get((document, way), ()))}
            for way in WAYS
        }
        for document in sorted({document for document, _ in (*_calls, *_members)})
    }
    (folder / f"{os.getpid()}.json").write_text(json.dumps(found))


def table(folder: Path) -> str:
    """Return the counts of all processes, as a table in Markdown."""
    calls: dict[tuple[str, str], Counter[str]] = {}
    members: dict[tuple[str, str], set[str]] = {}
    for file in sorted(folder.glob("*.json")):
        found: dict[str, dict[str, Any]] = json.loads(file.read_text())
        for document, ways in found.items():
            for way, what in ways.items():
                calls.setdefault((document, way), Counter()).update(what["calls"])
                members.setdefault((document, way), set()).update(what["members"])
    rows = ["| document | operations | requests checked | their members | answers checked | their members |"]
    rows.append("|---|---|---|---|---|---|")
    for document in sorted({document for document, _ in calls}):
        asked, answered = (calls.get((document, way), Counter()) for way in WAYS)
        of_asked, of_answered = (len(members.get((document, way), ())) for way in WAYS)
        cells = (document, len({*asked, *answered}), asked.total(), of_asked, answered.total(), of_answered)
        rows.append(f"| {' | '.join(f'{each:,}' if isinstance(each, int) else each for each in cells)} |")
    return "\n".join(rows)


if os.environ.get(FOLDER):
    atexit.register(lambda: write(Path(os.environ[FOLDER])))

if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
