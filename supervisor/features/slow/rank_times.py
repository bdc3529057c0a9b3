"""What the times of ranks say of their nodes.

A rank says for how long it works in a step by itself (spotsup_trainer/session/work.py). A node is as slow as its
slowest rank. What one report says is never enough: it has to be so for ten minutes, but for single reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

from spotsup_trainer.wire import RankTimes

# A program may report any times, and their quotient may be no number that a record can hold.
MAX_FACTOR = 1000.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What reports since `since` said of a node, but for single ones."""

    slow: bool
    since: float
    doubted: bool = False  # the last report said otherwise: with the next one that does, the verdict is another


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen of a job's nodes."""

    times: RankTimes  # the last report
    seen_at: float  # when it arrived
    factors: Mapping[str, float]  # by node, as it says
    verdicts: Mapping[str, Verdict]  # by node

    def lasted_s(self, node: str, paused_until: float = 0.0) -> float:
        """Return for how long the verdict on a node has been the same, without the time before `paused_until`."""
        return self.seen_at - max(self.verdicts[node].since, paused_until)


def by_node(seconds: Sequence[float], nodes: Sequence[str]) -> dict[str, Sequence[float]]:
    """Return what a round's ranks report, by their node; nothing where the nodes have not as many ranks each."""
    per_node, left = divmod(len(seconds), max(1, len(nodes)))
    if left or not per_node:
        return {}
    return {node: seconds[number * per_node : (number + 1) * per_node] for number, node in enumerate(nodes)}


def factors(times: RankTimes, kinds: Mapping[str, str]) -> dict[str, float]:
    """Node -> how many times as long as the median of its kind its slowest rank works in a step.

    `kinds`: by node, in rank order, of the round that `times` is of; nodes of different kinds take different times.
    Parts of a batch may differ by a sample: the time for each sample has to be as much longer as that for the step.
    """
    if len(times.sample_s) != len(times.step_s):
        return {}
    by_step, by_sample = (_compared(by_node(each, list(kinds)), kinds) for each in (times.step_s, times.sample_s))
    return {node: min(factor, by_sample.get(node, factor)) for node, factor in by_step.items()}


def _compared(ranks: Mapping[str, Sequence[float]], kinds: Mapping[str, str]) -> dict[str, float]:
    """Return the comparison of the nodes that are known as a whole, where they are known of more than one node of their
    kind."""
    slowest: dict[str, dict[str, float]] = defaultdict(dict)
    for node, seconds in ranks.items():
        if min(seconds) > 0:
            slowest[kinds[node]][node] = max(seconds)
    alike = [found for found in slowest.values() if len(found) > 1]
    return {node: min(MAX_FACTOR, took / median(found.values())) for found in alike for node, took in found.items()}


def _verdict(earlier: Verdict | None, slow: bool, now: float) -> Verdict:
    """On a busy machine a single report of a slow node may be as of any other, and the other way round."""
    if earlier is None or (earlier.slow != slow and earlier.doubted):
        return Verdict(slow, now)
    return replace(earlier, doubted=earlier.slow != slow)


def watched(
    before: Watch | None, times: RankTimes, kinds: Mapping[str, str], slow_factor: float, quiet_s: float, now: float
) -> Watch:
    """Return what was seen, after `times` were read at `now`. After `quiet_s` without a report it begins anew."""
    if before is not None and before.times == times:
        return before
    goes_on = before is not None and now - before.seen_at <= quiet_s
    known = before.verdicts if before is not None and goes_on else {}
    found, verdicts = factors(times, kinds), {}
    for node, factor in found.items():
        verdicts[node] = _verdict(known.get(node), factor >= slow_factor, now)
    return Watch(times, now, MappingProxyType(found), MappingProxyType(verdicts))
