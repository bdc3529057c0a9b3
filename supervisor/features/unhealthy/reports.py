"""Reports of unhealthy GPUs: how many at once are believed."""

from __future__ import annotations

from collections import Counter

from supervisor.model import NodeState
from supervisor.planner.world import JobView, World

_THERE = (NodeState.READY, NodeState.MEMBER, NodeState.SUSPECT)


def too_many_unhealthy(world: World, owner: str, now: float) -> int:
    """Return how many nodes report unhealthy GPUs, or did so within the last minutes and were replaced, where that is
    more than one and more than a tenth; else 0. Those of `owner` count, and where those of two others say so, too, all.

    GPUs die one by one. When many do, it is most likely the check that is broken, such as an nvidia-smi that no longer
    fits its driver: a fleet must not end for that (P4). What one owner's nodes say keeps no other's from being replaced
    (P16).
    """
    ill: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for job in world.jobs.values():
        ill[job.record.owner] += _ill(world, job, now)
        there[job.record.owner] += sum(node.id in job.agents for node in job.billed)
    if sum(count > 0 for each, count in ill.items() if each != owner) > 1:
        return _too_many(ill.total(), there.total())
    return _too_many(ill[owner], there[owner])


def _too_many(ill: int, there: int) -> int:
    return ill if ill > 1 and ill * 10 > there else 0


def _ill(world: World, job: JobView, now: float) -> int:
    recent = 0
    for node in job.nodes.values():
        if node.unhealthy_at:
            recent += now - node.unhealthy_at < world.rules.unhealthy.hold_s
        elif node.state in _THERE and (health := job.healths.get(node.id)) is not None:
            recent += not health.healthy
        elif node.unhealthy and node.state not in _THERE:  # it said so until it left, for another reason
            recent += now - node.state_since < world.rules.unhealthy.hold_s
    return recent
