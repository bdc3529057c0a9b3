"""How often each fault occurs, and the one seeded source of randomness that draws them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class FaultRates:
    """Probabilities per call or machine, and delays in seconds. The default is a world without faults."""

    # Launch calls
    transient: float = 0.0  # refused with a transient error or throttled; the call has no effect
    lost_reply: float = 0.0  # a machine is launched, but no reply arrives
    # Any call to the cloud, and alerts
    unreachable: float = 0.0
    denied: float = 0.0  # the credentials have expired
    false_error: float = 0.0  # the call took effect, and an error is returned
    false_success: float = 0.0  # the call had no effect, and success is returned
    slow_call: float = 0.0  # takes up to 20 s
    hung_call: float = 0.0  # never returns; the daemon's time limit ends it
    # Listings
    dropped: float = 0.0  # machines are missing
    doubled: float = 0.0  # machines are listed twice
    reordered: float = 0.0  # older than the previous listing
    unfiltered: float = 0.0  # shows what belongs to other installations, too
    unreadable: float = 0.0  # a machine is described so that it cannot be read
    listing_lag_s: float = 0.0
    # Machines
    bootstrap: float = 0.0  # the bootstrap of a node fails
    slow_boot: float = 0.0
    early_death: float = 0.0  # a machine ends before it is of use
    reused: float = 0.0  # a machine gets the address of one that has ended
    skew_s: float = 0.0  # largest error of clouds' and nodes' clocks
    # etcd
    unanswered_commit: float = 0.0  # a transaction's result is unknown
    mirror_lag_s: float = 0.0


class FaultRng:
    """Draws faults and delays from one seed, and counts the faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.injected: Counter[str] = Counter()

    def inject(self, kind: str, probability: float) -> bool:
        """True if a fault occurs now; if it does, count it."""
        if probability <= 0 or self.random.random() >= probability:
            return False
        self.injected[kind] += 1
        return True

    def uniform(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)
