"""When a job with a deadline needs on-demand machines: the rule of Uniform Progress (Wu et al., NSDI'24). Pure.

Progress that is even over the time to the deadline is a line. A job that is behind it asks for on-demand machines where
it gets none on spot; one that is not waits for spot. Once the time that it can lose is nearly used up, it takes no risk
any more: it asks for on-demand machines at once, and stays on those that it has.

The paper's job stops on-demand machines again, and waits, once it is ahead of the line. Here they stay until spot
machines take their place: no working machine is taken from a job for money's sake (P4). And the paper's job leaves spot
machines when its slack is used up. Here it trains on: as long as it does, its slack stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of the time that it can lose, in change-overs: with less than so many left, none may be tried in vain.
SAFETY, BACK = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A job that has to have finished by a time. Times in UNIX seconds; work in seconds of all its nodes."""

    begins_at: float
    finish_by: float
    total_s: float  # work in all
    done_s: float
    switch_s: float  # from the loss of its nodes until others train, with the steps that are made again

    @property
    def left_s(self) -> float:
        """Return the work that is left."""
        return max(0.0, self.total_s - self.done_s)

    def slack_s(self, now: float) -> float:
        """Return for how long it may stand still from now on; negative where it cannot finish in time."""
        return self.finish_by - now - self.left_s

    def is_missed(self, now: float) -> bool:
        """True if it cannot finish in time on whatever machines."""
        return self.slack_s(now) < 0 and self.left_s > 0

    def even_s(self, now: float) -> float:
        """Return the work that is done by now if progress is even."""
        length_s = self.finish_by - self.begins_at
        share = (now - self.begins_at) / length_s if length_s > 0 else 1.0
        return self.total_s * min(1.0, max(0.0, share))

    def needs_on_demand(self, now: float) -> bool:
        """True if to ask for on-demand machines where spot has none. One that is missed pays as a job without a
        deadline does."""
        behind = self.done_s < self.even_s(now) - self.switch_s
        return behind or self.slack_s(now) <= SAFETY * self.switch_s

    def may_go_back(self, now: float) -> bool:
        """True if on-demand machines may be left for spot ones: it can lose those, and come back."""
        return self.is_missed(now) or self.slack_s(now) > BACK * self.switch_s

    def needed_at(self, now: float) -> float:
        """Return from when on it needs on-demand machines if it makes no progress until then."""
        if self.needs_on_demand(now):
            return now
        rate = self.total_s / (self.finish_by - self.begins_at)
        behind_at = self.begins_at + (self.done_s + self.switch_s) / rate
        return min(behind_at, self.finish_by - self.left_s - SAFETY * self.switch_s)
