"""Sends code to the daemon: in chunks, of which only those are sent that it does not have, so that an upload goes on
where the line broke. One request where there is no line that could break, or no more than one chunk.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.errors import SpotsupError

if TYPE_CHECKING:
    from bootstrap.archive import Archive

CHUNK_BYTES = 512 * 1024
MAX_CHUNKS = 1024  # of one archive, as the daemon takes it
MAX_FAILURES = 8  # of requests in a row
MAX_ROUNDS = 5  # of asking what is missing: other uploads of the same user may displace this one's chunks
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 15.0
MAX_ASKED_WAIT_S = 60.0  # where the daemon says how long


class Daemon(Protocol):
    """Where code goes."""

    @property
    def over_network(self) -> bool:
        """Whether it is no socket of this computer, to which a second request costs more than all bytes."""
        ...

    def send(self, method: str, path: str, body: Any) -> Any:
        """The answer's JSON to a body of JSON or bytes. A SpotsupError whose `retry_after_s` is not None may pass."""
        ...


def upload(archive: Archive, daemon: Daemon, sleep: Callable[[float], None] = time.sleep) -> str:
    """The SHA-256 of an archive that the daemon has now. Raises SpotsupError."""
    patient = _Patient(daemon, sleep)
    data = archive.data
    if len(data) <= CHUNK_BYTES or not daemon.over_network:
        return str(patient.send("PUT", "/v1/blobs", data)["sha256"])
    cut = [(hashlib.sha256(each).hexdigest(), each) for each in chunks_of(data, archive.ends)]
    chunks, asked = dict(cut), {"chunks": [key for key, _ in cut]}
    progress = _Progress(len(data))
    patient.tell = progress.show
    try:
        for _ in range(MAX_ROUNDS):
            missing = patient.send("POST", f"/v1/blobs/{archive.sha256}", asked)["missing"]
            if not missing:
                return archive.sha256
            left = sum(len(chunks[each]) for each in missing)
            for each in missing:
                progress.left_bytes = left
                progress.show()
                patient.send("PUT", f"/v1/chunks/{each}", chunks[each])
                left -= len(chunks[each])
            progress.left_bytes = left
    except SpotsupError as error:
        if error.retry_after_s is None:
            raise
        raise type(error)(f"{error}; {progress.text} are there: the same again sends only the rest") from error
    finally:
        progress.end()
    raise SpotsupError(
        "other uploads of the same user push this one's chunks out: submit again once they are done, or put less code "
        "into the folder (.spotsupignore)"
    )


def chunks_of(data: bytes, ends: Sequence[int]) -> list[bytes]:
    """The parts of an archive that end there, none larger than a chunk may be."""
    bounds = [0, *sorted({*ends, len(data)} - {0})]
    cuts = [cut for begin, end in pairwise(bounds) for cut in range(begin, end, CHUNK_BYTES)]
    if len(cuts) > MAX_CHUNKS:
        cuts = list(range(0, len(data), CHUNK_BYTES))
    return [data[begin:end] for begin, end in pairwise([*cuts, len(data)])]


class _Patient:
    """Sends again what failed and may pass: a bounded number of times, later and later."""

    def __init__(self, daemon: Daemon, sleep: Callable[[float], None]) -> None:
        self._daemon = daemon
        self._sleep = sleep
        self.tell: Callable[[str], None] = lambda _: None

    def send(self, method: str, path: str, body: Any) -> Any:
        for failures in range(1, MAX_FAILURES + 1):
            try:
                return self._daemon.send(method, path, body)
            except SpotsupError as error:
                if error.retry_after_s is None or failures == MAX_FAILURES:
                    raise
                wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (failures - 1)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
                wait_s = max(wait_s, min(error.retry_after_s, MAX_ASKED_WAIT_S))
                self.tell(f"; no answer, or a busy daemon: again in {wait_s:.0f} s")
            self._sleep(wait_s)
        raise AssertionError


class _Progress:
    """A line at the terminal, written anew; nothing where there is none."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self.left_bytes = size_bytes
        self._shown = False

    @property
    def text(self) -> str:
        return f"{(self._size_bytes - self.left_bytes) / 1e6:.1f} of {self._size_bytes / 1e6:.1f} MB"

    def show(self, more: str = "") -> None:
        if sys.stderr.isatty():
            print(f"\r\033[Kcode: {self.text} sent{more}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
