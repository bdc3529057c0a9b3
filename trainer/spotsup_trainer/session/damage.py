"""Notices damage in a checkpoint's files. torch.save writes a CRC-32 of each record, which torch.load does not compare.

A bit that flipped on its way to a disk, or a block of zeros after a power loss, would else be trained on.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

_WORKERS = 2  # a CRC-32 takes a second per GB or less, without the interpreter's lock; while the next tensor is read
_LOCAL_HEADER_BYTES = 30


class Checked:
    """Before a FileSystemReader of torch.distributed.checkpoint among a class's bases: `read_data` raises ValueError
    where a record is not what was written."""

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read as DCP's own; each tensor is compared while the next one is read."""
        self._compared: list[Future[None]] = []
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="spotsup-compare") as self._pool:
            try:
                return super().read_data(plan, planner)  # type: ignore[misc]  # of the class beside
            finally:  # of what torch cannot read at all, damage is the better answer, too
                for each in self._compared:
                    each.result()

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        raw = super()._slice_file(file, sinfo).read()  # type: ignore[misc]
        self._compared.append(self._pool.submit(compare, raw, f"{sinfo.relative_path} at {sinfo.offset}"))
        return io.BytesIO(raw)


def compare(raw: bytes, where: str) -> None:
    """Raise ValueError if something that torch.save has written is damaged."""
    view = memoryview(raw)
    try:
        records = zipfile.ZipFile(io.BytesIO(raw)).infolist()
    except zipfile.BadZipFile as error:
        raise ValueError(f"{where} is damaged: {error}") from None
    for record in records:
        # In front of the data, names and padding of lengths that the local header has.
        header = view[record.header_offset : record.header_offset + _LOCAL_HEADER_BYTES]
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        start = record.header_offset + _LOCAL_HEADER_BYTES + lengths
        if zlib.crc32(view[start : start + record.file_size]) != record.CRC:
            raise ValueError(f"{where} is damaged: its {record.filename} is not what was written")


@contextmanager
def written_with_checksums() -> Iterator[None]:
    """Let torch.save write them, also where the program has turned that off."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(compute_crc32=before)
