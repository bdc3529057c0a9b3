"""The job of a higher priority that a job made room for. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """The job of a higher priority that a job made room for."""

    displaced_by: str = ""
    displaced_at: float = 0.0  # when it was last to pause for such a job
