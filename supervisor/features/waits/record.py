"""What people were told of how long a job waits for machines. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitsRecord:
    """What people were told of how long a job waits for machines."""

    reported_at: float = 0.0  # when; 0 once it trains, or has ended


@dataclass(frozen=True, slots=True)
class WaitsRules:
    """When people are told of waiting."""

    alert_s: float = 7200.0  # a job has waited for machines for so long
