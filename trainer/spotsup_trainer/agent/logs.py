"""Sends a node's output to etcd within a budget, so that the daemon can show it, on its own thread.

The file itself keeps its last bytes on the node's disk: its head is freed in place, so that offsets stay what they are.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from spotsup_trainer.agent.decisions import (
    MAX_CHUNK_BYTES,
    MAX_READ_BYTES,
    MIN_CHUNK_BYTES,
    LogBudget,
    collapse,
    cut,
)
from spotsup_trainer.agent.log_times import LogTimes
from spotsup_trainer.etcd import Delete, Etcd, Put

_EVERY_S = 1.0
_MAX_CHUNKS = 256
_CHUNK = re.compile("[0-9]{8}")  # the name of its key
_TIMES = "times"
# etcd takes 128 operations in one transaction.
_MAX_DELETED_AT_ONCE = 100
_LAST_ATTEMPTS = 3
# A send that cannot carry all waits until it may carry this much.
_MIN_SEND_BYTES = 1 << 10
# What the node's disk keeps of the log, and by how much it may exceed that.
KEPT_ON_DISK_BYTES = 1 << 30
_FREED_AT_A_TIME_BYTES = 64 << 20
_FREE_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class LogShipper:
    """Follows `file`, which other processes append to, and puts new chunks under `prefix`, the oldest of which go.

    Either its own thread sends, after `start`, or the caller.
    """

    def __init__(
        self,
        etcd: Etcd,
        file: Path,
        prefix: str,
        node: str,
        budget: LogBudget,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._etcd = etcd
        self._file = file
        self._prefix = prefix
        self._node = node
        self._budget = budget
        self._offset = file.stat().st_size if file.exists() else 0
        self._freed = 0
        self._may_send = float(MAX_CHUNK_BYTES)
        self._clock = clock
        self._counted_at = clock()
        # By number: the size of each chunk in etcd. None until those of an earlier agent on this node are known.
        self._sizes: dict[int, int] | None = None
        self._times = LogTimes()
        self._wall_clock = wall_clock
        # The newest chunk, while it grows; whether the last one ended within a line.
        self._last = b""
        self._ends_open = False
        self._logged = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Send the rest, if etcd takes it within seconds."""
        self._stopping.set()
        self._thread.join(timeout=_LAST_ATTEMPTS * (self._etcd.timeout_s + _EVERY_S))
        self._etcd.close()

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            self._try()
            self.free_head()
        self._may_send = MAX_CHUNK_BYTES
        for _ in range(_LAST_ATTEMPTS):
            if self._try():
                return
            time.sleep(_EVERY_S)

    def _try(self) -> bool:
        try:
            self.send()
        except Exception as error:  # noqa: BLE001 - whatever it is: without this thread no output is ever seen again
            if str(error) != self._logged:
                self._logged = str(error)
                log.warning("the log of %s is not sent: %s; retrying", self._node, error)
            return False
        self._logged = ""
        return True

    def send(self) -> None:
        """Send what is new, within the budget. Raises EtcdError and OSError; what was not sent is sent later."""
        size = self._file.stat().st_size if self._file.exists() else 0
        if size < self._offset:
            self._offset = 0  # the file was truncated
        if size == self._offset:
            return
        if self._sizes is None:
            self._sizes = self._sizes_in_etcd()
        now = self._clock()
        self._may_send += self._budget.bytes_per_s * (now - self._counted_at)
        self._may_send, self._counted_at = min(self._may_send, MAX_CHUNK_BYTES), now
        text, skipped = self._read(size)
        if not text:
            self._offset = size
            return
        number = max(self._sizes, default=-1) + 1
        grows = bool(self._last) and len(self._last) + len(text) <= min(self._may_send, MAX_CHUNK_BYTES) and not skipped
        begin = 0
        if grows:
            number, text, begin = number - 1, self._last + text, len(self._last)
        elif self._may_send < min(len(text), _MIN_SEND_BYTES):
            return
        content = cut(text, int(self._may_send), skipped, f"the full log is {self._file} on {self._node}")
        sizes = self._sizes | {number: len(content)}
        gone = _oldest(sizes, self._budget.kept_bytes)
        kept = sizes.keys() - set(gone)
        times = self._times.add(self._wall_clock(), number, begin, kept)
        marks = [] if times is None else [Put(f"{self._prefix}{_TIMES}", times)]
        self._etcd.txn([], [Put(self._key(number), content), *marks, *(Delete(self._key(old)) for old in gone)])
        self._sizes = {each: sizes[each] for each in kept}
        self._may_send -= len(content)
        self._offset = size
        self._last = content if len(content) < MIN_CHUNK_BYTES else b""
        self._ends_open = not content.endswith(b"\n")

    def _read(self, size: int) -> tuple[bytes, int]:
        """Return the newest unread output, and how many bytes before it are left out."""
        begin = max(self._offset, size - MAX_READ_BYTES)
        with self._file.open("rb") as file:
            file.seek(begin)
            raw = file.read(size - begin)
        return collapse(raw, open_line=self._ends_open), begin - self._offset

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:08d}"

    def _sizes_in_etcd(self) -> dict[int, int]:
        """Return the chunks of an agent that ran here before. Other keys are left alone."""
        found = self._etcd.range(self._prefix).kvs
        self._times = LogTimes(next((kv.value for kv in found if kv.key == f"{self._prefix}{_TIMES}"), b""))
        named = ((kv.key.removeprefix(self._prefix), len(kv.value)) for kv in found)
        return {int(name): size for name, size in named if _CHUNK.fullmatch(name)}

    def free_head(self) -> None:
        """Give the blocks of the file's head back to the disk; it reads as zeros then."""
        try:
            extra = self._file.stat().st_size - self._freed - KEPT_ON_DISK_BYTES
            if extra < _FREED_AT_A_TIME_BYTES:
                return
            self._freed += extra
            command = ["fallocate", "--punch-hole", "--length", str(self._freed), os.fspath(self._file)]
            subprocess.run(command, timeout=_FREE_TIMEOUT_S, check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the log of %s grows on: its first bytes cannot be freed: %s", self._node, error)


def _oldest(sizes: dict[int, int], kept_bytes: int) -> list[int]:
    """Return the chunks to delete, so that the rest is within bounds. The newest stays."""
    gone: list[int] = []
    total = sum(sizes.values())
    for number in sorted(sizes)[:-1]:
        if total <= kept_bytes and len(sizes) - len(gone) <= _MAX_CHUNKS:
            break
        gone.append(number)
        total -= sizes[number]
    return gone[:_MAX_DELETED_AT_ONCE]
