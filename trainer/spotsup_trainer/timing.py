"""Time limits and their reasons. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
MAX_OUTAGE_S = 3600.0
_MIN_CALL_S = 0.3  # a healthy etcd may take that long under load


def retry_s(failures: int) -> float:
    """Return the pause after `failures` failures in a row before this one: short at first, then one second."""
    return RETRY_S[min(failures, len(RETRY_S) - 1)]


@dataclass(frozen=True)
class LeaseTimes:
    """Time limits that follow from the length of a lease, in seconds, and from the number of etcd endpoints."""

    ttl_s: float
    endpoints: int

    @property
    def call_s(self) -> float:
        """Return how long one endpoint may take to answer.

        A lease is renewed even if a minority of the endpoints is down and each of those times out first: the last of
        them is given up when a third of the lease is left.
        """
        minority = max(1, (self.endpoints - 1) // 2)
        return max(_MIN_CALL_S, self.ttl_s / 3 / minority)

    @property
    def renew_s(self) -> float:
        """Return how often the lease is renewed."""
        return self.ttl_s / 3

    @property
    def pulse_s(self) -> float:
        """Return how often a watch's endpoint is probed.

        A probe and its time limit are shorter than what is left of a lease that was renewed in time: a mirror knows
        that it is stale before a lease can end.
        """
        return self.ttl_s / 4

    @property
    def beat_s(self) -> float:
        """Return how often a member of a round shows the others that it runs, in the round's own store."""
        return self.ttl_s / 10

    @property
    def heard_s(self) -> float:
        """Return for how long one such sign counts: for less than a launcher's death precedes the end of its lease."""
        return self.ttl_s / 2

    @property
    def grace_s(self) -> float:
        """Return from when etcd is back for one launcher until it is back for all.

        It covers an attempt over all endpoints, the pause after it, and the time to be granted a lease and to write.
        """
        return self.endpoints * self.call_s + RETRY_S[-1] + self.ttl_s


# How long a launcher may import what its program will need, before it waits at the rendezvous.
MAX_PREPARE_S = 120.0
MAX_YIELD_S = 7200.0
_UNMEASURED_YIELD_S = 120.0


@dataclass(frozen=True)
class SaveTimes:
    """What a job's checkpoints and steps take, measured, in seconds; 0: not known yet."""

    checkpoint_s: float = 0.0
    step_s: float = 0.0

    def window_s(self, margin_s: float) -> float:
        """Return how long before its deadline a node begins to leave: for the step under way, and for a checkpoint that
        takes twice as long as most. A checkpoint that is being written must end before the last one begins."""
        return margin_s + self.step_s + 2 * self.checkpoint_s

    @property
    def yield_s(self) -> float:
        """Return how long workers may take to park where no machine is about to go: then only a worker that hangs is
        late."""
        if not self.checkpoint_s:
            return _UNMEASURED_YIELD_S
        return min(MAX_YIELD_S, max(_UNMEASURED_YIELD_S, 4 * self.checkpoint_s + 2 * self.step_s))


def seconds_in(environ: Mapping[str, str], name: str) -> float | None:
    """Return the seconds that a variable gives, None without it. Raises ValueError for what is no time above 0."""
    text = environ.get(name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ValueError(f"{name} is {text!r}; it must be a number of seconds, more than 0")
    return found


class Patience:
    """A time limit of `limit_s` that does not count outages of etcd, up to an hour of them."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._left_s = limit_s
        self._outage_left_s = MAX_OUTAGE_S
        self._at = now

    def is_over(self, now: float, *, away: bool) -> bool:
        """True if the limit has passed. `away`: etcd has been away since the last call."""
        passed_s, self._at = now - self._at, now
        if away and self._outage_left_s > 0:
            self._outage_left_s -= passed_s
        else:
            self._left_s -= passed_s
        return self._left_s <= 0
