"""What may go wrong, how often, and how often it did. Every fault is drawn from one seeded source."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """How nasty the world is: probabilities per call or machine, and delays in seconds.

    `false_error`: the call did what it says that it did not. `false_success`: the other way round. `dropped` and
    `doubled`: machines in a listing. `reordered`: a listing may show what is older than what the last one showed.
    `reused`: a machine gets the address of one that is gone. `skew_s`: how wrong clocks of clouds and nodes are.
    """

    transient: float = 0.0
    lost_reply: float = 0.0
    unreachable: float = 0.0
    bootstrap: float = 0.0
    unanswered_commit: float = 0.0
    slow_call: float = 0.0
    hung_call: float = 0.0
    false_error: float = 0.0
    false_success: float = 0.0
    dropped: float = 0.0
    doubled: float = 0.0
    reordered: float = 0.0
    reused: float = 0.0
    slow_boot: float = 0.0
    listing_lag_s: float = 0.0
    mirror_lag_s: float = 0.0
    skew_s: float = 0.0


class Dice:
    """The one source of chance, and a count of what it brought."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.injected: Counter[str] = Counter()

    def hits(self, kind: str, probability: float) -> bool:
        """Whether it happens now."""
        if probability <= 0 or self.rng.random() >= probability:
            return False
        self.injected[kind] += 1
        return True

    def between(self, low: float, high: float) -> float:
        """Any number between these."""
        return self.rng.uniform(low, high)
