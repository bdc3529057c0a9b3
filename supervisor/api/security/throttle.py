"""How often somebody may do something, by a bounded table of token buckets; and how many at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from supervisor.errors import BusyError

MAX_KEYS = 2048


@dataclass(slots=True)
class Throttle:
    """`burst` at once, then `per_s` per second, for each key. For one thread, or under the GIL: a race costs one call.

    Beyond `max_keys` the key that was used longest ago is forgotten.
    """

    burst: float
    per_s: float
    max_keys: int = MAX_KEYS
    # Key -> how many are left, and when that was so.
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait_s(self, key: str, now: float) -> float:
        """Take one; 0, or after how many seconds there is one again. `now`: seconds of a clock that never goes back."""
        left, at = self._left.pop(key, (self.burst, now))
        left = min(self.burst, left + max(0.0, now - at) * self.per_s)
        allowed = left >= 1.0
        self._left[key] = (left - 1.0 if allowed else left, now)
        while len(self._left) > self.max_keys:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self.per_s

    def __len__(self) -> int:
        return len(self._left)


@dataclass(slots=True)
class Folded:
    """Let the first `burst` of each key pass, then `per_s` per second, and count those between."""

    burst: float
    per_s: float
    _throttle: Throttle = field(init=False)
    _between: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._throttle = Throttle(self.burst, self.per_s)

    def count(self, key: str, now: float) -> int:
        """Return how many this one stands for, itself included; 0 where it does not pass."""
        if self._throttle.wait_s(key, now):
            if key in self._between or len(self._between) < MAX_KEYS:
                self._between[key] = self._between.get(key, 0) + 1
            return 0
        return self._between.pop(key, 0) + 1


class Places:
    """So many may do something at a time. For any number of threads."""

    def __init__(self, count: int, full: str) -> None:
        """`full`: the sentence for whoever finds none."""
        self._free = threading.BoundedSemaphore(count) if count else threading.Semaphore(0)
        self._full = full

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raise BusyError if there is none."""
        if not self._free.acquire(blocking=False):
            raise BusyError(self._full)
        try:
            yield
        finally:
            self._free.release()
