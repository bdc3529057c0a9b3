"""Time, as something that is handed in: a simulated world hands in another."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the daemon reads the time."""

    def now(self) -> float:
        """UNIX seconds."""
        ...


class SystemClock:
    """The machine's own."""

    def now(self) -> float:
        """UNIX seconds."""
        return time.time()
