"""How long a rank's steps take, so that a hang can be distinguished from a slow step."""

from __future__ import annotations

from collections import deque
from itertools import islice

# No shorter silence is a hang.
MIN_HANG_S = 300.0
_KEPT_STEPS = 500
_RECENT_STEPS = 64
_STEPS = 10
_GAPS = 2


class Pace:
    """Call `step` after each step, and `alive` at any other sign of life. Times are of one clock."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._step_at: float | None = None
        self._alive_at: float | None = None
        self._longest_gap_s = 0.0

    def step(self, at: float) -> None:
        """Take note that a step was completed."""
        if self._step_at is not None:
            self._steps.append(max(0.0, at - self._step_at))
        self._step_at = at
        self.alive(at)

    def alive(self, at: float) -> None:
        """Any sign of life. Before the first step none counts: compilation and connections take their time."""
        if self._step_at is None:
            return
        self._longest_gap_s = max(self._longest_gap_s, at - (self._alive_at or at))
        self._alive_at = at

    @property
    def max_step_s(self) -> float:
        """Return the longest of the last steps; 0 before the second."""
        return max(islice(reversed(self._steps), _RECENT_STEPS), default=0.0)

    @property
    def usual_step_s(self) -> float:
        """Return the median of the last steps; 0 before the second."""
        recent = sorted(islice(reversed(self._steps), _RECENT_STEPS))
        return recent[len(recent) // 2] if recent else 0.0

    @property
    def hangs_after_s(self) -> float:
        """Return a rank without a sign of life for so long hangs: ten times its slow steps (p99), and twice its longest
        silence so far, an evaluation for instance."""
        # Without the slowest of up to a hundred: it may have compiled.
        slow_s = sorted(self._steps)[int(0.99 * (len(self._steps) - 1))] if self._steps else 0.0
        return max(MIN_HANG_S, _STEPS * slow_s, _GAPS * self._longest_gap_s)
