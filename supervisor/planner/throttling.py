"""Clouds that refuse requests as too many: all jobs' repeated launches share what a cloud takes, oldest first. Pure.

A cloud says how long to wait, and not how many requests it takes: EC2 has a bucket for each account that regains some
per second. How far apart they are repeated follows from what it grants. A node's first request is not held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from supervisor.model import NodeRecord

FIRST_GAP_S = 0.5  # EC2's RunInstances regains two requests a second ("request throttling")
MIN_GAP_S = 0.02
MAX_GAP_S = 30.0
BURST_S = 2.0  # what was not used of the last seconds may be
FORGOTTEN_S = 60.0  # without a refusal or a grant
CLOSER, APART = 0.95, 1.25


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """What is known of a cloud's limit of requests."""

    gap_s: float  # between two requests that are repeated
    used_until: float  # turns were given up to this time
    answered_at: float
    apart_at: float  # when the gap last grew
    # Nodes that wait and had a turn since all had one: what uses none delays no other.
    given: frozenset[str] = frozenset()


def refused(known: RequestLimit | None, node: NodeRecord, now: float) -> RequestLimit:
    """Return what is known after a request was refused as one too many. Only one that was repeated in its turn says
    that they are too close together, and many that were under way at once say it once."""
    if known is None or _is_forgotten(known, now):
        return RequestLimit(FIRST_GAP_S, now, now, now)
    if node.launch_attempts <= 1 or now < known.apart_at + BURST_S:
        return replace(known, answered_at=now)
    return replace(known, answered_at=now, gap_s=min(MAX_GAP_S, known.gap_s * APART), apart_at=now)


def granted(known: RequestLimit, node: NodeRecord, now: float) -> RequestLimit:
    """Return what is known after a request was granted."""
    gap_s = max(MIN_GAP_S, known.gap_s * CLOSER) if node.launch_attempts > 1 else known.gap_s
    return replace(known, answered_at=now, gap_s=gap_s)


def _is_forgotten(known: RequestLimit, now: float) -> bool:
    return now > known.answered_at + FORGOTTEN_S


def give_turns(
    limits: Mapping[str, RequestLimit], waiting: Iterable[NodeRecord], now: float
) -> tuple[frozenset[str], dict[str, RequestLimit]]:
    """Return which of the nodes whose request may be repeated repeat it now, and what is known then."""
    by_cloud: dict[str, list[NodeRecord]] = {}
    for node in waiting:
        by_cloud.setdefault(node.offer.cloud, []).append(node)
    turns: set[str] = set()
    kept = {}
    for cloud, known in limits.items():
        if _is_forgotten(known, now):
            continue
        since = min(now, max(known.used_until, now - max(BURST_S, known.gap_s)))  # a clock may be set back
        in_order = sorted(by_cloud.get(cloud, ()), key=lambda each: (each.id in known.given, each.created_at, each.id))
        new = frozenset(each.id for each in in_order[: int((now - since) / known.gap_s)])
        given = new | known.given.intersection(each.id for each in in_order)
        turns |= new
        kept[cloud] = replace(
            known,
            used_until=since + len(new) * known.gap_s,
            given=given if len(given) < len(in_order) else frozenset(),
        )
    return frozenset(turns), kept
