"""Machines that the journal should know and does not: none is touched before a person decides what they are.

A new etcd is empty; so is one that has lost its data while machines train on (P7). So a journal is begun only if no
cloud has a machine with our tag that it does not know. Later on, an etcd that was restored from an older backup lacks
nodes whose agents publish messages: those are left alone, too, and so are their jobs. A job that is submitted again
waits as long as machines run that may be its own: orphans.py leaves them for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from provisioners.base import Instance, InstanceState
from supervisor.model import ClusterRecord, JobState, NodeState, parts_of
from supervisor.planner.actions import Commit, ListInstances
from supervisor.planner.orphans import ADOPT, is_orphan, states_by_machine
from supervisor.planner.sentences import named
from supervisor.planner.world import CloudView, JobView, World


@dataclass(frozen=True, slots=True)
class JournalInit:
    """How far the start of a new journal is."""

    commit: Commit | None  # begins the journal; None while that has to wait
    actions: tuple[ListInstances, ...]
    sentence: str  # what is done, or what it waits for


def init_journal(world: World, cluster: ClusterRecord, now: float) -> JournalInit:
    """Begin the journal once every cloud was listed, and none of its machines is unknown."""
    views = {cloud: world.volatile.cloud(cloud) for cloud in world.clouds}
    states = states_by_machine(world.jobs.values())
    unknown = unknown_machines(views, states)
    due = [ListInstances(name) for name, view in views.items() if _is_stale(world, view, now)]
    requested = tuple(action for action in due if action.key not in world.busy)
    if unknown:
        found = f"etcd has no journal of this cluster, but its machines run ({_named(unknown)})"
        return JournalInit(None, requested, f"{found}: nothing is done; {ADOPT}")
    if silent := [_unlisted(name, view) for name, view in views.items() if not view.is_known]:
        return JournalInit(None, requested, f"new journal: waiting for a listing of {', '.join(silent)}")
    return JournalInit(Commit(job="", guards={}, cluster=cluster), (), "new journal: begun")


def _unlisted(name: str, view: CloudView) -> str:
    where = [f"{name} in {region} ({each.error})" for region, each in view.silent.items() if not each.listed_at]
    return ", ".join(where) or (f"{name} ({view.error})" if view.error else name)


def unknown_machines(clouds: Mapping[str, CloudView], node_states: Mapping[str, NodeState]) -> list[Instance]:
    """Machines with our tag that have not ended and belong to no open node, by node id."""
    machines = [each for view in clouds.values() for each in view.instances.values()]
    found = [each for each in machines if is_orphan(each, node_states) or each.state is InstanceState.UNREADABLE]
    return sorted(found, key=lambda instance: (instance.node, instance.id))


def blocked_reason(world: World, job: JobView) -> str:
    """Return why nothing is decided for a job: the journal lacks nodes of it that work; "" if it lacks none.

    A message alone may be old, so it does not count once the cloud was listed without the machine.
    """
    clouds = [world.volatile.cloud(each) for each in job.record.spec.clouds]
    mine = {node for node in world.unjournaled if _is_of(node, job)}
    begins = job.record.state is JobState.QUEUED and not (job.nodes or job.record.cancel_requested)
    if begins and (found := _unknown_of(world, job, clouds)):
        return f"waits, since machines run that may be its own ({named(sorted(found))}): {ADOPT}"
    if not mine:
        return ""
    states = states_by_machine(world.jobs.values())  # one that a later job took over still has its first node's tag
    instances = [each for cloud in clouds for each in cloud.instances.values()]
    working = [each for each in instances if each.node in mine and is_orphan(each, states)]
    if all(cloud.is_known for cloud in clouds) and not working:
        return ""
    verbs = "is not" if len(mine) == 1 else "are not"
    return f"left alone: {named(sorted(mine))} may work for it and {verbs} in the journal; {ADOPT}"


def _is_of(node: str, job: JobView) -> bool:
    return parts_of(node).job == job.record.name


def _unknown_of(world: World, job: JobView, clouds: Iterable[CloudView]) -> list[str]:
    """Return nodes of a job of this name that the journal does not know, and whose machines run: its launches would be
    beside them, and once it has nodes of its own `adopt` does not give it these."""
    seen = [each for cloud in clouds for key, each in cloud.instances.items() if key in world.volatile.sightings]
    found = [each.node for each in seen if _is_of(each.node, job)]
    states = states_by_machine(world.jobs.values()) if found else {}
    return [node for node in found if node not in states]


def warnings(world: World, left: Sequence[Instance] = ()) -> tuple[str, ...]:
    """Return what is left alone until a person has looked at it. `left`: the machines that are not reaped."""
    found = [f"{job} is left alone: {why}" for job, why in sorted(world.unreadable_jobs.items())]
    machines = [each for view in world.volatile.clouds.values() for each in view.instances.values()]
    if odd := [each for each in machines if each.state is InstanceState.UNREADABLE]:
        found.append(f"clouds describe machines so that they cannot be read ({_named(odd)}): they are left alone")
    speak = [each for each in machines if each.node in world.unjournaled] if world.unjournaled else []
    states = states_by_machine(world.jobs.values()) if speak else {}
    working = {each.id: each for each in (*left, *speak) if is_orphan(each, states)}.values()
    if working:
        found.append(f"machines run that are not in the journal ({_named(working)}): they are left alone; {ADOPT}")
    return tuple(found)


def _is_stale(world: World, view: CloudView, now: float) -> bool:
    return now - view.attempted_at >= world.rules.listing_s


def _named(machines: Iterable[Instance]) -> str:
    return named([each.node or each.id for each in machines])
