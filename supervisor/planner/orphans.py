"""Orphans (P1): machines, and what machines leave behind, with our tags and no open node. Seen twice, then removed.

A machine that the journal has never heard of, and that may be older than what etcd shows now, is left for people: an
etcd that was restored lacks jobs that train, and their nodes, whose etcd user is lost, too, cannot say so (P4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from provisioners.base import Instance, InstanceState, Leftover
from supervisor.alerts.routes import wanted
from supervisor.events import EventKind
from supervisor.model import Event, NodeState
from supervisor.planner.actions import Commit, LeftoversDone, ListLeftovers, Remove, Terminate
from supervisor.planner.cloud_problems import UNLISTED_S
from supervisor.planner.sentences import named
from supervisor.planner.world import (
    CLOCKS_S,
    CloudView,
    JobView,
    LeftoversView,
    Problem,
    Sighting,
    VolatileState,
    World,
)

ADOPT = "`spotsupd adopt` takes them into the journal, or ends them (docs/operations.md)"
# What a listing lacks may be in the next one.
FORGET_S = 600.0
MAX_RETRY_S = 300.0


def states_by_machine(jobs: Iterable[JobView]) -> dict[str, NodeState]:
    """Return what the journal has of each machine, by its tag: of those that have had several jobs, the open node's."""
    states: dict[str, NodeState] = {}
    for job in jobs:
        for node in job.nodes.values():
            if states.get(node.machine_name, NodeState.GONE) is NodeState.GONE:
                states[node.machine_name] = node.state
    return states


def is_orphan(instance: Instance, node_states: Mapping[str, NodeState]) -> bool:
    """True if it has not ended (a stopped one has not: its disks bill) and is not the machine of an open node. One that
    cannot be read is left alone."""
    if instance.state in {InstanceState.TERMINATED, InstanceState.UNREADABLE}:
        return False
    return node_states.get(instance.node, NodeState.GONE) is NodeState.GONE


def sightings(
    known: Mapping[str, Sighting], name: str, before: CloudView, cloud: CloudView, open_nodes: Collection[str]
) -> dict[str, Sighting]:
    """Return the sightings of orphans after a new listing of a cloud: one more of each that it has. One that it lacks
    is kept for a while, since listings may lag; one that cannot be read is none, and remembered. `before`: the listing
    before it."""
    found = {
        key: seen
        for key, seen in known.items()
        if seen.cloud != name
        or (key in cloud.instances and cloud.instances[key].region in cloud.silent)
        or (key not in cloud.instances and cloud.listed_at - seen.seen_at < FORGET_S)
    }
    listed = [each for each in cloud.instances.values() if each.region not in cloud.silent]
    for instance in [each for each in listed if each.node not in open_nodes]:
        orphan = is_orphan(instance, {})
        if orphan or instance.state is InstanceState.UNREADABLE:
            unlisted_at = 0.0 if instance.id in before.instances else before.region_listed_at(instance.region)
            seen = known.get(instance.id, Sighting(cloud.listed_at, 0, unlisted_at, name))
            found[instance.id] = replace(seen, listings=seen.listings + orphan, seen_at=cloud.listed_at)
    return found


def reap(world: World, volatile: VolatileState, now: float) -> tuple[list[Commit], VolatileState, list[Instance]]:
    """Return the commits that terminate orphans, seen twice and `orphan_grace_s` old, and the machines that are left
    alone. What is terminated has to be seen twice again before the next try."""
    due = {
        key: seen
        for key, seen in volatile.sightings.items()
        if seen.listings >= 2 and now - seen.first_at >= world.rules.orphan_grace_s and now >= _retry_at(seen)
    }
    states = states_by_machine(world.jobs.values()) if due else {}
    commits, left, begun = [], [], {}
    for name, cloud in volatile.clouds.items():
        if cloud.foreign:
            continue
        for key in sorted(due.keys() & cloud.instances.keys()):
            instance, action = cloud.instances[key], Terminate(name, key, "")
            if action.key in world.busy or not is_orphan(instance, states):
                continue
            if _may_be_forgotten(world, instance, due[key], states):
                left.append(instance)
                continue
            if world.is_protected(instance.node):
                continue
            owner = instance.node or "unknown"
            text = f"{instance.id} carries our tags (node {owner}) but is not in the journal: terminating it"
            event = Event(f"orphan-{instance.id}", now, "", EventKind.ORPHAN, text, instance.node)
            first = not due[key].ended_at  # one that does not end is a problem of its cloud, and people are told so
            commits.append(_commit(world, event if first else None, action))
            begun[key] = replace(due[key], listings=0, ended_at=due[key].ended_at or now, asked_at=now)
    if begun:
        volatile = replace(volatile, sightings=MappingProxyType({**volatile.sightings, **begun}))
    left.sort(key=lambda instance: (instance.node, instance.id))
    return commits, volatile, left


