"""Everything that is tried again without end has an alert that tells people first, and a row in docs/alerts.md: P15."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.retries import ENDS, RETRIES, Retry, sites, sites_of, written

TESTS = Path(__file__).resolve().parent.parent
NAMED = [site for each in RETRIES for site in each.sites]


def test_whatever_is_tried_again_without_end_is_named_with_its_alert() -> None:
    unknown = set(sites()) - set(NAMED) - ENDS.keys()
    assert not unknown, (
        f"tried again, it seems, and nobody is told: {sorted(unknown)}. Yield a Problem for it (planner/problems.py), "
        "and add it to RETRIES in tools/retries.py; or to ENDS, with why it ends"
    )


def test_what_is_named_is_there_once() -> None:
    assert set(NAMED) | ENDS.keys() <= set(sites()), "rows of what is no more: take them out of tools/retries.py"
    assert len(NAMED) == len(set(NAMED))
    assert not set(NAMED) & ENDS.keys()


@pytest.mark.parametrize("each", RETRIES, ids=[each.what for each in RETRIES])
def test_a_test_shows_its_alert_or_it_is_said_why_nobody_is_told(each: Retry) -> None:
    if each.alert is None:
        assert len(each.after) > 20
        return
    assert each.alert.alert is not None
    path, _, name = each.test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8")


def test_the_document_has_them() -> None:
    assert [path.name for path, text in written().items() if path.read_text(encoding="utf-8") != text] == [], (
        "make docs"
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f():\n    while True:\n        try:\n            g()\n        except OSError:\n            pass", ["f"]),
        ("class A:\n    def f(self):\n        while not self._stopping.wait(1.0):\n            g()", ["A.f"]),
        ("def f():\n    while left:\n        with suppress(OSError):\n            g()", ["f"]),
        ("def f(node):\n    return replace(node, retry_at=5.0)", ["f"]),
        ("class A:\n    def f(self):\n        self._next_at[name] = 5.0", ["A.f"]),
        ("class A:\n    def follow(self):\n        self.look()", ["A.follow"]),
        ('tasks = [Task("backup", CRON, run)]', ["backup"]),
        ("Action: TypeAlias = Launch | Find", ["Launch", "Find"]),
        ("def f():\n    while items:\n        items.pop()", []),
        ("def f():\n    for each in items:\n        try:\n            g()\n        finally:\n            h()", []),
    ],
)
def test_what_looks_like_a_retry_is_found(source: str, found: list[str]) -> None:
    assert sites_of(source, "supervisor/runtime/new.py") == found
