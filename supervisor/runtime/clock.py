"""Time, as something that is handed in: a simulated world hands in another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

# What the time of day may differ from one look to the next: it is being set right slowly, as NTP does it.
SLEW_S = 1.0
# A time of day that has jumped is believed once it has stood for so long.
ACCEPTED_AFTER_S = 60.0

log = structlog.get_logger("spotsupd")


class Clock(Protocol):
    """Where the daemon reads the time."""

    def now(self) -> float:
        """UNIX seconds."""
        ...


class SystemClock:
    """The machine's own time of day, but for jumps that do not last: all that is periodic, and every patience, hangs on
    it, and so does what nodes and clouds say of deadlines. Any thread may ask; all of a process ask the same one, for
    what it believes depends on when it is asked."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._offset = wall() - steady()
        self._jump: tuple[float, float] | None = None  # to which offset, and since when

    def now(self) -> float:
        """UNIX seconds."""
        with self._lock:
            steady = self._steady()
            offset = self._wall() - steady
            if abs(offset - self._offset) <= SLEW_S:
                self._offset, self._jump = offset, None
            elif self._jump is None or abs(offset - self._jump[0]) > SLEW_S:
                self._jump = offset, steady
            elif steady - self._jump[1] >= ACCEPTED_AFTER_S:
                log.warning("the time of day has jumped, and stays so", by_s=round(offset - self._offset, 1))
                self._offset, self._jump = offset, None
            return steady + self._offset
