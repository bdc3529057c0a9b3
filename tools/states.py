"""Writes the state diagrams of docs/contributing/architecture.md from tables of supervisor/model.py: `make docs`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from supervisor.model import JOB_EDGES, NODE_EDGES, JobState, NodeState

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "contributing" / "architecture.md"
# As many arrows with one end and one reason are a row of the table below the diagram, not lines in it.
MIN_COMMON = 4

State = TypeVar("State", bound=StrEnum)


def updated(text: str) -> str:
    """Return the document with both diagrams as the tables have them."""
    text = put(text, "states of a node", states(NodeState, NODE_EDGES))
    return put(text, "states of a job", states(JobState, JOB_EDGES))


def put(text: str, what: str, written: str) -> str:
    """Return the document with what is written for its part of this name."""
    begin, end = f"<!-- {what}: written by `make docs` -->\n", "<!-- end -->"
    before, found, rest = text.partition(begin)
    assert found, f"there is no place for the {what}"
    return before + begin + written + rest[rest.index(end) :]


def states(kind: type[State], edges: Mapping[tuple[State, State], str]) -> str:
    """Return a Mermaid diagram of the edges, and a table of those that many states have in common."""
    common = _common(edges)
    arrows = [
        f"    {start} --> {end}: {_label(reason)}"
        for (start, end), reason in edges.items()
        if start not in common.get((end, reason), ())
    ]
    rows = [
        f"| {', '.join(f'`{start}`' for start in starts)} | `{end}` | {reason} |"
        for (end, reason), starts in common.items()
    ]
    diagram = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(kind))}", *arrows, "```"]
    return "\n".join([*diagram, "", "Besides:", "", "| from | to | reason |", "|---|---|---|", *rows, ""])


def _common(edges: Mapping[tuple[State, State], str]) -> dict[tuple[State, str], list[State]]:
    found: defaultdict[tuple[State, str], list[State]] = defaultdict(list)
    for (start, end), reason in edges.items():
        found[end, reason].append(start)
    return {key: sorted(starts, key=_place) for key, starts in found.items() if len(starts) >= MIN_COMMON}


def _place(state: StrEnum) -> int:
    return list(type(state)).index(state)


def _label(reason: str) -> str:
    # Mermaid ends a label at a colon or a semicolon.
    return re.sub(r"\s*[:;]", ",", reason)


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
