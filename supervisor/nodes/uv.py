"""The uv that is shipped to nodes: the program of the wheel that this daemon was installed with."""

from __future__ import annotations

import gzip
import io
import platform
import tarfile
import threading
from base64 import urlsafe_b64encode
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import UsageError

if TYPE_CHECKING:
    from bootstrap.model import Uv

_COMPRESSION = 6
# `cache` alone lets all threads that ask at first do the work: of 64 nodes that are prepared at once, 64 times.
_packing = threading.Lock()


def pack_uv() -> Uv | None:
    """This daemon's own uv, checked against the hash in its wheel's RECORD (PEP 376); None where there is none.

    Some 50 MB become 18, in about three seconds; kept, for all nodes. Any thread may call it: the first packs, and all
    others wait for it. Raises UsageError where it is not what the wheel brought.
    """
    with _packing:
        return _pack()


@cache
def _pack() -> Uv | None:
    from spotsup.archive import Archive

    from bootstrap.model import Uv

    try:
        distribution = metadata.distribution("uv")
    except metadata.PackageNotFoundError:
        return None
    found = next((each for each in distribution.files or () if each.name == "uv" and each.hash is not None), None)
    if found is None or found.hash is None:
        return None
    path = Path(str(found.locate()))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}: install uv again, for the nodes") from error
    if found.hash.mode != "sha256" or _digest(data) != found.hash.value:
        raise UsageError(f"{path} is not the file that its wheel brought, so no node gets it: install uv again")
    return Uv(platform.machine(), Archive.of(_packed(data)))


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()


def _packed(program: bytes) -> bytes:
    """As `spotsup.archive` packs: the same content gives the same bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=_COMPRESSION, filename="", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        info = tarfile.TarInfo("uv")
        info.size, info.mode = len(program), 0o755
        tar.addfile(info, io.BytesIO(program))
    return buffer.getvalue()
