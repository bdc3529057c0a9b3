"""Machines of a job that are fewer than it needs to train. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GangRecord:
    """Machines of a job that are fewer than it needs to train."""

    machines: int = 0  # how many; 0 while they are enough
    since: float = 0.0  # since when they are so many


@dataclass(frozen=True, slots=True)
class GangRules:
    """How long machines that are too few to train are kept, in seconds."""

    timeout_s: float = 120.0  # while none can be added (P13)
    retry_s: float = 150.0  # a job that cannot train believes no refusal for want of capacity for longer