def _retry_at(seen: Sighting) -> float:
    """Return when its end may be asked for again: after as long as it has been asked for already, within limits."""
    return seen.asked_at + min(MAX_RETRY_S, seen.asked_at - seen.ended_at)


def _may_be_forgotten(world: World, instance: Instance, seen: Sighting, node_states: Mapping[str, NodeState]) -> bool:
    """True if it may be a node's that etcd has lost: it says so; or the journal has no record of it, and it is not
    proven to have appeared since this daemon reads this etcd, by its cloud's clock and by a listing that lacked it."""
    if world.doubted or instance.node in world.unjournaled:
        return True
    since = world.timers_paused_until
    is_new = seen.unlisted_at >= since and instance.launched_at > since + CLOCKS_S
    return instance.node not in node_states and not is_new


def unjournaled(left: Sequence[Instance], since: float) -> Iterator[Problem]:
    """Yield the problem of machines that are left alone."""
    if left:
        count = f"{len(left)} machines run that are" if len(left) > 1 else "1 machine runs that is"
        text = (
            f"{count} not in the journal ({named([each.node or each.id for each in left])}). They may train, if etcd "
            f"has lost their records, so they are left alone, and cost money: {ADOPT}"
        )
        machines = frozenset(each.id for each in left)
        yield Problem(EventKind.UNJOURNALED, "", since, text, members=machines, data={"machines": len(left)})


def _commit(world: World, event: Event | None, *actions: Terminate | Remove) -> Commit:
    events = [event] if event is not None else []
    alerts = wanted(world.rules.channels_used, events)
    return Commit(job="", guards={}, events=events, alerts=alerts, actions=actions)


# -- disks, interfaces, addresses, requests ----------------------------------------------------------------


def due_leftover_listings(world: World, now: float) -> list[ListLeftovers]:
    """Return one listing per cloud and period: leftovers cost little, and listing them costs calls."""
    found = []
    for cloud in world.clouds:
        action = ListLeftovers(cloud)
        attempted_at = world.volatile.leftovers.get(cloud, LeftoversView()).attempted_at
        if action.key not in world.busy and now - attempted_at >= world.rules.leftovers_s:
            found.append(action)
    return found


def absorb_leftovers(volatile: VolatileState, done: LeftoversDone) -> VolatileState:
    """Return what is remembered after a listing of leftovers. A failed one changes nothing of it. Of a cloud that does
    not list its machines either, people are told by that (cloud_problems.py)."""
    old = volatile.leftovers.get(done.cloud, LeftoversView())
    away = done.asked_at - volatile.cloud(done.cloud).listed_at >= UNLISTED_S
    since = 0.0 if away else old.failing_since or done.asked_at
    view = replace(old, attempted_at=done.asked_at, failing_since=since, error=done.error)
    if not done.error:
        leftovers = {each.id: each for each in done.leftovers}
        known = {key: old.sightings.get(key, Sighting(done.asked_at, 0)) for key in leftovers}
        sightings = {key: replace(seen, listings=seen.listings + 1) for key, seen in known.items()}
        view = LeftoversView(MappingProxyType(leftovers), MappingProxyType(sightings), done.asked_at)
    return replace(volatile, leftovers=MappingProxyType({**volatile.leftovers, done.cloud: view}))


def reap_leftovers(world: World, volatile: VolatileState, now: float) -> tuple[list[Commit], VolatileState]:
    """Return the commits that remove what has no open node any more; the next listings show whether it is gone. Seen
    twice, a period apart: Azure holds the interface of a deleted machine back for 3 minutes."""
    if not any(view.leftovers for view in volatile.leftovers.values()):
        return [], volatile
    states = states_by_machine(world.jobs.values())
    commits = []
    for cloud, view in volatile.leftovers.items():
        orphaned = [each for each in view.leftovers.values() if _is_orphaned(each, view.sightings[each.id], states)]
        due = [each for each in orphaned if not world.is_protected(each.node)]
        for each in due:
            owner = each.node or "unknown"
            text = f"{each.kind} {each.id} was left behind (node {owner}): removing it"
            event = Event(f"orphan-{each.id}", now, "", EventKind.ORPHAN, text, each.node)
            first = not view.sightings[each.id].ended_at
            commits.append(_commit(world, event if first else None, Remove(cloud, each)))
        if due:
            begun = {each.id for each in due}
            kept = {key: each for key, each in view.leftovers.items() if key not in begun}
            seen = {
                key: replace(each, listings=0, ended_at=each.ended_at or now) if key in begun else each
                for key, each in view.sightings.items()
            }
            rest = replace(view, leftovers=MappingProxyType(kept), sightings=MappingProxyType(seen))
            volatile = replace(volatile, leftovers=MappingProxyType({**volatile.leftovers, cloud: rest}))
    return commits, volatile


def _is_orphaned(leftover: Leftover, seen: Sighting, node_states: Mapping[str, NodeState]) -> bool:
    return seen.listings >= 2 and node_states.get(leftover.node, NodeState.GONE) is NodeState.GONE
