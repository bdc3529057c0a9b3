"""Waiting for a condition, and never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until it holds. Raises AssertionError once the time is up."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not hold within {timeout_s:g} s"
        time.sleep(0.02)
