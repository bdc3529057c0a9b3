"""How a simulated job trained, and what it lost."""

from __future__ import annotations

from dataclasses import dataclass

from spotsup_trainer.wire import Round


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
