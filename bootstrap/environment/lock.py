"""What an environment is built from: a requirements file or uv.lock, found in the code, identified by its content."""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from bootstrap.archive import Archive
from bootstrap.container.image import SCHEME
from bootstrap.errors import PackError

MAX_FILES = 32
MAX_BYTES = 16_000_000

_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=|(?<=-[rc]))(?P<file>\S+)")
_OF_THE_CODE = re.compile(r"(?:-e|--editable)\b|\.{1,2}(?:/|\[|\s|$)|file:|[\w.-]+\s*@\s*file:")


@dataclass(frozen=True, slots=True)
class Lock:
    """A requirements file of the code, or its uv.lock."""

    kind: Literal["requirements", "uv"]
    file: str
    sha256: str
    """Of the file and of all that it includes, in hex."""


def lock_of(code: Archive, wanted: str) -> Lock | None:
    """The lock of a job's code: `wanted` is "uv" or a requirements file's name; "image" and container images have none.

    Raises PackError.
    """
    if wanted == "image" or wanted.startswith(SCHEME):
        return None
    if wanted == "uv":
        return _uv_lock(code)
    texts = _requirements(code, wanted)
    parts = (part for name, text in sorted(texts.items()) for part in (name.encode(), text))
    return Lock("requirements", wanted, sha256(b"\0".join(parts)).hexdigest())


def _uv_lock(code: Archive) -> Lock:
    texts = _members(code, {"uv.lock", "pyproject.toml"})
    for name in ("uv.lock", "pyproject.toml"):
        if name not in texts:
            raise PackError(f"`environment: uv` needs {name} at the top of the code, but it is missing; run `uv lock`")
    try:
        lock = tomllib.loads(texts["uv.lock"].decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PackError(f"uv.lock is not valid TOML: {error}; run `uv lock`") from error
    for package in lock.get("package", ()):
        source = package.get("source", {})
        path = next((source[key] for key in ("editable", "directory", "path") if key in source), ".")
        if path != ".":
            raise PackError(
                f"uv.lock takes {package.get('name')} from {path!r}, which exists only on your computer; "
                "an environment is built once for all nodes: take the package from an index"
            )
    return Lock("uv", "uv.lock", sha256(b"\0".join((texts["uv.lock"], texts["pyproject.toml"]))).hexdigest())


def _requirements(code: Archive, wanted: str) -> dict[str, bytes]:
    """The file and all that it includes, by name. An include outside the code is refused."""
    found: dict[str, bytes] = {}
    ask = {wanted}
    while ask:
        texts = _members(code, ask)
        for name in sorted(ask):
            if name not in texts:
                raise PackError(f"`environment: {wanted}` needs {name}, which is not in the code; check .spotsupignore")
        found |= texts
        if len(found) > MAX_FILES:
            raise PackError(f"{wanted} includes more than {MAX_FILES} files")
        ask = {include for name, text in texts.items() for include in _includes(name, text)} - found.keys()
    return found


def _includes(name: str, text: bytes) -> list[str]:
    includes = []
    for line in text.decode(errors="replace").splitlines():
        text_line = line.strip()
        if match := _INCLUDE.match(text_line):
            if "://" not in match["file"]:
                includes.append(posixpath.normpath(posixpath.join(posixpath.dirname(name), match["file"])))
        elif _OF_THE_CODE.match(text_line):
            raise PackError(
                f"{name} installs {text_line!r} from the code itself; an environment is built once for all nodes, and "
                "the code is on their path anyway: remove that line"
            )
    return includes


def _members(code: Archive, names: set[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(code.data), mode="r:gz") as tar:
            for member in tar:
                name = posixpath.normpath(member.name)
                if name in names and member.isfile():
                    if member.size > MAX_BYTES:
                        raise PackError(f"{name} has {member.size} bytes, which is not a list of packages")
                    file = tar.extractfile(member)
                    found[name] = file.read() if file else b""
    except (tarfile.TarError, OSError, EOFError) as error:
        raise PackError(f"the code cannot be unpacked: {error}") from error
    return found
