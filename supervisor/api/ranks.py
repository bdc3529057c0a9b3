"""How long each rank of a job works in a step, and for how long all others wait for it."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from supervisor.api.rows import RankRow
from supervisor.planner.world import JobView

# Of what a rank works in a step: a shorter wait for it is noise.
MIN_WAITED = 0.1


def is_waited_for(rank: RankRow) -> bool:
    """Whether all others wait for a rank for longer than noise makes them."""
    return rank["waited_s"] >= MIN_WAITED * rank["step_s"]


def rank_rows(view: JobView) -> list[RankRow]:
    """One row for each rank of the current round, as they said last; none where they said nothing in it.

    The others wait for a rank for as much longer as it works than the median of the ranks on machines of its kind.
    """
    times, current = view.rank_times, view.round
    if times is None or current is None or times.round != current.number or view.record.ended:
        return []
    nodes = current.nodes()
    per_node, left = divmod(len(times.step_s), len(nodes))
    if left or not per_node:
        return []
    of_rank = [nodes[rank // per_node] for rank in range(len(times.step_s))]
    kinds = [view.nodes[node].offer.instance_type if node in view.nodes else "" for node in of_rank]
    alike: dict[str, list[float]] = defaultdict(list)
    for kind, seconds in zip(kinds, times.step_s, strict=True):
        if seconds > 0:
            alike[kind].append(seconds)
    return [
        {"rank": rank, "node": node, "step_s": seconds, "waited_s": round(max(0.0, seconds - median(alike[kind])), 6)}
        for rank, (node, kind, seconds) in enumerate(zip(of_rank, kinds, times.step_s, strict=True))
        if seconds > 0
    ]
