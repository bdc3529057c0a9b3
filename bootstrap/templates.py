"""Fills the shell templates: the `*.sh` files beside the steps that send them to a node.

A template is valid sh as it stands, so shellcheck reads it like any script:

- `@name@` is a hole. It is a word of its own (`user=@user@`, `set -- @places@`) and is filled with a quoted value.
- `. ./functions.sh` on a line of its own includes that file, found from the including file's folder.
- `# shellcheck …` lines are for the checker and are not sent.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent

_INCLUDE = re.compile(r"^\. (\.{1,2}/\S+\.sh)\n", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*# shellcheck .*\n", re.MULTILINE)
_ANY_HOLE = re.compile(r"@\w+@")
_HOLE = re.compile(r"(?:(?<=[ =])|^)@(\w+)@(?=[ ;\n])", re.MULTILINE)


class Quoted(str):
    """A word of sh that is quoted already, such as `"$HOME"/code`."""

    __slots__ = ()


Scalar: TypeAlias = str | int | float
Value: TypeAlias = Scalar | Sequence[Scalar]


def fill(name: str, /, **values: Value) -> str:
    """Return the template `name`, a path below `bootstrap/`, with its holes filled. A sequence fills a hole with many
    words.

    Raises ValueError for a hole without a value, and for a value without a hole.
    """
    text, holes = _template(name)
    if holes != values.keys():
        missing, unused = sorted(holes - values.keys()), sorted(values.keys() - holes)
        raise ValueError(f"{name}: holes without a value: {missing}; values without a hole: {unused}")
    return _HOLE.sub(lambda hole: _quoted_all(values[hole[1]]), text)


@cache
def _template(name: str) -> tuple[str, frozenset[str]]:
    text = _load(ROOT / name)
    return text, frozenset(_HOLE.findall(text))


def _load(path: Path) -> str:
    """Return a template with what it includes. Raises ValueError for a hole that is not a word of its own."""
    text = _DIRECTIVE.sub("", path.read_text(encoding="utf-8"))
    for line in text.splitlines():
        unquoted = sum(_is_unquoted(line[: hole.start()]) for hole in _HOLE.finditer(f"{line}\n"))
        if unquoted < len(_ANY_HOLE.findall(line)):
            raise ValueError(f"{path.relative_to(ROOT)}: a hole is not a word of its own in `{line.strip()}`")
    return _INCLUDE.sub(lambda include: _load((path.parent / include[1]).resolve()), text)


def _is_unquoted(before: str) -> bool:
    return before.count('"') % 2 == before.count("'") % 2 == 0


def _quoted_all(value: Value) -> str:
    if isinstance(value, str | int | float):
        return _quoted(value)
    return " ".join(_quoted(each) for each in value)


def _quoted(value: Scalar) -> str:
    match value:
        case Quoted():
            return value
        case str():
            return shlex.quote(value)
        case bool():
            return str(value).lower()
        case _:
            return f"{value:.15g}"  # as `timeout` and `sleep` take it
