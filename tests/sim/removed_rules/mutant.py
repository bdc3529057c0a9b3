"""A rule of the daemon or of launchers, and how to remove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A rule, and how to remove it from a module (its dotted name)."""

    name: str
    module: str
    old: str
    new: str
    # What detects it, below tests/; "" where random scenarios have to.
    test: str = ""
