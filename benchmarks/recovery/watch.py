"""Bounded waits for training jobs, by the marks that they write; Ctrl-C ends a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.recovery.timeline import MarkReader, Outcome, Span, Timeline, outcome
from tools.stack import InterruptedByUserError, Stack

T = TypeVar("T")

LOOK_S = 0.1
PHASE_LOOK_S = 0.02
CHECKPOINT_STEPS = 50
SETTLED_STEPS = 100  # 2 s of training: connections, leases and the first checkpoint are behind it


class BenchError(Exception):
    """A subject cannot be measured; names it and quotes its output."""


class Stop:
    """Set by a signal handler, checked by every wait."""

    def __init__(self) -> None:
        self._wanted = False
        self.stack: Stack | None = None

    def ask(self) -> None:
        """Called by a signal handler: the next check raises."""
        self._wanted = True
        if self.stack is not None:
            self.stack.interrupt()

    def check(self) -> None:
        """Raises InterruptedByUserError once it was asked for."""
        if self._wanted:
            raise InterruptedByUserError

    def until(self, holds: Callable[[], T], limit_s: float, late: Callable[[], str], look_s: float = LOOK_S) -> T:
        """What `holds` returns, once that is true. Raises BenchError with `late` after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not (found := holds()):
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(late())
            time.sleep(look_s)
        return found


@dataclass(frozen=True, slots=True)
class Turn:
    """What the subjects of one repetition have in common.

    `phase`: how many steps after a checkpoint a fault hits. `limit_s`: how long the job is watched after it.
    """

    folder: Path
    phase: int
    limit_s: float
    stop: Stop


def phase_of(repetition: int, repetitions: int) -> int:
    """Spread evenly over the steps between two checkpoints: else all would lose the same number of steps."""
    return CHECKPOINT_STEPS * (2 * repetition + 1) // (2 * repetitions)


def due_after(made: int, phase: int) -> int:
    """The first number of a round's steps, from `made` on, that lies `phase` steps after a checkpoint."""
    return made + (phase - made) % CHECKPOINT_STEPS


@dataclass(frozen=True, slots=True)
class Watched:
    """The outcome of a fault. `why`: what is known where the job did not get to full size in `limit_s` seconds, or
    cannot any more (`limit_s` None)."""

    outcome: Outcome
    limit_s: float | None
    why: str


class Job:
    """The rounds of one job that writes its marks to `marks`, a folder that is created."""

    def __init__(self, marks: Path, stop: Stop) -> None:
        marks.mkdir(parents=True)
        self.marks = marks
        self.stop = stop
        self._reader = MarkReader(marks)
        self._timeline = Timeline()

    def spans(self) -> list[Span]:
        """The rounds so far."""
        self.stop.check()
        self._timeline.add(self._reader.new())
        return self._timeline.spans()

    def pause(self, duration_s: float) -> None:
        """Between two looks. Raises InterruptedByUserError."""
        self.stop.check()
        time.sleep(duration_s)

    def settled(self, nodes: int, timeout_s: float, log_tail: Callable[[], str]) -> None:
        """Wait until a round of `nodes` nodes has made its first steps. Raises BenchError after `timeout_s`."""

        def is_settled() -> bool:
            spans = self.spans()
            return bool(spans) and len(spans[-1].nodes) == nodes and _made(spans[-1]) >= SETTLED_STEPS

        def late() -> str:
            spans = self.spans()
            made = f"{len(spans[-1].nodes)} made {_made(spans[-1])}" if spans else "none made one"
            return f"{nodes} nodes did not make {SETTLED_STEPS} steps within {timeout_s:g} s ({made}): {log_tail()}"

        self.stop.until(is_settled, timeout_s, late)

    def at_phase(self, phase: int, timeout_s: float = 30.0) -> Span:
        """Wait until the round that trains is `phase` steps past a checkpoint. Raises BenchError after `timeout_s`."""
        span = self.spans()[-1]
        due = due_after(_made(span), phase)
        deadline = time.monotonic() + timeout_s
        while _made(span) < due:
            if time.monotonic() > deadline:
                raise BenchError(f"round {span.round} made {_made(span)} steps, and no more for {timeout_s:g} s")
            self.pause(PHASE_LOOK_S)
            newest = self.spans()[-1]
            if newest.round != span.round:
                raise BenchError(f"round {span.round} ended before anything was done to it")
            span = newest
        return span

    def after_fault(
        self, old: Span, gone: str, full: int, limit_s: float, alive: Callable[[], bool] = lambda: True
    ) -> Watched:
        """Watch the job until `full` nodes without `gone` train, or it is not alive."""
        began = time.monotonic()
        while True:
            lives = alive()  # before the look: what it did last is counted
            found = outcome(self.spans(), old.round, gone, full)
            elapsed_s = time.monotonic() - began
            if found.full_s is not None:
                return Watched(found, limit_s, "")
            if not lives:
                return Watched(found, None, f"all other agents had ended after {elapsed_s:.0f} s")
            if elapsed_s > limit_s:
                return Watched(found, limit_s, f"watched for {limit_s:g} s")
            self.pause(LOOK_S)


def last_line(log: Path) -> str:
    """The last thing that a process printed."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _made(span: Span) -> int:
    return span.last_step + 1 - span.first_step
