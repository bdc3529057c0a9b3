"""JSON as dataclasses whose fields have their declared types, and bounds (P11). Standard library only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from math import isfinite
from typing import Any, Optional, TypeVar, get_args

Built = TypeVar("Built")

UnixTime = float  # seconds by the writer's clock
FiniteOrNone = Optional[float]  # None also where a program computed NaN or infinity
WholeText = str  # never cut: of a path or a program, what is left would be another one

# Of one text of a message; what is longer is cut. A list has at most so many items.
MAX_TEXT_CHARACTERS = 4096
MAX_ITEMS = 4096
# 2^53: what a double, and so any reader of JSON, holds exactly.
MAX_INTEGER = 2**53
MAX_UNIX_TIME = 1e11  # the year 5138
MAX_NUMBER = 1e15  # of what nodes measure: what is computed from it stays finite


def printable(text: str, max_characters: int = MAX_TEXT_CHARACTERS) -> str:
    """Return a text from elsewhere, cut, without control characters (but line breaks and tabs) and broken Unicode.

    So its size as JSON is bounded, and it can be written anywhere: a control character is six bytes there.
    """
    if len(text) > max_characters:
        text = f"{text[: max_characters - 1]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "\ufffd" for c in text)


# A check returns the value as the message's field has it, or raises ValueError.
_Check = Callable[[Any], Any]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("is not a text")
    return value if len(value) <= MAX_TEXT_CHARACTERS and value.isprintable() else printable(value)


def _whole_text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("is not a text")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is not true or false")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError("is not a whole number of at most 2^53")
    return value


def _number(value: Any) -> float:
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return float(value)
    if type(value) is not float or not isfinite(value):
        raise ValueError("is not a finite number")
    return value


def _measured(value: Any) -> float:
    if not -MAX_NUMBER <= (found := _number(value)) <= MAX_NUMBER:
        raise ValueError(f"is beyond {MAX_NUMBER:g}")
    return found


def _unix_time(value: Any) -> float:
    if not 0 <= (found := _number(value)) <= MAX_UNIX_TIME:
        raise ValueError("is not a time in UNIX seconds")
    return found


def _finite_or_none(value: Any) -> float | None:
    return None if type(value) is float and not isfinite(value) else _optional(_number)(value)


def _optional(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _one_of(allowed: tuple[Any, ...]) -> _Check:
    def check(value: Any) -> Any:
        if type(value) is not str or value not in allowed:
            raise ValueError(f"is none of {', '.join(allowed)}")
        return value

    return check


def _list(check: _Check) -> _Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > MAX_ITEMS:
            raise ValueError(f"is not a list of at most {MAX_ITEMS}")
        return tuple([check(item) for item in value])

    return check_all


def _table(check: _Check) -> _Check:
    def check_all(value: Any) -> dict[str, Any]:
        if type(value) is not dict or len(value) > MAX_ITEMS:
            raise ValueError(f"is not an object of at most {MAX_ITEMS} keys")
        return {_whole_text(key): check(item) for key, item in value.items()}

    return check_all


# The types that fields are declared with. Annotations are read as text: Python 3.9 cannot evaluate `int | None`.
_CHECKS: dict[str, _Check] = {
    "str": _text,
    "int": _integer,
    "float": _measured,
    "bool": _flag,
    "UnixTime": _unix_time,
    "FiniteOrNone": _finite_or_none,
    "WholeText": _whole_text,
}
_fields_of: dict[type, tuple[tuple[str, bool, _Check], ...]] = {}


def _fields(kind: type) -> tuple[tuple[str, bool, _Check], ...]:
    """Name, whether it is required, and check of each field.

    Cached: a member of a large round decodes hundreds of messages at the moment when all others do.
    """
    found = _fields_of[kind] = tuple(
        (
            spec.name,
            spec.default is MISSING and spec.default_factory is MISSING,
            _check_of(ast.parse(str(spec.type), mode="eval").body, kind),
        )
        for spec in fields(kind)
    )
    return found


def _check_of(declared: ast.expr, kind: type) -> _Check:
    if isinstance(declared, ast.BinOp):  # X | None
        return _optional(_check_of(declared.left, kind))
    if isinstance(declared, ast.Subscript) and isinstance(declared.value, ast.Name):
        inside = declared.slice.elts if isinstance(declared.slice, ast.Tuple) else [declared.slice]
        if declared.value.id == "Literal":
            return _one_of(ast.literal_eval(ast.Tuple(inside, ast.Load())))
        # A tuple of one type, or a Mapping from texts to one type.
        if declared.value.id == "tuple":
            return _list(_check_of(inside[0], kind))
        return _table(_check_of(inside[1], kind))
    assert isinstance(declared, ast.Name)
    if declared.id in _CHECKS:
        return _CHECKS[declared.id]
    named = vars(sys.modules[kind.__module__])[declared.id]  # another class there, or an alias of a Literal
    return _one_of(get_args(named)) if get_args(named) else partial(build, named)


def build(kind: type[Built], parsed: Any) -> Built:
    """Return a `kind` from JSON's values, each field of its declared type and bounded. Raises ValueError.

    Texts are cut, and what cannot be printed is replaced; numbers are finite.
    """
    if type(parsed) is not dict:
        raise ValueError("not an object")
    values = {}
    name = ""
    try:
        for name, required, check in _fields_of.get(kind) or _fields(kind):
            if name in parsed:
                values[name] = check(parsed[name])
            elif required:
                raise ValueError("is missing")
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    return kind(**values)
