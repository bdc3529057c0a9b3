"""Sends the end of a node's log to etcd, so that the daemon can show it: in small chunks, on its own thread."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from spotsup_trainer.agent.decisions import chunk_of
from spotsup_trainer.etcd import Delete, Etcd, EtcdError, Put

_EVERY_S = 1.0
_KEPT_CHUNKS = 8
_LAST_ATTEMPTS = 3

log = logging.getLogger(__name__)


class LogShipper:
    """Follows `file`, which other processes append to, and puts new chunks under `prefix`. Its only state is an
    offset."""

    def __init__(self, etcd: Etcd, file: Path, prefix: str, node: str) -> None:
        self._etcd = etcd
        self._file = file
        self._prefix = prefix
        self._node = node
        self._offset = file.stat().st_size if file.exists() else 0
        self._sent_at = time.monotonic() - _EVERY_S
        self._next: int | None = None
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
        for _ in range(_LAST_ATTEMPTS):
            if self._try():
                return
            time.sleep(_EVERY_S)

    def _try(self) -> bool:
        try:
            self._send()
        except (EtcdError, OSError) as error:
            if str(error) != self._logged:
                self._logged = str(error)
                log.warning("the log of %s is not sent: %s; retrying", self._node, error)
            return False
        self._logged = ""
        return True

    def _send(self) -> None:
        size = self._file.stat().st_size if self._file.exists() else 0
        if size < self._offset:
            self._offset = 0  # the file was truncated
        if size == self._offset:
            return
        skipped, take = chunk_of(size - self._offset, time.monotonic() - self._sent_at)
        with self._file.open("rb") as file:
            file.seek(self._offset + skipped)
            content = file.read(take)
        if skipped:
            note = f"… {skipped} bytes skipped; the full log is {self._file} on {self._node}\n"
            content = note.encode() + content
        number = self._next if self._next is not None else self._first_free()
        old = [Delete(f"{self._prefix}{number - _KEPT_CHUNKS:08d}")] if number >= _KEPT_CHUNKS else []
        self._etcd.txn([], [Put(f"{self._prefix}{number:08d}", content), *old])
        self._next = number + 1
        self._offset += skipped + take
        self._sent_at = time.monotonic()

    def _first_free(self) -> int:
        """The number after those of an agent that ran here before."""
        keys = [kv.key for kv in self._etcd.range(self._prefix, keys_only=True).kvs]
        return max((int(key.rsplit("/", 1)[1]) for key in keys), default=-1) + 1
