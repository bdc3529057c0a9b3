"""What people were told of how long a job waits for machines. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitsRecord:
    """What people were told of how long a job waits for machines, or lacks some."""

    reported_at: float = 0.0  # when they were last
    times: int = 0  # how often since it waits; 0 once it has what it needs, or has ended
    lacks: bool = False  # that it trains, and lacks some; else that it does not train


@dataclass(frozen=True, slots=True)
class WaitsRules:
    """When people are told of waiting."""

    alert_s: float = 7200.0  # a job has waited for its first machines for so long
    lacks_s: float = 1800.0  # it trains, and has lacked some of its nodes for so long; or has stopped to train
