"""Machines of a job that are fewer than it needs to train. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GangRecord:
    """Machines of a job that are fewer than it needs to train."""

    machines: int = 0  # how many; 0 while they are enough
    since: float = 0.0  # since when they are so many
