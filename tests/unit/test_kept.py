"""Answers that are kept for a while."""

from __future__ import annotations

import pytest

from provisioners import kept
from provisioners.kept import Kept


def test_a_value_is_read_again_after_its_time_and_after_the_clock_was_set_back() -> None:
    values, reads = Kept[str, int](60.0), iter(range(9))
    assert [values.get("a", now, lambda: next(reads)) for now in (100.0, 159.9, 160.0, 100.0)] == [0, 0, 1, 2]


def test_what_cannot_be_read_is_not_kept() -> None:
    values = Kept[str, int](60.0)

    def fail() -> int:
        raise ValueError("nothing")

    with pytest.raises(ValueError, match="nothing"):
        values.get("a", 1.0, fail)
    assert values.get("a", 1.0, lambda: 5) == 5


def test_the_oldest_of_too_many_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_KEPT", 2)
    values = Kept[str, int](60.0)
    for number, name in enumerate("abc"):
        values.put(name, 1.0, number)
    assert [values.known(name, 2.0) for name in "abc"] == [None, (1.0, 1), (1.0, 2)]
