"""When a job has to have finished, and whether it can. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadlineRecord:
    """When a job has to have finished, and whether it can."""

    finish_by: float = 0.0  # 0: at any time
    missed: bool = False  # people were told that it cannot
    pace_s: float = 0.0  # seconds for each step, as last noted, where its work is in steps; 0: not known
