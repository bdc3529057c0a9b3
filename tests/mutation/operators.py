"""Mutation operators: small changes of a module's source, one at a time.

Texts, docstrings, annotations, decorators, classes' keywords, assertions and the defaults of a record's fields are not
mutated: the tests must hold decisions, not their wording or configuration.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

_COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SKIPPED_FIELDS = frozenset({"annotation", "returns", "decorator_list", "bases", "format_spec"})
_PLAIN = (ast.Attribute, ast.Name, ast.Starred, ast.Subscript, ast.UnaryOp)


@dataclass(frozen=True)
class Mutant:
    """One change of a module."""

    line: int
    # Of the changed statement, without nested ones: a test that runs none of them cannot kill the mutant.
    lines: range
    # The qualified name of the outermost function around it, or "".
    function: str
    before: str
    after: str
    # Returns the changed tree: the same object each time, so compile it before the next one is made.
    make: Callable[[], ast.Module]


def mutants(source: str, enums: Mapping[str, list[str]]) -> Iterator[Mutant]:
    """All mutants, in the order of the source. `enums`: the members of each enumeration that the module names."""
    tree = ast.parse(source)
    yield from _Walk(tree, enums).body(tree, "")


class _Walk:
    def __init__(self, tree: ast.Module, enums: Mapping[str, list[str]]) -> None:
        self._tree = tree
        self._enums = enums
        self._lines = range(0)
        self._restore: Callable[[], None] = lambda: None

    def body(self, node: ast.AST, function: str, prefix: str = "") -> Iterator[Mutant]:
        """The mutants below a node."""
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED_FIELDS:
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or _is_skipped(child, node):
                    continue
                inside, below = function, prefix
                if isinstance(child, ast.ClassDef):
                    below = f"{prefix}{child.name}."
                elif isinstance(child, ast.FunctionDef) and not function:
                    inside = f"{prefix}{child.name}"
                if isinstance(child, ast.stmt | ast.match_case):
                    self._lines = _header(child)
                for new in self._changes(child, node, name):
                    yield self._mutant(node, name, index, new, function)
                if isinstance(child, ast.FunctionDef) and not function:
                    yield from self.body(child.args, "", prefix)  # its defaults are evaluated where it is defined
                    for number, statement in enumerate(child.body):
                        yield from self._statement(child, number, statement, inside, below)
                else:
                    yield from self.body(child, inside, below)

    def _statement(
        self, parent: ast.FunctionDef, number: int, child: ast.stmt, function: str, prefix: str
    ) -> Iterator[Mutant]:
        if _is_skipped(child, parent):
            return
        self._lines = _header(child)
        for new in self._changes(child, parent, "body"):
            yield self._mutant(parent, "body", number, new, function)
        yield from self.body(child, function, prefix)

    def _mutant(self, parent: ast.AST, name: str, index: int | None, new: ast.AST | None, function: str) -> Mutant:
        holder = getattr(parent, name)
        old = holder if index is None else holder[index]

        def make() -> ast.Module:
            copy = holder[:] if index is not None else None
            if copy is not None and index is not None:
                copy[index : index + 1] = [] if new is None else [new]
            changed = copy if copy is not None else new
            self._restore()
            setattr(parent, name, changed)
            self._restore = lambda: setattr(parent, name, holder)
            return ast.fix_missing_locations(self._tree)

        line = getattr(old, "lineno", self._lines.start)
        return Mutant(line, self._lines, function, _text(old), "(left out)" if new is None else _text(new), make)

    # -- operators ------------------------------------------------------------------------------------------

    def _changes(self, node: ast.AST, parent: ast.AST, name: str) -> Iterator[ast.AST | None]:
        match node:
            case ast.stmt():
                yield from _changed_statements(node)
            case ast.keyword(arg=str()):
                yield None
            case ast.match_case(body=[ast.Pass()]):
                pass  # without it, the effect would be the same
            case ast.match_case() if isinstance(parent, ast.Match) and len(parent.cases) > 1:
                yield None
            case ast.MatchOr(patterns):
                for index in range(len(patterns)):
                    rest = patterns[:index] + patterns[index + 1 :]
                    yield rest[0] if len(rest) == 1 else ast.MatchOr(rest)
            case ast.expr():
                if name == "ifs":
                    yield None
                elif name in {"test", "guard"} and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
                    yield ast.UnaryOp(ast.Not(), node)
                elif name == "elts" and _may_miss(parent):
                    yield None
                yield from self._changed_expressions(node, parent)

    def _changed_expressions(self, node: ast.expr, parent: ast.AST) -> Iterator[ast.AST | None]:
        match node:
            case ast.Compare(left, [operator], comparators):
                for other in _COMPARISONS[type(operator)]:
                    yield ast.Compare(left, [other()], comparators)
            case ast.BoolOp(operator, values):
                yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
                for index in range(len(values)):
                    rest = values[:index] + values[index + 1 :]
                    yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield operand
            case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
                yield ast.BinOp(left, _OPERATORS[type(operator)](), right)
            case ast.Dict(keys, values) if len(keys) > 1:
                for index in range(len(keys)):
                    yield ast.Dict(keys[:index] + keys[index + 1 :], values[:index] + values[index + 1 :])
            case ast.Call(ast.Name(called), arguments, keywords) if called in _OTHER_FUNCTION:
                yield ast.Call(ast.Name(_OTHER_FUNCTION[called], ast.Load()), arguments, keywords)
            case ast.Call(ast.Name("sorted"), [argument], []):
                yield ast.Call(ast.Name("list", ast.Load()), [argument], [])
            case _:
                yield from self._changed_values(node, parent)

    def _changed_values(self, node: ast.expr, parent: ast.AST) -> Iterator[ast.AST | None]:
        match node:
            case ast.Constant(bool() as value):
                yield ast.Constant(not value)
            case ast.Constant(int() | float() as number):
                yield ast.Constant(number + 1)
            case ast.Constant(str() as text) if isinstance(parent, ast.Compare):
                yield ast.Constant(f"{text}XX")
            case ast.JoinedStr() if " " not in _text(node):
                yield ast.Constant("")  # a key or an id, not a text
            case ast.Attribute(ast.Name(owner), member) if member in self._enums.get(owner, ()):
                members = self._enums[owner]
                after = members[(members.index(member) + 1) % len(members)]
                yield ast.Attribute(ast.Name(owner, ast.Load()), after, ast.Load())
            case ast.Slice(lower, upper):
                if lower is not None:
                    yield ast.Slice(None, upper)
                if upper is not None:
                    yield ast.Slice(lower, None)


def _changed_statements(node: ast.stmt) -> Iterator[ast.AST | None]:
    match node:
        case ast.Expr(ast.Call()) | ast.Continue() | ast.Break() | ast.Return(None) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.AugAssign(target, operator, value):
            yield ast.Pass()
            if type(operator) in _OPERATORS:
                yield ast.AugAssign(target, _OPERATORS[type(operator)](), value)


def _header(node: ast.stmt | ast.match_case) -> range:
    first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    if isinstance(node, ast.Match):
        return range(first, node.cases[0].pattern.lineno)
    if body := getattr(node, "body", None):
        return range(first, max(first + 1, body[0].lineno))
    return range(first, (getattr(node, "end_lineno", None) or first) + 1)


def _may_miss(parent: ast.AST) -> bool:
    """Whether an element of this collection may be left out: its elements are alike, unlike those of a record."""
    if isinstance(parent, ast.Set):
        return len(parent.elts) > 1
    if isinstance(parent, ast.Tuple | ast.List) and isinstance(parent.ctx, ast.Load):
        return len(parent.elts) > 1 and all(isinstance(each, _PLAIN) for each in parent.elts)
    return False


def _is_skipped(node: ast.AST, parent: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Expr(ast.Constant()):
            return True
        case ast.keyword() if isinstance(parent, ast.ClassDef):
            return True
        case ast.AnnAssign(annotation=ast.Name("TypeAlias")):
            return True
        case ast.AnnAssign() if isinstance(parent, ast.ClassDef):
            return True
        case _:
            return False


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Slice):
        return ast.unparse(ast.Subscript(ast.Name("", ast.Load()), node, ast.Load()))
    if isinstance(node, ast.match_case):
        guard = f" if {ast.unparse(node.guard)}" if node.guard else ""
        return f"case {ast.unparse(node.pattern)}{guard}"
    return " ".join(ast.unparse(node).split())
