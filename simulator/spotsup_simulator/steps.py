"""What the ranks of a simulated job make of time: steps, checkpoints, and what is lost.

Steps are computed when they are read, so that hours in which nothing changes cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotsup_trainer.wire import Progress, Round

from spotsup_simulator.clock import NEVER

STEP_TIME_S = 0.5


@dataclass(frozen=True)
class Span:
    """A time without a pause in which a round's nodes trained."""

    start: float
    end: float
    nodes: int


@dataclass(frozen=True)
class Loss:
    """Completed steps that have to be repeated."""

    at: float
    round: Round
    steps: int
    # Members that had stopped or were lost.
    gone: frozenset[str]
    # The steps hung.
    hung: bool = False
    # How long its checkpoints took, at most.
    saving_s: float = 0.0


class Steps:
    """The steps of one job, over all of its rounds."""

    def __init__(self, checkpoint_every_s: float) -> None:
        self.spans: list[Span] = []
        self.losses: list[Loss] = []
        # The round that formed last.
        self.round: Round | None = None
        # How long a step takes.
        self.step_s = STEP_TIME_S
        # How long a checkpoint takes. Meanwhile training stands still, as it does while ranks park.
        self.saving_s = 0.0
        # The longest since the round formed.
        self._slowest_s = 0.0
        # Since when the round trains: NEVER while it does not. And when it last stopped.
        self.since = NEVER
        self.halted_at = 0.0
        # The step of the newest checkpoint.
        self.checkpoint = 0
        self._checkpoint_at = 0.0
        self._checkpoint_every_s = checkpoint_every_s
        # Checkpoints of the current round, and of all rounds since the program last failed.
        self.saved = self.saved_since_failure = 0
        self._made = 0
        # Of the round that trained last: its number, when its first step was made, and which that was.
        self._first = (0, 0.0, 0)

    @property
    def under_way(self) -> bool:
        """True if the round trains, or its workers start."""
        return self.since < NEVER

    @property
    def lost(self) -> int:
        """Return the steps of all losses."""
        return sum(loss.steps for loss in self.losses)

    def made(self, now: float) -> int:
        """Count the steps that are made, without those that have to be repeated."""
        if not self.under_way:
            return self._made
        return self._made + 1 + int(max(0.0, now - self.since) / self.step_s)

    def spans_until(self, now: float) -> list[Span]:
        """Return all spans, with the one that lasts."""
        if not self.under_way or self.round is None or now <= self.since:
            return self.spans
        return [*self.spans, Span(self.since, now, len(self.round.nodes()))]

    def progress(self, current: Round, now: float) -> Progress:
        """Return what rank 0 reports of a round that is under way."""
        if self._first[0] != current.number:
            self._first = (current.number, self.since, self._made + 1)
        return Progress(
            current.number,
            self.made(now),
            now,
            self._first[1],
            checkpoint_step=self.checkpoint,
            step_s=self.step_s,
            checkpoint_p95_s=self.saving_s,
            checkpoint_every_s=self._checkpoint_every_s if math.isfinite(self._checkpoint_every_s) else 0.0,
            first_step=self._first[2],
        )

    # -- what happens --------------------------------------------------------------------------------------

    def form(self, formed: Round) -> None:
        """Take note that a round has formed."""
        if self.round is not None and self._made > self.checkpoint:
            # Nobody was left to notice. It was lost when the last node vanished.
            self.lose(self.round, self.halted_at, frozenset(self.round.nodes()))
        self.round, self.saved, self._slowest_s = formed, 0, self.saving_s

    def begin(self, now: float, at: float, step_s: float) -> None:
        """Start its workers, which make steps from `at` on."""
        self.since, self.step_s = at, step_s
        self._checkpoint_at = self._checkpoint_at or now
        self._made = max(self._made, self.checkpoint)

    def halt(self, now: float) -> None:
        """Stop stepping, and account for the last periodic checkpoint."""
        if not self.under_way:
            return
        if now > self.since and self.round is not None:
            self.spans.append(Span(self.since, now, len(self.round.nodes())))
        first = max(self.since, self._checkpoint_at + self._checkpoint_every_s)
        if now >= first:
            self.count_saved(1 + int((now - first) // self._checkpoint_every_s))
            self._checkpoint_at = now - (now - first) % self._checkpoint_every_s
            self.checkpoint = max(self.checkpoint, self.made(self._checkpoint_at))
        self._made, self.since, self.halted_at = self.made(now), NEVER, now

    def save(self, now: float) -> None:
        """Take note that a checkpoint is complete."""
        self.checkpoint, self._checkpoint_at = self.made(now), now

    def count_saved(self, count: int) -> None:
        """So many checkpoints were written."""
        self.saved += count
        self.saved_since_failure += count

    def save_in(self, seconds: float) -> None:
        """Checkpoints take so long from now on."""
        self.saving_s, self._slowest_s = seconds, max(self._slowest_s, seconds)

    def lose(self, current: Round, now: float, gone: frozenset[str], *, hung: bool = False) -> None:
        """End the round without a checkpoint: training goes back to the newest one."""
        self.halt(now)
        if self._made > self.checkpoint:
            self.losses.append(Loss(now, current, self._made - self.checkpoint, gone, hung, self._slowest_s))
        self._made = self.checkpoint
