"""How long each rank of a job works in a step, and for how long all others wait for it."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from supervisor.api.rows import RankRow
from supervisor.features.slow.rank_times import by_node
from supervisor.planner.world import JobView

# Of what a rank works in a step: a shorter wait for it is noise.
MIN_WAITED = 0.1


def is_waited_for(rank: RankRow) -> bool:
    """True if all others wait for a rank for longer than noise makes them."""
    return rank["waited_s"] >= MIN_WAITED * rank["step_s"]


def rank_rows(view: JobView) -> list[RankRow]:
    """Return one row for each rank of the current round, as they said last; none where they said nothing in it.

    The others wait for a rank for as much longer as it works than the median of the ranks on machines of its kind.
    """
    times, current = view.rank_times, view.round
    if times is None or current is None or times.round != current.number or view.record.ended:
        return []
    ranks = [
        (node, view.nodes[node].offer.instance_type if node in view.nodes else "", seconds)
        for node, reported in by_node(times.step_s, current.nodes()).items()
        for seconds in reported
    ]
    alike: dict[str, list[float]] = defaultdict(list)
    for _, kind, seconds in ranks:
        if seconds > 0:
            alike[kind].append(seconds)
    return [
        {"rank": rank, "node": node, "step_s": seconds, "waited_s": round(max(0.0, seconds - median(alike[kind])), 6)}
        for rank, (node, kind, seconds) in enumerate(ranks)
        if seconds > 0
    ]
