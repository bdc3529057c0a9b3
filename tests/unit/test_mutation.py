"""The mutants of `make mutation`: each is one change, and the source is restored for the next."""

from __future__ import annotations

import ast
import sys
from types import ModuleType

import pytest

from tests.mutation import run
from tests.mutation.operators import mutants

pytestmark = pytest.mark.long


def changes(source: str) -> list[tuple[str, str]]:
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
        "class C(D, total=False):\n    x: int",
        "X: TypeAlias = a | b",
    ],
)
def test_source_without_a_decision_has_no_mutants(source: str) -> None:
    assert changes(source) == []


SOURCE = """
class C:
    def f(self, a=1):
        if a and (
            self.b
        ):
            return [c for c in a if c > 2]
        return None
"""


def test_each_mutant_is_one_change_and_names_its_place() -> None:
    whole = ast.unparse(ast.parse(SOURCE))
    found = list(mutants(SOURCE, {}))
    texts = [ast.unparse(each.make()) for each in found]
    assert whole not in texts
    assert len(set(texts)) == len(texts)
    assert {each.function for each in found if each.before != "1"} == {"C.f"}
    assert next(each.function for each in found if each.before == "1") == "", "a default belongs to no function"
    assert next(each.lines for each in found if each.before == "a and self.b") == range(4, 7)


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
def test_each_kind_of_mutant(source: str, before: str, after: str) -> None:
    assert (before, after) in changes(source)


PROPERTIES = """
class P:
    @property
    def a(self):
        return 1

    @a.setter
    def a(self, b):
        self.c = b + 1

    @cached_property
    def d(self):
        return 3

    @staticmethod
    def e():
        return 4
"""


def test_each_mutant_replaces_the_code_of_its_own_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mutated", "")
    exec(compile(f"from functools import cached_property{PROPERTIES}", "a file", "exec"), vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, "mutated", module)
    found = []
    for each in mutants(PROPERTIES, {}):
        code = run.code_of(compile(each.make(), "a file", "exec"), each.function, each.line)
        assert code is not None
        function = run.function_of("mutated", code)
        found.append((each.before, function.__code__.co_firstlineno, code.co_firstlineno))
    assert found == [("1", 3, 3), ("b + 1", 7, 7), ("1", 7, 7), ("3", 11, 11), ("4", 15, 15)]


def test_a_mutant_at_import_meets_tests_that_run_its_module_or_only_read_tables() -> None:
    (mutant,) = mutants("x = 3", {})
    for runs, meets in (({"a": [5]}, True), ({}, True), ({"b": [5]}, False)):
        assert run.test_of("t", 0.0, runs).meets("a", mutant) is meets
