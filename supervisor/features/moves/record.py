"""Moves of a job to machines elsewhere. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MovesRecord:
    """Moves of a job to machines elsewhere."""

    since: float = 0.0  # since when nodes are requested ahead of a move; 0 while none are
    retry_at: float = 0.0  # no node is requested ahead of a move before
    failed: int = 0  # in a row, of those for which machines were launched
    in_row: int = 0  # each soon after the one before
