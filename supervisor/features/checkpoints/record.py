"""How a job saves, as its nodes report it. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointsRecord:
    """How a job saves, as its nodes report it."""

    problem: str = ""  # why checkpoints are not being written, as last reported; empty once they are again
    problem_step: int = 0  # step of the newest checkpoint at that report
    problem_at: float = 0.0  # when it was reported
    save_s: float = 0.0  # what 95 % of its last checkpoints took at most, as last noted; 0: not known
    step_s: float = 0.0  # its longest recent step, as last noted
    window_warned_s: float = 0.0  # the checkpoint time of the last alert that it exceeds a notice


@dataclass(frozen=True, slots=True)
class CheckpointsRules:
    """When people are told of checkpoints that fail."""

    alert_quiet_s: float = 600.0  # between two alerts
