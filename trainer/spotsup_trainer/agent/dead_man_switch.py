"""The word for a machine's dead-man switch that its cluster has not forgotten it: a file that is touched.

The switch is the machine's own, made at its first boot together with the file: a machine whose file nobody touches for
long enough ends itself, and its billing. So it is touched whenever etcd, which is the cluster, has answered, and
whenever training goes on, whether or not etcd is there. Where there is no file there is no switch.
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
    """Call `look` often; it touches `path` at most every 20 s. `answered_at`: when etcd last answered (monotonic, 0 for
    never). `run_dir`: the launcher's folder, in which each rank's Session leaves a trace now and then. `log`: what the
    workers print, the only trace of a script without one.
    """

    def __init__(self, path: Path, answered_at: Callable[[], float], run_dir: Path, log: Path) -> None:
        self._path = path
        self._answered_at = answered_at
        self._run_dir = run_dir
        self._log = log
        self._seen: tuple[float, int] = (0.0, 0)
        self._touched_at = -_EVERY_S
        self._failed = False

    def look(self) -> None:
        """Touch the file where there is news. Never raises."""
        now = time.monotonic()
        if now - self._touched_at < _EVERY_S:
            return
        seen = (self._answered_at(), self._traces())
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
                log.warning("%s cannot be touched (%s): a dead-man switch would end this machine", self._path, error)

    def _traces(self) -> int:
        """When workers last wrote something (nanoseconds); 0 where they have not."""
        newest = 0
        kinds = ("progress-*", "session-*", "parked-*")
        for file in (self._log, *(file for kind in kinds for file in self._run_dir.glob(kind))):
            try:
                newest = max(newest, file.stat().st_mtime_ns)
            except OSError:
                continue  # its round is over
        return newest
