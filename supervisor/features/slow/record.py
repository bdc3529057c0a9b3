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


@dataclass(frozen=True, slots=True)
class SlowRules:
    """Which node is slow, and how often one is replaced for that."""

    factor: float = 1.3  # of the median of those of its kind: a node that works so many times as long is slow
    lasts_s: float = 600.0  # one for which reports say so for so long is said to be slow; no longer, likewise
    share: float = 0.1  # more than one, and more than this share of a job's nodes: it is not the machines
    again_s: float = 3600.0  # a job replaces no further node for being slow
    max_a_day: int = 3  # a job replaces no more in a day
    limit_s: float = 1800.0  # a slow node that is not replaced by then stays
