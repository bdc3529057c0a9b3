"""Packs a folder of code: the same content gives the same bytes, on any machine and at any time."""

from __future__ import annotations

import fnmatch
import gzip
import io
import os
import stat
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from spotsup.errors import PackError

IGNORE_FILE = ".spotsupignore"
ALWAYS_EXCLUDED = (".git", "__pycache__", ".venv", "node_modules", "*.pyc")
MAX_ENTRIES = 100_000

_COMPRESSION = 6
# Of a file of at least so many bytes, as many from its middle are compressed first: where they do not shrink by a
# tenth, as of weights, images and archives, the file is stored as it is, in a hundredth of the time.
_SAMPLE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Archive:
    """A tar.gz, identified by its content."""

    sha256: str
    """Of `data`, in hex."""
    data: bytes = field(repr=False)

    @classmethod
    def of(cls, data: bytes) -> Archive:
        """Return the archive with this content."""
        return cls(sha256(data).hexdigest(), data)

    @property
    def name(self) -> str:
        """Return the name of the folder that it is unpacked into."""
        return self.sha256[:16]


@dataclass(frozen=True)
class _Entry:
    """A file, folder or link to pack: its path below the folder, and its `lstat`."""

    name: PurePosixPath
    path: Path
    stat: os.stat_result


