"""The clock, passed in wherever time is read: a simulation passes in its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

# NTP slews the wall clock: it may drift by this much between two reads.
SLEW_S = 1.0
# A jump of the wall clock is accepted once it has lasted this long.
ACCEPTED_AFTER_S = 60.0

log = structlog.get_logger("spotsupd")

# CLOCK_MONOTONIC stands still while the machine is suspended.
_WITH_SUSPENDS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_s() -> float:
    """Seconds since the system started, suspends included where the system counts them."""
    return time.clock_gettime(_WITH_SUSPENDS)


class Clock(Protocol):
    """Where the daemon reads wall-clock time."""

    def now(self) -> float:
        """UNIX seconds."""
        ...


class SystemClock:
    """The system's wall clock without short jumps: all periodic work, timeouts and deadlines depend on it.

    Any thread may read it. A process has one: when a jump is accepted depends on when the clock is read.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._offset = wall() - steady()
        self._jump: tuple[float, float] | None = None  # the new offset, and since when

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
                log.warning("accepted a jump of the wall clock", by_s=round(offset - self._offset, 1))
                self._offset, self._jump = offset, None
            return steady + self._offset
