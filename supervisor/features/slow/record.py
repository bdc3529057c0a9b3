"""Nodes that all others wait for. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlowNode:
    """What people were told of a node that is slow, and whether it leaves for that."""

    at: float = 0.0  # when they were told that all others wait for it; 0 while they do not
    factor: float = 0.0  # how many times as long as most it worked in a step, then
    leaves_at: float = 0.0  # since when it is to leave for that, once it is replaced; 0 while it is not


@dataclass(frozen=True, slots=True)
class SlowRecord:
    """Replacements of a job's slow nodes."""

    replaced_at: tuple[float, ...] = ()  # when they were begun, of the last day
