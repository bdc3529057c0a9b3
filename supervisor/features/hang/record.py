"""Steps of a job that hang. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HangRecord:
    """Steps of a job that hang."""

    since: float = 0.0  # since when, as reported; 0 once a step was completed again
