"""The small wrongs of `make mutation`: each is one change, and the source is whole again for the next."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.operators import mutants


def wrongs(source: str) -> list[tuple[str, str]]:
    return [(each.before, each.after) for each in mutants(source, {"N": ["A", "B"]})]


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""',
        'x = "a text for people"',
        "import a",
        "assert a < 3",
        "x: Literal[3]",
        "@f(a=3)\ndef g() -> T[3]: return x",
        "class C:\n    x: int = 3",
        "X: TypeAlias = a | b",
    ],
)
def test_what_is_no_decision_is_left_alone(source: str) -> None:
    assert wrongs(source) == []


SOURCE = """
class C:
    def f(self, a=1):
        if a and (
            self.b
        ):
            return [c for c in a if c > 2]
        return None
"""


def test_each_change_is_alone_and_says_where_it_is() -> None:
    whole = ast.unparse(ast.parse(SOURCE))
    found = list(mutants(SOURCE, {}))
    texts = [ast.unparse(each.make()) for each in found]
    assert whole not in texts
    assert len(set(texts)) == len(texts)
    assert {each.function for each in found if each.before != "1"} == {"C.f"}
    assert next(each.function for each in found if each.before == "1") == "", "a default is made where it is defined"
    assert next(each.lines for each in found if each.before == "a and self.b") == range(4, 7)
