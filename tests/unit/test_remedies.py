"""What a user is told when something is refused has a second part, after a colon or a semicolon, for what to do.
Whether that part helps is for people to judge."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FILES = sorted([*(REPO / "supervisor/api").glob("*.py"), *(REPO / "client/spotsup").glob("*.py")])
ERRORS = {
    "BusyError", "CommandRefusedError", "DaemonUnreachableError", "ForbiddenError", "JournalUnavailableError",
    "NotFoundError", "PackError", "PreconditionError", "SpotsupError", "UntrustedError", "UsageError",
}  # fmt: skip
# Sentences that end with what is shown at "…", which brings what to do, or is the daemon's or a job's own.
ELSEWHERE = {
    "this daemon cannot ask its clouds for offers",  # one of a test: `spotsupd run` makes none
    "spotsupd answered …: …",
    "… is … after … s: …",
    "… is … after … s",  # `wait` was given a limit of the caller's own
    "… …",  # the job's sentence
}


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Each sentence of an error, with … for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in ERRORS:
            continue
        text = node.args[0] if node.args else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield node.lineno, text.value
        elif isinstance(text, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in text.values),
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPO)))
def test_each_refusal_says_what_to_do(path: Path) -> None:
    silent = [f"{line}: {text}" for line, text in sentences(path) if text not in ELSEWHERE and not has_remedy(text)]
    assert not silent


def has_remedy(text: str) -> bool:
    return re.search(r"[:;] \S", text) is not None


def test_a_sentence_without_a_second_part_is_found() -> None:
    assert has_remedy("there is no a: make one")
    assert not has_remedy("there is no a")
    assert sum(len(list(sentences(path))) for path in FILES) > 80
