"""Answers that are kept for a while: what changes seldom and takes long to read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_KEPT = 4096

Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values by key, each for `for_s` seconds; thread-safe. Of more than MAX_KEPT, the oldest are dropped."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._lock = threading.Lock()
        self._values: dict[Key, tuple[float, Value]] = {}

    def get(self, key: Key, now: float, read: Callable[[], Value]) -> Value:
        """Return the kept value, else what `read` returns; what it raises is raised, and nothing is kept. A clock that
        was set back keeps nothing longer."""
        known = self.known(key, now)
        if known is not None:
            return known[1]
        value = read()
        self.put(key, now, value)
        return value

    def known(self, key: Key, now: float) -> tuple[float, Value] | None:
        """(when it was read, the value), where it is still kept."""
        with self._lock:
            found = self._values.get(key)
        return found if found is not None and 0 <= now - found[0] < self._for_s else None

    def put(self, key: Key, now: float, value: Value) -> None:
        """Keep a value from now on."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = (now, value)
            while len(self._values) > MAX_KEPT:
                del self._values[next(iter(self._values))]
