"""Hosts that are gone: no provider says so of one's own machines, so their silence has to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

GONE_S = 120.0
"""A host that has been silent for so long, while others answer, is gone, and all that ran on it."""

TOGETHER_S = 90.0
"""Hosts that fell silent within this time did so together: a listing may be a minute after the last one."""

COLD_S = 3600.0
"""And so long one of which the daemon has heard nothing since it began: when it fell silent is not known."""

MANY = 0.1
"""More than one, and more than this share of all hosts, is the network's silence (P4)."""


def gone_hosts(
    silent_since: Mapping[str, float], heard: Collection[str], computers: Mapping[str, str], now: float
) -> Collection[str]:
    """Return the hosts that are gone.

    `silent_since`: of the hosts that do not answer. `heard`: those that have answered since the daemon began.
    `computers`: each host's computer, which may be several hosts. Where no computer answers, none is gone: it is ours
    that is cut off.
    """
    since = {computers[host]: at for host, at in silent_since.items()}
    known = {computers[host] for host in heard}
    everyone = len(set(computers.values()))
    if len(since) == everyone:
        return frozenset()

    def is_gone(computer: str, at: float) -> bool:
        if computer not in known:
            return now - at >= COLD_S
        together = sum(abs(other - at) <= TOGETHER_S for name, other in since.items() if name in known)
        return now - at >= GONE_S and (together == 1 or together <= MANY * everyone)

    gone = {computer for computer, at in since.items() if is_gone(computer, at)}
    return frozenset(host for host in silent_since if computers[host] in gone)
