"""Copies a node's whole log, and warnings of the system's journal, to a folder that outlives the node.

On its own thread: a file server that hangs must block neither the workers, which write to the local disk, nor the
agent.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
from pathlib import Path

_EVERY_S = 5.0
_JOURNAL_EVERY = 12  # rounds
_LAST_COPY_S = 10.0
_CHUNK_BYTES = 1 << 20
_JOURNAL_LINES = 1000
_JOURNAL_TIMEOUT_S = 20.0

log = logging.getLogger(__name__)


class LogMirror:
    """Follows `file`, which other processes append to, as `folder/NODE.log`. The copy's length is where it continues.

    `scratch`: the node's own folder, for the journal's cursor.
    """

    def __init__(self, file: Path, folder: Path, node: str, scratch: Path, *, every_s: float = _EVERY_S) -> None:
        self._file = file
        self._folder = folder
        self._node = node
        self._scratch = scratch
        self._every_s = every_s
        self._has_journal = True
        self._logged = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-mirror", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Copy the rest, for a few seconds at most."""
        self._stopping.set()
        self._thread.join(timeout=_LAST_COPY_S)

    def _run(self) -> None:
        rounds = 0
        while not self._stopping.wait(self._every_s):
            self._try(journal=rounds % _JOURNAL_EVERY == 0)
            rounds += 1
        self._try(journal=True)

    def _try(self, *, journal: bool) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            copy_end(self._file, self._folder / f"{self._node}.log")
            if journal and self._has_journal:
                self._copy_journal()
        except Exception as error:  # noqa: BLE001 - whatever it is: this thread has to go on
            if str(error) != self._logged:
                self._logged = str(error)
                log.warning("the log of %s is not copied to %s: %s; retrying", self._node, self._folder, error)

    def _copy_journal(self) -> None:
        """Append the warnings of this boot since the last time; nothing if the journal may not be read."""
        cursor = self._scratch / "journal-cursor"
        command = ["journalctl", "-q", "-b", "-p", "warning", "-o", "short-iso", "--no-pager"]
        command += ["-n", str(_JOURNAL_LINES), f"--cursor-file={cursor}"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_JOURNAL_TIMEOUT_S, check=False)
        except FileNotFoundError:
            self._has_journal = False
            return
        except subprocess.TimeoutExpired:
            return
        if done.returncode == 0 and done.stdout:
            with (self._folder / f"{self._node}.journal").open("ab") as journal:
                journal.write(done.stdout)


def copy_end(source: Path, target: Path) -> None:
    """Append to `target` the part of `source` that it lacks. What `source` does not have any more is a hole in
    `target`, too: positions are the same in both. Raises OSError."""
    if not source.exists():
        return
    with source.open("rb") as file, target.open("ab") as copy:
        try:
            position = os.lseek(file.fileno(), copy.tell(), os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing is new
                return
            raise
        if position > copy.tell():
            copy.truncate(position)
        file.seek(position)
        while chunk := file.read(_CHUNK_BYTES):
            copy.write(chunk)
