"""When the next periodic checkpoint begins. Rank 0 decides for all."""

from __future__ import annotations

from collections import deque
from statistics import median

DEFAULT_S = 60.0
# Of the time: a copy stops training, and a checkpoint more or less costs less than a machine that is lost.
MAX_SHARE = 0.02
MAX_DEFAULT_S = 1800.0
_MEASURED = 5  # an odd number: one copy beside something else does not count


class Cadence:
    """Every so many steps, or seconds; with neither, `DEFAULT_S`, or longer so that copies take at most `MAX_SHARE`.

    `keep_every`: besides, after every so many steps. Times are in seconds, of one clock. Raises ValueError for what is
    no interval.
    """

    def __init__(self, every_steps: int | None, every_s: float | None, keep_every: int | None) -> None:
        if any(interval is not None and interval <= 0 for interval in (every_steps, every_s)):
            raise ValueError(f"every_steps is {every_steps}, every_s is {every_s}; they must be more than 0")
        self._every_steps, self._every_s, self._keep_every = every_steps, every_s, keep_every
        self._by_cost = every_steps is None and every_s is None
        self._copies_s: deque[float] = deque(maxlen=_MEASURED)
        # Of the last one.
        self.step = 0
        self._at = 0.0
        self._at_once = False

    @property
    def every_s(self) -> float | None:
        """Return the interval in seconds; None if steps alone decide."""
        if not self._by_cost:
            return self._every_s
        copy_s = median(self._copies_s) if self._copies_s else 0.0
        return min(MAX_DEFAULT_S, max(DEFAULT_S, copy_s / MAX_SHARE))

    def in_seconds(self, step_s: float) -> float:
        """Return the interval, with steps of `step_s`."""
        return self.every_s or (self._every_steps or 0) * step_s

    def start(self, step: int, at: float, *, at_once: bool) -> None:
        """Training begins after `step`. `at_once`: with a checkpoint after the first step."""
        self.step, self._at, self._at_once = step, at, at_once

    def begun(self, step: int, at: float) -> None:
        """Take note that a checkpoint of `step` begins."""
        self.start(step, at, at_once=False)

    def copied(self, took_s: float) -> None:
        """Training stood still for so long, until the state was copied."""
        self._copies_s.append(max(0.0, took_s))

    def is_due_by_steps(self, step: int) -> bool:
        """True if one of exactly this step is to begin: by counts, which are the same on all ranks."""
        if self._keep_every is not None and step // self._keep_every > self.step // self._keep_every:
            return True
        return self._every_steps is not None and step - self.step >= self._every_steps

    def is_due(self, step: int, now: float) -> bool:
        """True if one is to begin after `step`."""
        if step == self.step:
            return False
        if self._at_once or self.is_due_by_steps(step):
            return True
        # a clock that was set back must not delay the next one
        return self.every_s is not None and not 0 <= now - self._at < self.every_s

    def __str__(self) -> str:
        """Return it for people."""
        if self._by_cost:
            return f"every {DEFAULT_S:g} s, or less often where copies would take more than {MAX_SHARE:.0%} of the time"
        every = (
            "" if self._every_steps is None else f"{self._every_steps:,} steps",
            "" if self._every_s is None else f"{self._every_s:g} s",
        )
        return f"every {' or '.join(filter(None, every))}"
