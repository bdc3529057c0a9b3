"""When the next periodic checkpoint is due."""

from __future__ import annotations


class Due:
    """Counts from the last checkpoint that began. Times are UNIX seconds."""

    def __init__(
        self, every_steps: int | None, every_s: float | None, keep_every: int | None, step: int, at: float
    ) -> None:
        self._every_steps, self._every_s, self._keep_every = every_steps, every_s, keep_every
        self.step, self._at = step, at
        # What the round began from is in memory only: it is written as soon as there is a step.
        self.unwritten = False

    def begun(self, step: int, at: float) -> None:
        """A checkpoint of `step` begins."""
        self.step, self._at = step, at

    def by_steps(self, step: int) -> bool:
        """Whether one of exactly this step is due: by counts, which are the same on all ranks."""
        if self._keep_every is not None and step // self._keep_every > self.step // self._keep_every:
            return True
        return self._every_steps is not None and step - self.step >= self._every_steps

    def is_due(self, step: int, at: float) -> bool:
        """Whether one is due now, on rank 0, which decides."""
        if step == self.step:
            return False
        # a clock that was set back must not delay the next one
        by_time = self._every_s is not None and not 0 <= at - self._at < self._every_s
        return self.unwritten or self.by_steps(step) or by_time

    def interval_s(self, step_s: float) -> float:
        """How much training a loss without a checkpoint costs at most, with steps of so many seconds."""
        return self._every_s or (self._every_steps or 0) * step_s
