"""Files of a checkpoint in an object store, for torch.distributed.checkpoint: each is several objects of equal size.

    __0_0.distcp.00000  __0_0.distcp.00001 …      parts of PART_BYTES, the last one shorter

Parts are written by single requests, several at once, and are whole or not there. So there are no multi-part uploads,
which would be left over, invisible and paid for, where a process is killed, and whose completion may fail although it
was answered with 200.
"""

from __future__ import annotations

import io
import re
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystemBase

from spotsup_trainer.objects.store import TRANSFERS, Object, Store, StoreError

PART_BYTES = 16 * 1024 * 1024
_PART = re.compile(r"(.+)\.(\d{5,})")
_READ_BUFFER_BYTES = 256 * 1024


@dataclass(frozen=True)
class Files:
    """What a folder of a store holds: file -> size in bytes. Raises StoreError if parts of one do not fit together."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Sequence[Object]) -> Files:
        """Make it from a listing in the order of names."""
        sizes: dict[str, int] = {}
        for each in objects:
            if (match := _PART.fullmatch(each.name)) is None:
                continue
            name, number = match[1], int(match[2])
            if sizes.get(name, 0) != number * PART_BYTES:
                raise StoreError(f"a part of {name} before {each.name} is missing or short")
            sizes[name] = sizes.get(name, 0) + each.size
        return cls(sizes)


class ObjectFileSystem(FileSystemBase):  # type: ignore[misc]  # torch is untyped here
    """What DCP asks of a file system, for the files below one folder of a store. Paths are names of files."""

    def __init__(self, store: Store, folder: str, files: Files | None = None) -> None:
        self._store = store
        self._folder = folder
        self._files = files or Files()

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        """To write a file from its start ("wb"), or to read one ("rb")."""
        name = f"{self._folder}/{path}"
        with ThreadPoolExecutor(TRANSFERS, thread_name_prefix="spotsup-objects") as pool:
            if mode == "rb":
                raw = _Reader(self._store, name, self._size(str(path)), pool)
                with io.BufferedReader(raw, _READ_BUFFER_BYTES) as stream:
                    yield stream
                return
            writer = _Writer(self._store, name, pool)
            try:
                yield writer
                writer.finish()
            finally:
                writer.abandon()

    def concat_path(self, path: Any, suffix: str) -> str:  # noqa: ARG002  # DCP's signature, also below
        """`path` is always the folder itself. DCP writes its metadata under another name first, and renames it: here a
        file is complete when the checkpoint's manifest is there, and gets its name at once."""
        return suffix.removesuffix(".tmp")

    def init_path(self, path: Any) -> str:  # noqa: ARG002
        """Do nothing: the folder has no name of its own here."""
        return ""

    def rename(self, path: Any, new_path: Any) -> None:
        """Do nothing: it has its name: see `concat_path`."""
        assert path == new_path, f"{path} was not to be renamed to {new_path}"

    def mkdir(self, path: Any) -> None:
        """Folders need not be made."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        """DCP never guesses this file system."""
        return False

    def exists(self, path: Any) -> bool:
        """True if the file was there when the folder was listed; a new checkpoint begins empty."""
        return str(path) in self._files.sizes

    def rm_file(self, path: Any) -> None:
        """Never asked for: no file exists before it is written."""
        raise AssertionError(f"{path} was not to be deleted")

    def ls(self, path: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all files."""
        return list(self._files.sizes)

    def _size(self, name: str) -> int:
        if name not in self._files.sizes:
            raise FileNotFoundError(f"{self._store.url}/{self._folder} has no {name}")
        return self._files.sizes[name]


class _Writer(io.RawIOBase):
    """A file that is being written, in order. `finish`: all of it is in the store."""

    def __init__(self, store: Store, name: str, pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self._store, self._name, self._pool = store, name, pool
        self._part, self._filled = bytearray(PART_BYTES), 0
        self._count = self._written = 0
        self._sent: deque[Future[None]] = deque()

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def write(self, data: Any, /) -> int:
        """Take a copy of all of `data`, for its memory is the caller's. Raises StoreError of an earlier part."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            length = min(len(view) - at, PART_BYTES - self._filled)
            self._part[self._filled : self._filled + length] = view[at : at + length]
            self._filled += length
            at += length
            if self._filled == PART_BYTES:
                self._send(self._part)
                self._part, self._filled = bytearray(PART_BYTES), 0
        self._written += len(view)
        return len(view)

    def finish(self) -> None:
        """Send the rest, and wait for all parts. Raises StoreError."""
        if self._filled or not self._count:
            self._send(memoryview(self._part)[: self._filled])
        while self._sent:
            self._sent.popleft().result()

    def abandon(self) -> None:
        """Send no more; what is under way ends within its time limit."""
        for each in self._sent:
            each.cancel()

    def _send(self, part: Any) -> None:
        while len(self._sent) >= TRANSFERS:
            self._sent.popleft().result()
        self._sent.append(self._pool.submit(self._store.put, f"{self._name}.{self._count:05d}", part))
        self._count += 1


class _Reader(io.RawIOBase):
    """A file in the store. Whole parts are read, with those that follow, and a few are kept: tensors lie side by side,
    and each is read from its end first."""

    def __init__(self, store: Store, name: str, size: int, pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self._store, self._name, self._size, self._pool = store, name, size, pool
        self._at = 0
        self._parts: OrderedDict[int, Future[bytes]] = OrderedDict()

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As for any file."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill all of `buffer`, but for the file's end. Raises StoreError."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self._at < self._size:
            number, start = divmod(self._at, PART_BYTES)
            part = self._part(number)
            length = min(len(view) - done, len(part) - start)
            if length <= 0:
                raise StoreError(f"{self._store.url}/{self._name}.{number:05d} is shorter than it was written")
            view[done : done + length] = memoryview(part)[start : start + length]
            done += length
            self._at += length
        return done

    def _part(self, number: int) -> bytes:
        ahead = range(number, number + 1 + (TRANSFERS - 1) * (number - 1 in self._parts or number == 0))
        for each in ahead:
            start = each * PART_BYTES
            if start < self._size and each not in self._parts:
                name, length = f"{self._name}.{each:05d}", min(PART_BYTES, self._size - start)
                self._parts[each] = self._pool.submit(self._store.get_range, name, 0, length)
        self._parts.move_to_end(number)
        while len(self._parts) > 2 * TRANSFERS:
            self._parts.popitem(last=False)[1].cancel()
        return self._parts[number].result()


class ObjectReader(FileSystemReader):  # type: ignore[misc]  # torch is untyped here
    """DCP's own, on a folder of a store."""

    def __init__(self, store: Store, folder: str, files: Files) -> None:
        super().__init__("/")
        self.fs = ObjectFileSystem(store, folder, files)
        self.path = self.fs.init_path("")


def on_store(writer: FileSystemWriter, store: Store, folder: str) -> None:
    """Make DCP's writer write to a folder of a store."""
    writer.fs = ObjectFileSystem(store, folder)
    writer.path = writer.fs.init_path("")
    writer.sync_files = False  # there is nothing to sync: a part is written when its request is answered
