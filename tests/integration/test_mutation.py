"""The small wrongs of `make mutation`: each is one change, and the source is whole again for the next."""

from __future__ import annotations

import pytest

from tests.unit.test_mutation import wrongs


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        ("x = a < b", "a < b", "a <= b"),
        ("x = a < b", "a < b", "a >= b"),
        ("x = a is None", "a is None", "a is not None"),
        ("x = a and b", "a and b", "a or b"),
        ("x = a and b", "a and b", "b"),
        ("x = not a", "not a", "a"),
        ("x = a + b", "a + b", "a - b"),
        ("x = 3", "3", "4"),
        ("x = True", "True", "False"),
        ("x = a == 'b'", "'b'", "'bXX'"),
        ("x = N.B", "N.B", "N.A"),
        ("x = {a, b}", "a", "(left out)"),
        ("x = {a: b, c: d}", "{a: b, c: d}", "{c: d}"),
        ("x = min(a)", "min(a)", "max(a)"),
        ("x = sorted(a)", "sorted(a)", "list(a)"),
        ("x = a[:b]", "[:b]", "[:]"),
        ("x = [a for a in b if c]", "c", "(left out)"),
        ("f(a=b)", "a=b", "(left out)"),
        ("f()", "f()", "pass"),
        ("x += a", "x += a", "pass"),
        ("if a:\n    pass", "a", "not a"),
        ("match a:\n    case 1 | 2:\n        f()\n    case _:\n        pass", "1 | 2", "2"),
        ("match a:\n    case 1:\n        f()\n    case _:\n        pass", "case 1", "(left out)"),
    ],
)
def test_each_kind_of_wrong(source: str, before: str, after: str) -> None:
    assert (before, after) in wrongs(source)
