"""Reports of unhealthy GPUs: how many at once are believed."""

from __future__ import annotations

from supervisor.model import NodeState
from supervisor.planner.world import World

_THERE = (NodeState.READY, NodeState.MEMBER, NodeState.SUSPECT)


def too_many_unhealthy(world: World, now: float) -> int:
    """Return how many nodes of all jobs report unhealthy GPUs, or did so within the last minutes and were replaced,
    where that is more than one and more than a tenth; else 0.

    GPUs die one by one. When many do, it is most likely the check that is broken, such as an nvidia-smi that no longer
    fits its driver: a fleet must not end for that (P4).
    """
    recent = 0
    for job in world.jobs.values():
        for node in job.nodes.values():
            if node.unhealthy_at:
                recent += now - node.unhealthy_at < world.rules.unhealthy.hold_s
            elif node.state in _THERE and (health := job.healths.get(node.id)) is not None:
                recent += not health.healthy
    there = sum(len(job.agents) for job in world.jobs.values())
    return recent if recent > 1 and recent * 10 > there else 0
