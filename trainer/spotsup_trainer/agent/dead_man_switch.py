"""Keeps the machine's dead-man switch from firing, by touching its file.

First boot installs the switch and the file: a machine whose file is not touched for long enough ends itself, and its
billing. The agent touches the file whenever etcd has answered, and whenever training makes progress, even without etcd.
A machine without the file has no switch.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

HEARD_FILE = ".spotsup-heard"
_EVERY_S = 20.0

log = logging.getLogger(__name__)


class DeadManSwitch:
    """Call `update` often; it touches `path` at most every 20 s.

    `answered_at`: when etcd last answered (monotonic, 0 for never). `run_dir`: the launcher's folder, where each rank's
    Session touches a file now and then. `log`: the workers' output, the only sign of life of a script without Session.
    """

    def __init__(self, path: Path, answered_at: Callable[[], float], run_dir: Path, log: Path) -> None:
        self._path = path
        self._answered_at = answered_at
        self._run_dir = run_dir
        self._log = log
        self._seen: tuple[float, int] = (0.0, 0)
        self._touched_at = -_EVERY_S
        self._failed = False

    def update(self) -> None:
        """Touch the file if etcd or the workers gave a new sign of life. Never raises."""
        now = time.monotonic()
        if now - self._touched_at < _EVERY_S:
            return
        seen = (self._answered_at(), self._last_write_ns())
        if seen == self._seen:
            return
        self._seen, self._touched_at = seen, now
        try:
            os.utime(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning("cannot touch %s (%s): the dead-man switch may end this machine", self._path, error)

    def _last_write_ns(self) -> int:
        """Return when workers last wrote something; 0 for never."""
        newest = 0
        kinds = ("progress-*", "session-*", "parked-*")
        for file in (self._log, *(file for kind in kinds for file in self._run_dir.glob(kind))):
            try:
                newest = max(newest, file.stat().st_mtime_ns)
            except OSError:
                continue  # removed: its round is over
        return newest
