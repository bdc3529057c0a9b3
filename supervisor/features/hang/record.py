"""Steps of a job that hang. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HangRecord:
    """Steps of a job that hang."""

    since: float = 0.0  # since when, as reported; 0 once a step was completed again
    hour_since: float = 0.0  # when the hour began of which reports are counted
    reports: int = 0  # of that, and of workers, in that hour
