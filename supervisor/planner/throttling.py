"""Clouds that refuse requests as too many: the launches of all jobs share what a cloud takes. Pure.

A cloud says how long to wait, and not how many requests it takes: EC2 has a bucket for each account that regains some
per second. How far apart they are made follows from what it grants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from supervisor.model import NodeRecord

FIRST_GAP_S = 0.5  # EC2's RunInstances regains two requests a second ("request throttling")
MIN_GAP_S = 0.02
MAX_GAP_S = 30.0
BURST_S = 2.0  # what was not used of the last seconds may be
FORGOTTEN_S = 60.0  # without a refusal or a grant
APART = 1.25
# A limit may have risen. By the second, and not by the grant: at 20 a second few more are refused than at one.
CLOSER_PER_S = 0.9
# What it grants is measured over so long; where that was little, over so many grants.
MEASURED_S, MEASURED = 5.0, 5


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """What is known of a cloud's limit of requests."""

    gap_s: float = FIRST_GAP_S  # between two requests
    used_until: float = 0.0  # turns were given up to this time
    answered_at: float = 0.0
    apart_at: float = 0.0  # when the gap last changed by a refusal; 0 before the first one
    grants: tuple[float, ...] = ()  # when it granted the last ones
    # Of nodes that wait: by which attempt they had a turn last, and when. What uses none delays no other.
    given: Mapping[str, tuple[int, float]] = field(default_factory=lambda: MappingProxyType({}))


def refused(known: RequestLimit, now: float) -> RequestLimit:
    """Return what is known after a request was refused as one too many: the next ones are as far apart as the last ones
    that were granted. Many that were under way at once say it once."""
    if limits(known, now) and now < known.apart_at + BURST_S:
        return replace(known, answered_at=now)
    before_s = known.gap_s if limits(known, now) else FIRST_GAP_S / APART
    gap_s = _measured_gap_s(known.grants, now) or before_s * APART
    used_until = known.used_until if limits(known, now) else now
    return replace(known, gap_s=_within(gap_s), used_until=used_until, answered_at=now, apart_at=now)


def granted(known: RequestLimit, now: float) -> RequestLimit:
    """Return what is known after a request was granted."""
    gap_s = known.gap_s * CLOSER_PER_S ** min(known.gap_s, FIRST_GAP_S)
    return replace(known, answered_at=now, gap_s=_within(gap_s), grants=(*_lately(known.grants, now), now))


def limits(known: RequestLimit | None, now: float) -> bool:
    """True while requests to the cloud take turns."""
    return known is not None and known.apart_at > 0.0 and now <= known.answered_at + FORGOTTEN_S


def _lately(grants: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Return the grants by which the gap is measured."""
    recent = tuple(at for at in grants if now - MEASURED_S <= at <= now)
    return (
        recent if len(recent) >= MEASURED else tuple(at for at in grants[-MEASURED:] if now - FORGOTTEN_S <= at <= now)
    )


def _measured_gap_s(grants: tuple[float, ...], now: float) -> float:
    """Return how far apart the last grants were; 0 where there were none."""
    lately = _lately(grants, now)
    if not lately:
        return 0.0
    many = len(lately) >= MEASURED and now - lately[0] <= MEASURED_S
    return (MEASURED_S if many else now - lately[0]) / len(lately)


def _within(gap_s: float) -> float:
    return min(MAX_GAP_S, max(MIN_GAP_S, gap_s))


def give_turns(
    known_limits: Mapping[str, RequestLimit], waiting: Iterable[NodeRecord], now: float
) -> tuple[dict[str, int], dict[str, RequestLimit]]:
    """Return which of the nodes that wait for their machine ask for it now, each with its place among them, and what is
    known then: the oldest of each job, then the second of each."""
    by_cloud: dict[str, list[NodeRecord]] = {}
    for node in waiting:
        by_cloud.setdefault(node.offer.cloud, []).append(node)
    turns: dict[str, int] = {}
    kept = {}
    for cloud, known in known_limits.items():
        if not limits(known, now):
            kept[cloud] = known
            continue
        since = min(now, max(known.used_until, now - max(BURST_S, known.gap_s)))  # a clock may be set back
        in_order = _in_order(by_cloud.get(cloud, ()), known.given)
        new = in_order[: int((now - since) / known.gap_s)]
        turns |= {each.id: place for place, each in enumerate(new)}
        given = {each.id: known.given[each.id] for each in in_order if each.id in known.given}
        given |= {each.id: (each.launch_attempts, now) for each in new}
        kept[cloud] = replace(known, used_until=since + len(new) * known.gap_s, given=MappingProxyType(given))
    return turns, kept


def _in_order(waiting: Iterable[NodeRecord], given: Mapping[str, tuple[int, float]]) -> list[NodeRecord]:
    """Return who comes first. A node stands behind as many of another job as of its own, not behind all of one that is
    large; one that had a turn and did not use it, as where its job has no room, as if it had come then."""

    def since(node: NodeRecord) -> float:
        attempts, at = given.get(node.id, (-1, 0.0))
        return at if attempts == node.launch_attempts else node.created_at

    before: Counter[str] = Counter()
    places = []
    for node in sorted(waiting, key=lambda each: (since(each), each.id)):
        places.append((before[node.job], since(node), node.id, node))
        before[node.job] += 1
    return [node for *_, node in sorted(places, key=lambda place: place[:-1])]
