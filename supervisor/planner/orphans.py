"""Machines with our tag that the journal does not know (P1): seen twice, old enough, then ended."""

from __future__ import annotations

from collections.abc import Mapping

from provisioners.base import Instance, InstanceState
from supervisor.model import Event, EventKind, NodeState
from supervisor.planner.actions import Commit, Terminate
from supervisor.planner.world import CloudView, Sighting, World


def is_orphan(instance: Instance, node_states: Mapping[str, NodeState]) -> bool:
    """Alive by its cloud's word (stopped counts: its disks bill), and not the machine of an open node."""
    if instance.state is InstanceState.TERMINATED:
        return False
    return node_states.get(instance.node, NodeState.GONE) is NodeState.GONE


def sightings(
    known: Mapping[str, Sighting], cloud: CloudView, node_states: Mapping[str, NodeState]
) -> dict[str, Sighting]:
    """Brought up to a new listing of a cloud: one more sighting of each orphan, the others forgotten."""
    found: dict[str, Sighting] = {}
    for instance in cloud.instances.values():
        if is_orphan(instance, node_states):
            before = known.get(instance.id, Sighting(cloud.taken_at, 0))
            found[instance.id] = Sighting(before.first_at, before.listings + 1)
    return found


def sweep(world: World, now: float) -> list[Commit]:
    """The commits that end what is not ours to keep."""
    states = {node.id: node.state for job in world.jobs.values() for node in job.nodes.values()}
    commits = []
    for name, cloud in world.soft.clouds.items():
        for instance in cloud.instances.values():
            seen = world.soft.sightings.get(instance.id)
            action = Terminate(name, instance.id, "")
            if seen is None or action.key in world.busy or not is_orphan(instance, states):
                continue
            if seen.listings < 2 or now - seen.first_at < world.rules.orphan_grace_s:
                continue
            owner = instance.node or "unknown"
            text = f"{instance.id} carries our tag (node {owner}) but is not in the journal: ending it"
            event = Event(f"orphan-{instance.id}", now, "", EventKind.ORPHAN, text, instance.node)
            commits.append(Commit(job="", guards={}, events=[event], actions=[action]))
    return commits
