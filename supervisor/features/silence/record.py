"""Silent nodes of a job that are kept. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceRecord:
    """Silent nodes of a job that are kept."""

    since: float = 0.0  # since when; 0 while none are
    reported_at: float = 0.0  # when that was last reported
