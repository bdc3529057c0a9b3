"""What is to be done so that an installation is complete: from what should be there, and what is. Pure.

Nothing that a person may have written is replaced, unless that is asked for; then the old file is kept beside it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

ROOT = "root"


@dataclass(frozen=True, slots=True)
class Account:
    """A system user with a group of its own, who cannot log in."""

    name: str
    home: Path


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, its owner and group, and its mode. With `seed` one that is there is left as it is."""

    path: Path
    mode: int
    owner: str = ROOT
    group: str = ROOT
    seed: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A file. With `seed` its content is made once and then belongs to whoever uses it: it is never compared."""

    path: Path
    data: bytes = field(repr=False)
    mode: int
    owner: str = ROOT
    group: str = ROOT
    seed: bool = False
    # Shown in a difference; never for secrets.
    secret: bool = False


Item: TypeAlias = Account | Folder | File


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a path. `data` is None for a folder, and for a seed, which is not read."""

    mode: int
    owner: str
    group: str
    is_folder: bool
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """The host as it is."""

    users: frozenset[str] = frozenset()
    paths: Mapping[Path, Found] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Make:
    """Make what is missing."""

    item: Account | Folder | File

    def __str__(self) -> str:
        match self.item:
            case Account(name, home):
                return f"make the system user {name}, with the home folder {home}"
            case Folder(path, mode, owner, group):
                return f"make the folder {path} ({owner}:{group}, mode {mode:o})"
            case File(path, _, mode, owner, group):
                return f"write {path} ({owner}:{group}, mode {mode:o})"


@dataclass(frozen=True, slots=True)
class Replace:
    """Write a file anew; the old one becomes `NAME.old`."""

    item: File
    difference: str

    def __str__(self) -> str:
        path = self.item.path
        return f"replace {path}, and keep the old one as {path.name}.old{self.difference}"


@dataclass(frozen=True, slots=True)
class Admit:
    """Set owner and mode."""

    item: Folder | File
    was: str

    def __str__(self) -> str:
        item = self.item
        return f"give {item.path} to {item.owner}:{item.group}, mode {item.mode:o} (it is {self.was})"


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave a file as it is, which is not as it would be written."""

    item: File
    difference: str

    def __str__(self) -> str:
        return f"keep {self.item.path} as it is; --replace would write it anew:{self.difference}"


Step: TypeAlias = Make | Replace | Admit | Keep


def plan(items: Sequence[Item], facts: Facts, *, replace: bool = False) -> tuple[list[Step], list[str]]:
    """Return the steps in order, and why it cannot be done at all: then none is to be taken."""
    steps: list[Step] = []
    problems: list[str] = []
    for item in items:
        if isinstance(item, Account):
            steps += [] if item.name in facts.users else [Make(item)]
            continue
        found = facts.paths.get(item.path)
        if found is None:
            steps.append(Make(item))
        elif found.is_folder is not isinstance(item, Folder):
            kind = "a folder" if found.is_folder else "a file"
            problems.append(f"{item.path} is {kind}: move it away")
        else:
            steps += _differing(item, found, replace=replace)
    return steps, problems


def _differing(item: Folder | File, found: Found, *, replace: bool) -> list[Step]:
    if isinstance(item, File) and not item.seed and found.data != item.data:
        difference = _difference(item, found.data or b"")
        # A new file has its owner and mode; of one that is kept they are its writer's, too.
        return [Replace(item, difference) if replace else Keep(item, difference)]
    if isinstance(item, Folder) and item.seed:
        return []
    if (found.mode, found.owner, found.group) == (item.mode, item.owner, item.group):
        return []
    return [Admit(item, f"{found.owner}:{found.group}, mode {found.mode:o}")]


def _difference(item: File, old: bytes) -> str:
    if item.secret:
        return ""
    lines = difflib.unified_diff(
        old.decode(errors="replace").splitlines(),
        item.data.decode(errors="replace").splitlines(),
        "as it is",
        "as init would write it",
        lineterm="",
        n=0,
    )
    return "".join(f"\n    {line}" for line in lines)
