"""What a program imports before it does anything else, read from its text: that much can be imported before it starts.

Only the top of the program counts, up to the first statement that may change what an import does: a call, a variable of
the environment, a path. Modules of the program's own folder are read in the same way, and never imported: they are the
program. Runs nothing of it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

MAX_IMPORTS = 200  # statements
_MAX_FILES = 100  # of the program's own
_MAX_FILES_EVERYWHERE = 30  # each of whole files takes some 10 ms; what is gained is a second
_MAX_BYTES = 1024 * 1024  # of each


@dataclass(frozen=True)
class Import:
    """`import module`, and what `from module import …` names: that may load more."""

    module: str
    names: tuple[str, ...] = ()


# What torch imports by itself as a program makes its first optimizer: half a second of each worker's start.
BY_OPTIMIZERS = Import("torch._dynamo")
# In the text of a program that may set a variable which that one reads.
_ITS_VARIABLES = re.compile(rb"TORCH_?(DYNAMO|INDUCTOR|COMPILE)")


def imports_of(program: str, folder: Path, *, is_module: bool) -> tuple[Import, ...]:
    """Return the imports at the top of a program, in order, and what torch adds to them.

    A script, or with `is_module` a module that `python -m` finds: in `folder`, the current one, else where installed
    ones are. Nothing where its text cannot be found or parsed: the program itself will say so.
    """
    reading = _read(program, folder, is_module=is_module)
    found = tuple(reading.found[:MAX_IMPORTS])
    by_torch = any(each.module.partition(".")[0] == "torch" for each in found) and not reading.names_its_variables
    return (*found, BY_OPTIMIZERS) if by_torch else found


def uses_session(program: str, folder: Path, *, is_module: bool) -> bool:
    """Return whether a program imports this package anywhere, in functions and late modules of its own too; also True
    where its text cannot all be read."""
    reading = _read(program, folder, is_module=is_module, everywhere=True)
    return not reading.is_whole or any(each.module.partition(".")[0] == "spotsup_trainer" for each in reading.found)


def _read(program: str, folder: Path, *, is_module: bool, everywhere: bool = False) -> _Reading:
    if is_module:
        top = program.partition(".")[0]
        home, only = (folder, "") if _has(folder, top) else (_installed_in(top), top)
        reading = _Reading(home, only, everywhere=everywhere)
        reading.read_module(program)
    else:
        reading = _Reading(Path(program).resolve().parent, everywhere=everywhere)
        reading.read(Path(program), package="")
    return reading


def _has(folder: Path, top: str) -> bool:
    """Return whether a module, or a package, is in a folder."""
    return (folder / top).is_dir() or (folder / f"{top}.py").is_file()


def _installed_in(top: str) -> Path:
    """Return the folder that has an installed module or package, "" for none. Imports nothing: it is at the top."""
    try:
        spec = find_spec(top)
    except ValueError:  # it is imported, and was made by hand
        spec = None
    if spec is None or spec.origin is None:
        return Path()
    origin = Path(spec.origin)
    return origin.parent.parent if spec.submodule_search_locations is not None else origin.parent


class _Reading:
    """Of one program, whose own modules are below `home`: all of them, or with `only` this one and what is below it.
    `everywhere`: what is imported at any place of their text, not at its top alone."""

    def __init__(self, home: Path, only: str = "", *, everywhere: bool) -> None:
        self.found: list[Import] = []
        self.names_its_variables = False
        self.is_whole = True  # nothing was left out as it cannot be read, or is too much
        self._everywhere = everywhere
        self._home = home
        self._only = only
        self._read: set[Path] = set()

    def read_module(self, module: str) -> None:
        """Add what `python -m` imports: the packages that a module is in, then the module, or a package's __main__."""
        parts = module.split(".")
        read = all(self._add_own(".".join(parts[: length + 1])) for length in range(len(parts)))
        if read and self._home.joinpath(*parts).is_dir():
            self._add_own(f"{module}.__main__")

    def read(self, file: Path, package: str) -> bool:
        """Add what a file imports. False when it does more at its top than to import and to define."""
        if file in self._read:
            return True
        if len(self._read) >= (_MAX_FILES_EVERYWHERE if self._everywhere else _MAX_FILES):
            self.is_whole = False
            return False
        self._read.add(file)
        try:
            text, tree = _parsed(file)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            self.is_whole = False
            return False
        self.names_its_variables |= _ITS_VARIABLES.search(text) is not None
        if self._everywhere:
            for each in ast.walk(tree):
                if isinstance(each, (ast.Import, ast.ImportFrom)):
                    self._take(each, package)
            return True
        return all(self._take(statement, package) for statement in tree.body)

    def _take(self, statement: ast.stmt, package: str) -> bool:
        """True if it is to go on behind this statement."""
        if isinstance(statement, ast.Import):
            return all(self._add(alias.name, ()) for alias in statement.names)
        if isinstance(statement, ast.ImportFrom):
            return self._add_from(statement, package)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return True
        if isinstance(statement, ast.If) and _is_for_types(statement.test):
            return True
        # A text, or a constant that gets a name.
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Expr):
            return isinstance(value, ast.Constant)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            return all(isinstance(target, ast.Name) for target in targets) and _is_plain(value)
        return False

    def _add_from(self, statement: ast.ImportFrom, package: str) -> bool:
        if statement.module == "__future__":
            return True
        names = tuple(alias.name for alias in statement.names if alias.name != "*")
        if not statement.level:
            return self._add(statement.module or "", names)
        parts = package.split(".") if package else []
        up = statement.level - 1
        if up > len(parts):
            return False
        base = [*parts[: len(parts) - up], *([statement.module] if statement.module else [])]
        return self._add(".".join(base), names) if base else all(self._add(name, ()) for name in names)

    def _add(self, module: str, names: tuple[str, ...]) -> bool:
        """Add an import, or read a module of the program's own, its packages first, as Python does."""
        parts = module.split(".")
        if not _has(self._home, parts[0]) or (self._only and parts[0] != self._only):
            self.found.append(Import(module, names))
            return True
        own = [".".join(parts[: length + 1]) for length in range(len(parts))]
        own += [f"{module}.{name}" for name in names]
        return all(self._add_own(name) for name in own)

    def _add_own(self, module: str) -> bool:
        path = self._home.joinpath(*module.split("."))
        init, file = path / "__init__.py", path.with_suffix(".py")
        if init.is_file():
            return self.read(init, package=module)
        # Neither: a package without a file, or a name within a module.
        return not file.is_file() or self.read(file, package=module.rpartition(".")[0])


def _parsed(file: Path) -> tuple[bytes, ast.Module]:
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{file} has more than {_MAX_BYTES} bytes")
    text = file.read_bytes()
    return text, ast.parse(text)


def _is_for_types(test: ast.expr) -> bool:
    """`if TYPE_CHECKING:`"""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _is_plain(value: ast.expr | None) -> bool:
    """True for a value that takes no call: constants, names, and what is made of them."""
    if value is None:
        return True
    calls = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Subscript)
    return not any(isinstance(node, calls) for node in ast.walk(value))
