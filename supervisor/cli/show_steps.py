"""What would be done on a node, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

WIDTH = 12  # of the longest step's name, and a space


def show_steps(kinds: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl submit --explain`: per kind of machine what is assumed of it, and its steps in order."""
    for kind in kinds:
        print()
        for line in lines_of(kind):
            print(line)


def lines_of(kind: dict[str, Any]) -> Iterator[str]:
    """One kind of machine."""
    gpus = f" ({kind['gpus']} {kind['gpu'] or 'GPU'})" if kind["gpus"] else ""
    yield f"On each node, {' or '.join(kind['instance_types'])}{gpus}:"
    for sentence in kind["assumed"]:
        yield f"  assumed: {sentence}"
    for step in kind["steps"]:
        for number, text in enumerate(_texts(step)):
            yield f"  {step['step'] if not number else '':<{WIDTH}}{text}"


def _texts(step: dict[str, Any]) -> list[str]:
    if "nothing" in step:
        return [f"nothing needed: {step['nothing']}"]
    if "impossible" in step:
        return [f"impossible, the node would fail: {step['impossible']}"]
    return [_text(command) for command in step["commands"]]


def _text(command: dict[str, Any]) -> str:
    root = "as root" if command.get("as_root") else ""
    limit = f"{command['timeout_s']:g} s at most" if "timeout_s" in command else ""
    notes = ", ".join(note for note in (root, limit) if note)
    return f"{command['what']}  ({notes})" if notes else str(command["what"])
