"""The agent's decisions. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from spotsup_trainer.launcher.run_dir import Outcome
from spotsup_trainer.wire import Ended, Progress

_RESTART_AFTER_S = (1.0, 2.0, 4.0, 8.0, 16.0)
MAX_CRASHES = len(_RESTART_AFTER_S)
# A launcher that ran this long resets the count of crashes.
HEALTHY_AFTER_S = 120.0

CHUNK_BYTES = 32 * 1024
BYTES_PER_S = 16 * 1024

_USAGE = 2


@dataclass(frozen=True, slots=True)
class Exit:
    """How a launcher ended."""

    node: str
    code: int
    # Written by the launcher; None if it died before.
    outcome: Outcome | None
    # It was asked to leave.
    leaving: bool
    # How often in a row it died before.
    crashes: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the launcher again after a while."""

    after_s: float
    reason: str


Verdict: TypeAlias = Ended | Restart


def judge(end: Exit, at: float) -> Verdict:
    """Whether the node is done with its job, or its launcher should be restarted. `at`: UNIX seconds."""
    if end.outcome is not None:
        return Ended(end.node, end.outcome.outcome, end.code, end.outcome.message, at)
    how = f"killed by signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
    if end.leaving:
        return Ended(end.node, "left", end.code, f"the launcher was asked to leave: {how}", at)
    if end.code == _USAGE:
        return Ended(end.node, "failure", end.code, "the launcher refused its command line; see the log", at)
    if end.crashes >= MAX_CRASHES:
        return Ended(end.node, "failure", end.code, f"the launcher died {end.crashes + 1} times in a row: {how}", at)
    return Restart(_RESTART_AFTER_S[end.crashes], f"the launcher died: {how}")


def must_leave(deadline: float | None, margin_s: float, now: float) -> bool:
    """Whether the node has to leave now, even if the daemon has not asked it to. Times are UNIX seconds."""
    return deadline is not None and now >= deadline - margin_s


def chunk_of(unread: int, since_last_s: float) -> tuple[int, int]:
    """How many of `unread` bytes of log to skip, and how many to send after them."""
    take = min(unread, CHUNK_BYTES, int(BYTES_PER_S * max(1.0, since_last_s)))
    return unread - take, take


def has_changed(before: Progress | None, after: Progress) -> bool:
    """Whether more than the step has changed: the round, the newest checkpoint, or the problem with checkpoints."""
    return before is None or _beside_step(before) != _beside_step(after)


def _beside_step(progress: Progress) -> tuple[int, int, str]:
    return progress.round, progress.checkpoint_step, progress.checkpoint_problem