class _Packed(io.RawIOBase):
    """A gzip of several members (RFC 1952, 2.2): what does not shrink is stored in a member of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = io.BytesIO()
        self._written = 0
        self._level = _COMPRESSION
        self._member = self._begun()

    @property
    def data(self) -> bytes:
        """Return all of it, once it is closed."""
        return self._buffer.getvalue()

    def use(self, level: int) -> None:
        """Use it for what is written from now on."""
        if level != self._level:
            self._member.close()
            self._level = level
            self._member = self._begun()

    def write(self, data: Any) -> int:
        """As a file does."""
        self._written += len(data)
        return self._member.write(data)

    def tell(self) -> int:
        """As a file does."""
        return self._written

    def close(self) -> None:
        """End the last member."""
        self._member.close()
        super().close()

    def _begun(self) -> gzip.GzipFile:
        return gzip.GzipFile(fileobj=self._buffer, mode="wb", compresslevel=self._level, filename="", mtime=0)


def pack_directory(path: Path, *, limit_bytes: int, exclude: Sequence[str] = (), prefix: str = "") -> Archive:
    """Everything below `path` as a deterministic tar.gz, below `prefix` if one is given.

    Excluded: `ALWAYS_EXCLUDED`, `exclude`, and the patterns of `path/.spotsupignore`, one per line as in .gitignore:
    `#` comments, `name` or `*.ext` at any depth, `/name` or `a/b` from the top, `**` for any depth, `name/` for folders
    only; no `!`. Kept: content, names, the executable bit, links within the folder. Not kept: owner, times, modes.
    `limit_bytes` bounds the sum of the files' sizes. Raises PackError.
    """
    if not path.is_dir():
        raise PackError(f"{path} is not a folder; name the folder that holds the code")
    patterns = (*ALWAYS_EXCLUDED, *exclude, *_ignore_file(path))
    entries = sorted(_walk(path, patterns), key=lambda entry: entry.name.parts)
    _check_size(path, entries, limit_bytes)
    packed = _Packed()
    with closing(packed), tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            _add(tar, packed, entry, PurePosixPath(prefix) / entry.name, path)
    return Archive.of(packed.data)


def _ignore_file(path: Path) -> tuple[str, ...]:
    try:
        lines = (path / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{path / IGNORE_FILE} cannot be read: {error}") from error
    patterns = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    for pattern in patterns:
        if pattern.startswith("!"):
            raise PackError(f"{path / IGNORE_FILE}: `{pattern}` includes a file again, which is not supported")
    return patterns


def _walk(path: Path, patterns: Sequence[str]) -> Iterator[_Entry]:
    folders = [PurePosixPath()]
    seen = 0
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(path / folder) as found:
                children = [(child.name, child.stat(follow_symlinks=False)) for child in found]
        except OSError as error:
            raise PackError(f"{path / folder} cannot be read: {error.strerror}") from error
        for child, status in children:
            name = folder / child
            is_folder = stat.S_ISDIR(status.st_mode)
            if any(_matches(name, is_folder, pattern) for pattern in patterns):
                continue
            seen += 1
            if seen > MAX_ENTRIES:
                raise PackError(
                    f"{path} holds more than {MAX_ENTRIES} files; list what is not code in {IGNORE_FILE}, "
                    f"such as {name.parts[0]}"
                )
            if is_folder:
                folders.append(name)
            yield _Entry(name, path / name, status)


def _matches(name: PurePosixPath, is_folder: bool, pattern: str) -> bool:
    """True if it matches by the rules of .gitignore. Never called for what is below an excluded folder."""
    if pattern.endswith("/") and not is_folder:
        return False
    wanted = pattern.rstrip("/")
    if "/" not in wanted:
        return fnmatch.fnmatchcase(name.name, wanted)
    return _parts_match(name.parts, tuple(wanted.lstrip("/").split("/")))


def _parts_match(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_parts_match(parts[start:], wanted[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and _parts_match(parts[1:], wanted[1:])


def _check_size(path: Path, entries: Sequence[_Entry], limit_bytes: int) -> None:
    files = [entry for entry in entries if stat.S_ISREG(entry.stat.st_mode)]
    total = sum(entry.stat.st_size for entry in files)
    if total <= limit_bytes:
        return
    by_top: Counter[str] = Counter()
    for entry in files:
        by_top[entry.name.parts[0] + ("/" if len(entry.name.parts) > 1 else "")] += entry.stat.st_size
    largest = ", ".join(f"{name} ({_megabytes(size)})" for name, size in by_top.most_common(3))
    raise PackError(
        f"{path} holds {_megabytes(total)}, more than the {_megabytes(limit_bytes)} that may be shipped; "
        f"list what is not code in {IGNORE_FILE}; largest: {largest}"
    )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _add(tar: tarfile.TarFile, packed: _Packed, entry: _Entry, name: PurePosixPath, root: Path) -> None:
    info = tarfile.TarInfo(str(name))  # owner 0, no owner's name, mtime 0
    mode = entry.stat.st_mode
    if stat.S_ISDIR(mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    elif stat.S_ISLNK(mode):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, _link_target(entry, root)
        tar.addfile(info)
    elif stat.S_ISREG(mode):
        info.mode = 0o755 if mode & stat.S_IXUSR else 0o644
        _add_file(tar, packed, info, entry.path)
    else:
        raise PackError(f"{entry.path} is not a file, folder or link; list it in {IGNORE_FILE}")


def _add_file(tar: tarfile.TarFile, packed: _Packed, info: tarfile.TarInfo, path: Path) -> None:
    try:
        with path.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            packed.use(_COMPRESSION if _shrinks(file, info.size) else 0)
            tar.addfile(info, file)
    except OSError as error:
        raise PackError(f"{path} cannot be packed: {error.strerror or 'it was truncated meanwhile'}") from error


def _shrinks(file: BinaryIO, size: int) -> bool:
    if size < _SAMPLE_BYTES:
        return True
    file.seek((size - _SAMPLE_BYTES) // 2)
    sample = file.read(_SAMPLE_BYTES)
    file.seek(0)
    return len(zlib.compress(sample, 1)) < 0.9 * len(sample)


def _link_target(entry: _Entry, root: Path) -> str:
    target = entry.path.readlink()
    inside = Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(root))
    if target.is_absolute() or not inside:
        raise PackError(
            f"{entry.path} is a link to {target}, outside {root}; copy the file into it, or list the link in "
            f"{IGNORE_FILE}"
        )
    return str(target)
