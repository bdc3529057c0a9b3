"""What the agent decides. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from spotsup_trainer.wire import Ended, Progress

_RESTART_AFTER_S = (1.0, 2.0, 4.0, 8.0, 16.0)
MAX_CRASHES = len(_RESTART_AFTER_S)
# A launcher that ran this long did not crash because of how it was started.
FORGIVEN_AFTER_S = 120.0

CHUNK_BYTES = 32 * 1024
BYTES_PER_S = 16 * 1024

_USAGE = 2


@dataclass(frozen=True, slots=True)
class Exit:
    """How a launcher ended. `word`: outcome and message by its own word, None where it died without one.

    `told`: it was told to leave. `crashes`: how often in a row it died before.
    """

    node: str
    code: int
    word: tuple[str, str] | None
    told: bool
    crashes: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the launcher again after a while."""

    after_s: float
    reason: str


Judgement: TypeAlias = Ended | Restart


def judge(end: Exit, at: float) -> Judgement:
    """Whether the node is done with its job, or its launcher should be started again. `at`: UNIX seconds."""
    if end.word is not None:
        outcome, message = end.word
        if outcome in {"success", "failure", "left"}:
            return Ended(end.node, outcome, end.code, message, at)  # type: ignore[arg-type]  # just tested
    how = f"killed by signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
    if end.told:
        return Ended(end.node, "left", end.code, f"the launcher was told to leave: {how}", at)
    if end.code == _USAGE:
        return Ended(end.node, "failure", end.code, "the launcher refuses its command line; see the log", at)
    if end.crashes >= MAX_CRASHES:
        return Ended(end.node, "failure", end.code, f"the launcher died {end.crashes + 1} times in a row: {how}", at)
    return Restart(_RESTART_AFTER_S[end.crashes], f"the launcher died: {how}")


def must_leave(deadline: float | None, margin_s: float, now: float) -> bool:
    """Whether the node has to leave now by itself, whatever the daemon does. Times are UNIX seconds."""
    return deadline is not None and now >= deadline - margin_s


def chunk_of(unread: int, since_last_s: float) -> tuple[int, int]:
    """How many of `unread` bytes of log to skip, and how many to send then."""
    take = min(unread, CHUNK_BYTES, int(BYTES_PER_S * max(1.0, since_last_s)))
    return unread - take, take


def is_news(before: Progress | None, after: Progress) -> bool:
    """Whether progress tells of more than further steps: of another round, of a checkpoint, of trouble with them."""
    return before is None or _news(before) != _news(after)


def _news(progress: Progress) -> tuple[int, int, str]:
    return progress.round, progress.checkpoint_step, progress.checkpoint_problem
