"""Virtual time, and what is scheduled for later."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

START = 1_000_000.0
NEVER = float("inf")


class VirtualClock:
    """UNIX seconds that advance only when the world sets them."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time


class Timeline:
    """Callbacks in order of time; those of one time run in the order in which they were added."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def add(self, at: float, do: Callable[[], None]) -> None:
        """Run `do` at a time."""
        heapq.heappush(self._entries, (at, next(self._numbers), do))

    def next_at(self) -> float:
        """Return when the first callback is due."""
        return self._entries[0][0] if self._entries else NEVER

    def run_due(self, now: float) -> None:
        """Run every callback that is due, including those that are added meanwhile."""
        while self._entries and self._entries[0][0] <= now:
            heapq.heappop(self._entries)[2]()

    def clear(self) -> None:
        """Drop every callback."""
        self._entries.clear()
