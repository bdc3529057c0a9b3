"""What an environment is built from: a requirements file or uv.lock, found in the code, identified by its content."""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import re
import tarfile
import tomllib
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from spotsup.archive import MAX_ENTRIES, Archive
from spotsup.errors import PackError

from bootstrap.container.image import SCHEME
from bootstrap.environment.torch import OLDEST, is_supported

# A node's, for the markers of requirements: `torch==2.2.2; sys_platform == "darwin"` is for no node.
_NODE = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}

MAX_FILES = 32
MAX_BYTES = 16_000_000
# Of all that is read of an archive, which itself has up to 32 MiB: code unpacks to less than ten times that.
MAX_UNPACKED_BYTES = 1_000_000_000

_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=|(?<=-[rc]))(?P<file>\S+)")
_OF_THE_CODE = re.compile(r"(?:-e|--editable)\b|\.{1,2}(?:/|\[|\s|$)|file:|[\w.-]+\s*@\s*file:")


@dataclass(frozen=True, slots=True)
class Lock:
    """A requirements file of the code, or its uv.lock."""

    kind: Literal["requirements", "uv"]
    file: str
    sha256: str
    """Of the file and of all that it includes, in hex."""
    requires_python: str = ""
    """The versions of Python that it is for, such as ">=3.10"; "" for any."""


def lock_of(code: Archive, wanted: str, *, torch: bool = True) -> Lock | None:
    """Return the lock of a job's code: `wanted` is "uv" or a requirements file's name; "image" and container images
    have none.

    `torch`: whether the job trains, so that its torch must be one that is supported. Raises PackError.
    """
    if wanted == "image" or wanted.startswith(SCHEME):
        return None
    if wanted == "uv":
        return _uv_lock(code, torch=torch)
    texts = _requirements(code, wanted)
    for name, text in texts.items() if torch else ():
        _check_requirements(name, text)
    parts = (part for name, text in sorted(texts.items()) for part in (name.encode(), text))
    return Lock("requirements", wanted, sha256(b"\0".join(parts)).hexdigest())


def _uv_lock(code: Archive, *, torch: bool) -> Lock:
    texts = _members(code, {"uv.lock", "pyproject.toml"})
    for name in ("uv.lock", "pyproject.toml"):
        if name not in texts:
            raise PackError(f"`environment: uv` needs {name} at the top of the code, but it is missing; run `uv lock`")
    try:
        lock = tomllib.loads(texts["uv.lock"].decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PackError(f"uv.lock is not valid TOML: {error}; run `uv lock`") from error
    for package in lock.get("package", ()):
        if torch and package.get("name") == "torch":
            _check_torch(str(package.get("version", "")), "uv.lock")
        source = package.get("source", {})
        path = next((source[key] for key in ("editable", "directory", "path") if key in source), ".")
        if path != ".":
            raise PackError(
                f"uv.lock takes {package.get('name')} from {path!r}, which exists only on your computer; "
                "an environment is built once for all nodes: take the package from an index"
            )
    digest = sha256(b"\0".join((texts["uv.lock"], texts["pyproject.toml"]))).hexdigest()
    return Lock("uv", "uv.lock", digest, _requires_python(lock))


def _requires_python(lock: dict[str, Any]) -> str:
    text = str(lock.get("requires-python", ""))
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise PackError(f"uv.lock has the `requires-python` {text!r}, which is none; run `uv lock`") from error
    return text


def _check_torch(version: str, where: str) -> None:
    """Raise PackError for a torch that is too old."""
    if not is_supported(version):
        raise PackError(f"{where} names torch {version}, and spotsup needs {OLDEST} or newer: name a newer one there")


def _check_requirements(name: str, text: bytes) -> None:
    """Refuse a torch that is pinned to a version that is too old."""
    for line in text.decode(errors="replace").splitlines():
        try:
            found = Requirement(line.partition(" #")[0].partition(" --")[0].rstrip(" \\"))
        except InvalidRequirement:
            continue
        if found.name.lower() != "torch" or (found.marker is not None and not found.marker.evaluate(_NODE)):
            continue
        for pin in found.specifier:
            if pin.operator in ("==", "===", "<="):
                _check_torch(pin.version.removesuffix(".*"), name)


def _requirements(code: Archive, wanted: str) -> dict[str, bytes]:
    """Return the file and all that it includes, by name. An include outside the code is refused."""
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
    """Files of the code. Its bytes are what someone has uploaded, so what they unpack to is bounded."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=_Unpacked(fileobj=io.BytesIO(code.data)), mode="r:") as tar:
            for count, member in enumerate(tar):
                if count >= MAX_ENTRIES:
                    raise PackError(f"the code has more than {MAX_ENTRIES} files; check .spotsupignore")
                name = posixpath.normpath(member.name)
                if name in names and member.isfile():
                    if member.size > MAX_BYTES:
                        raise PackError(f"{name} has {member.size} bytes, which is not a list of packages")
                    file = tar.extractfile(member)
                    found[name] = file.read() if file else b""
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise PackError(f"the code cannot be unpacked: {error}") from error
    return found


class _Unpacked(gzip.GzipFile):
    """Raises PackError instead of filling memory. tarfile reads names at once, however long they claim to be."""

    def read(self, size: int | None = -1) -> bytes:
        """At most so many bytes."""
        if size is None or not 0 <= size <= MAX_BYTES + tarfile.BLOCKSIZE:
            raise PackError(f"the code has a name of {size} bytes")
        return super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Seek by reading what is between."""
        if offset > MAX_UNPACKED_BYTES:
            raise PackError(f"the code unpacks to more than {MAX_UNPACKED_BYTES:,} bytes; check .spotsupignore")
        return super().seek(offset, whence)
