"""When a worker got how far, for the breakdown of a pause: a small file that is there also when the worker is killed.

Times are of the machine's monotonic clock, which all of its processes share. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Moments:
    """What one worker has written so far; None for what it has not."""

    # Session, or a callback, was called; and for how many seconds process groups had been made until then.
    called_at: float | None = None
    called_connect_s: float | None = None
    # It had restored the state; and the same until then.
    restored_at: float | None = None
    restored_connect_s: float | None = None
    # The first and the last step of the round were completed.
    first_step_at: float | None = None
    last_step_at: float | None = None
    # Their numbers, over all rounds.
    last_step: float | None = None
    first_step: float | None = None
    # What all ranks together had got for the restored state: from the memory of their own nodes, from other ranks, and
    # from storage.
    own_bytes: float | None = None
    peers_bytes: float | None = None
    storage_bytes: float | None = None


class Sources(Protocol):
    """Bytes that all ranks together got: see restoring.py."""

    @property
    def own(self) -> int:
        """Return the memory of their own nodes."""
        ...

    @property
    def peers(self) -> int:
        """Other ranks."""
        ...

    @property
    def storage(self) -> int:
        """Storage."""
        ...


_NAMES = tuple(field.name for field in fields(Moments))
_FORMAT = struct.Struct("<d")
_SIZE = len(_NAMES) * _FORMAT.size


class MomentFile:
    """The worker's side. It never raises OSError, and does nothing without a path: it must not stop training."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock

    def called(self) -> None:
        """Session, or a callback, is called."""
        self._write("called_at", self._clock(), connect.total_s)

    def restored(self, sources: Sources | None) -> None:
        """Take note that the state is restored, from so many bytes of each source, or there was none: training can
        begin."""
        sizes = (sources.own, sources.peers, sources.storage) if sources else (0, 0, 0)
        self._write("own_bytes", *sizes)
        self._write("restored_at", self._clock(), connect.total_s)

    def step_done(self, step: int, *, first: bool) -> None:
        """Step number `step` was completed: at each step, so one call of the kernel."""
        now = self._clock()
        if first:
            self._write("first_step_at", now, now, step, step)
        else:
            self._write("last_step_at", now, step)

    @cached_property
    def _descriptor(self) -> int | None:
        """Open until the process ends."""
        if self._path is None:
            return None
        try:
            found = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if os.fstat(found).st_size < _SIZE:
                os.pwrite(found, _FORMAT.pack(math.nan) * len(_NAMES), 0)
        except OSError:
            return None
        return found

    def _write(self, name: str, *values: float | None) -> None:
        """Consecutive fields, from `name` on."""
        if self._descriptor is not None:
            packed = b"".join(_FORMAT.pack(math.nan if value is None else value) for value in values)
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, packed, _NAMES.index(name) * _FORMAT.size)


def read_moments(path: Path) -> Moments:
    """Return what the worker has written to this file; nothing where it cannot be read. Programs may write anything
    there."""
    try:
        raw = path.read_bytes()[:_SIZE]
        values = [value for (value,) in _FORMAT.iter_unpack(raw)]
    except (OSError, struct.error):
        return Moments()
    return Moments(*(value if math.isfinite(value) else None for value in values))


class Connecting:
    """For how long this process has been making process groups, in seconds; None where that is not known."""

    def __init__(self) -> None:
        self.total_s: float | None = None
        self._depth = 0

    def begin(self) -> None:
        """From now on it is known."""
        self.total_s = 0.0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time in here, once where calls are nested."""
        began, self._depth = time.monotonic(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self.total_s is not None:
                self.total_s += time.monotonic() - began


connect = Connecting()  # of this process: torch's process groups are, too
