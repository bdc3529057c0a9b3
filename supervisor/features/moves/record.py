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


@dataclass(frozen=True, slots=True)
class MovesRules:
    """When a job moves; docs/decisions/0038-places.md has what that gains on recordings."""

    after_s: float = 120.0  # nothing has changed for so long
    arrival_s: float = 120.0  # both sets of nodes are paid for so long
    pause_s: float = 10.0  # nobody trains for so long, beside a checkpoint
    horizon_s: float = 3600.0  # for so long a place is as it is now
    gain: float = 2.0  # what is gained in that time is so many times the cost
    probe_s: float = 600.0  # a refusal speaks against a move for so much longer, as each try costs requests
    limit_s: float = 1800.0  # a move whose nodes are not ready is given up after
    rest_s: float = 600.0  # after a move; twice that after each further one within `max_retry_s`
    retry_s: float = 300.0  # after a move that was given up; twice that after each further one
    max_retry_s: float = 3600.0  # at most that
    back_to_spot_s: float = 900.0  # an on-demand node stays for so long before spot is asked for again
    back_to_listed_s: float = 900.0  # a job has an alternative for so long before one listed earlier is asked for
