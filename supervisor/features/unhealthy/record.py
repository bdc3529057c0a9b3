"""How much is believed of reports of unhealthy GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnhealthyRules:
    """What is believed of reports of unhealthy GPUs."""

    max_streak: int = 3  # unhealthy machines of one type in a row; then the type is blocked
    memory_s: float = 3600.0  # for so long
    hold_s: float = 600.0  # a node that was found unhealthy counts among those at once
