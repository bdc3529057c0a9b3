"""Copies a node's whole log to a folder that outlives the node, and what the system's journal warns of beside it.

On a thread of its own, for which nobody waits long: a file server that hangs must hold up neither the workers, who
write to the local disk, nor the agent.
"""

from __future__ import annotations

import logging
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
    """Follows `file`, which others append to, as `folder/NODE.log`. What is there already says how far it has come.

    `scratch`: the node's own folder, for the place up to which the journal was read.
    """

    def __init__(self, file: Path, folder: Path, node: str, scratch: Path, *, every_s: float = _EVERY_S) -> None:
        self._file = file
        self._folder = folder
        self._node = node
        self._scratch = scratch
        self._every_s = every_s
        self._has_journal = True
        self._said = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-mirror", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Copy the rest, as far as seconds do for it."""
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
        except OSError as error:
            if str(error) != self._said:
                self._said = str(error)
                log.warning("the log of %s is not copied to %s: %s; trying on", self._node, self._folder, error)

    def _copy_journal(self) -> None:
        """What it warns of since the last time, in this boot. Nothing where it may not be read."""
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
    """Append to `target` what `source` has beyond it. Raises OSError."""
    if not source.exists():
        return
    with source.open("rb") as file, target.open("ab") as copy:
        file.seek(copy.tell())
        while chunk := file.read(_CHUNK_BYTES):
            copy.write(chunk)
