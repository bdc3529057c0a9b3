"""The agent's decisions. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from spotsup_trainer.launcher.run_dir import Outcome
from spotsup_trainer.wire import Ended, Progress

_RESTART_AFTER_S = (1.0, 2.0, 4.0, 8.0, 16.0)
MAX_CRASHES = len(_RESTART_AFTER_S)
# A launcher that ran this long resets the count of crashes.
HEALTHY_AFTER_S = 120.0

# What all nodes of one job may keep in etcd of their output, and write there in a second: rewritten chunks count, too.
# etcd keeps its history for up to 20 minutes, so the second is what fills it.
JOB_KEPT_BYTES = 16 << 20
JOB_BYTES_PER_S = 128 << 10
# A value in etcd. A chunk is rewritten with what follows it until it has MIN_CHUNK_BYTES.
MAX_CHUNK_BYTES = 32 << 10
MIN_CHUNK_BYTES = 4 << 10
# One read of the file; what is older and unread is skipped.
MAX_READ_BYTES = 1 << 20

_USAGE = 2


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Restart:
    """Start the launcher again after a while."""

    after_s: float
    reason: str


Verdict = Union[Ended, Restart]


def judge(end: Exit, at: float) -> Verdict:
    """Return whether the node is done with its job, or its launcher should be restarted. `at`: UNIX seconds."""
    if end.outcome is not None:
        return Ended(end.node, end.outcome.outcome, end.code, end.outcome.message, at)
    how = f"killed by signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
    if end.leaving:
        return Ended(end.node, "left", end.code, f"the launcher was asked to leave: {how}", at)
    if end.code == _USAGE:
        why = "the launcher rejected its command line, such as the script's path; see the log"
        return Ended(end.node, "failure", end.code, why, at)
    if end.crashes >= MAX_CRASHES:
        return Ended(end.node, "failure", end.code, f"the launcher died {end.crashes + 1} times in a row: {how}", at)
    return Restart(_RESTART_AFTER_S[end.crashes], f"the launcher died: {how}")


def must_leave(deadline: float | None, margin_s: float, now: float) -> bool:
    """True if the node has to leave now, even if the daemon has not asked it to. Times are UNIX seconds."""
    return deadline is not None and now >= deadline - margin_s


@dataclass(frozen=True)
class LogBudget:
    """What one node may send of its output to etcd."""

    kept_bytes: int
    bytes_per_s: int


def log_budget(max_nodes: int) -> LogBudget:
    """Return one node's share of its job's budget, within bounds that keep it useful."""
    share = max(1, max_nodes)
    return LogBudget(
        min(max(JOB_KEPT_BYTES // share, 64 << 10), 1 << 20), min(max(JOB_BYTES_PER_S // share, 1 << 10), 16 << 10)
    )


def collapse(raw: bytes, *, open_line: bool) -> bytes:
    """Output without what a terminal would have overwritten: of a progress bar that redraws its line, the last drawing.

    `open_line`: what was sent before ended within a line, which `raw` continues, or draws over from its start.
    """
    lines = raw.split(b"\n")
    shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
    begins_anew = open_line and b"\r" in lines[0].rstrip(b"\r")
    return b"\n" * begins_anew + b"\n".join(shown)


def cut(text: bytes, room: int, skipped: int, where: str) -> bytes:
    """Return the end of `text` in `room` bytes, from a line's start if there is one, under a note on what is missing.

    `skipped`: bytes that are missing already. `where`: says where the whole is. Nothing is noted if nothing is missing.
    """
    if len(text) > room:
        skipped += len(text) - room
        text = text[len(text) - room :]
    return f"… {skipped} bytes skipped; {where}\n".encode() + text if skipped else text


def has_changed(before: Progress | None, after: Progress) -> bool:
    """True if more than the step has changed: the round, the newest checkpoint, or the problem with checkpoints."""
    return before is None or _beside_step(before) != _beside_step(after)


def _beside_step(progress: Progress) -> tuple[int, int, str]:
    return progress.round, progress.checkpoint_step, progress.checkpoint_problem
