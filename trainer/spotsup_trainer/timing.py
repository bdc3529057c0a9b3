"""Time limits and their reasons. Pure."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
MAX_OUTAGE_S = 3600.0
_MIN_CALL_S = 0.3  # an etcd that is well may take that when it is busy


def retry_s(failures: int) -> float:
    """The pause after so many failures in a row, the first of which is 0: soon at first, then once a second."""
    return RETRY_S[min(failures, len(RETRY_S) - 1)]


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """What follows from the length of a lease, in seconds, and from the number of etcd's endpoints.

    `call_s`: what one endpoint gets to answer. As many may be gone as an etcd of that size can do without, one after
    the other, and the lease is renewed nevertheless: the last of them is given up when a third of the lease is left.

    `pulse_s`: how often a watch's endpoint is asked whether it is there. With the time for the answer that is less than
    what is left of a lease that was renewed in time: a copy of the keys is known to be old before a lease can end.

    `grace_s`: from when etcd is back for one launcher until all others are, too: an attempt over all endpoints that
    was under way, the pause after it, and a lease's time to be granted another and to write.
    """

    ttl_s: float
    endpoints: int

    @property
    def call_s(self) -> float:
        dispensable = max(1, (self.endpoints - 1) // 2)
        return max(_MIN_CALL_S, self.ttl_s / 3 / dispensable)

    @property
    def renew_s(self) -> float:
        """How often the lease is renewed."""
        return self.ttl_s / 3

    @property
    def pulse_s(self) -> float:
        return self.ttl_s / 4

    @property
    def grace_s(self) -> float:
        return self.endpoints * self.call_s + RETRY_S[-1] + self.ttl_s


class Patience:
    """How long to wait: `limit_s`, not counting up to an hour in which etcd was `away` although it had been there."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._left_s = limit_s
        self._outage_left_s = MAX_OUTAGE_S
        self._at = now

    def is_over(self, now: float, *, away: bool) -> bool:
        """Whether it is over. What has passed since the last question passed as things are now."""
        passed_s, self._at = now - self._at, now
        if away and self._outage_left_s > 0:
            self._outage_left_s -= passed_s
        else:
            self._left_s -= passed_s
        return self._left_s <= 0
