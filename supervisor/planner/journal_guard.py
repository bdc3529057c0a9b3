"""Machines that the journal should know and does not: none is touched before a person has said what they are.

An etcd that is new holds nothing; neither does one that has lost its data, while machines train on (P7). So a journal
is begun only where no cloud has a machine with our tag that it does not know. Later on, an etcd that was set back to an
older backup lacks nodes whose agents speak: those are left alone, too, and so are their jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioners.base import Instance
from supervisor.model import ClusterRecord, NodeState
from supervisor.planner.actions import Commit, ListInstances
from supervisor.planner.orphans import is_orphan
from supervisor.planner.world import CloudView, JobView, World

MAX_NAMED = 3
ADOPT = "`spotsupd adopt` takes them into the journal, or ends them (docs/operations.md)"


@dataclass(frozen=True, slots=True)
class JournalInit:
    """How far it is: `commit` begins the journal; without it, `sentence` says what that waits for."""

    commit: Commit | None
    actions: tuple[ListInstances, ...]
    sentence: str


def init_journal(world: World, cluster: ClusterRecord, now: float) -> JournalInit:
    """Begin the journal, if every cloud has said what it has, and nothing of that is unknown."""
    views = {cloud: world.volatile.clouds.get(cloud, CloudView()) for cloud in world.clouds}
    states = {node.id: node.state for job in world.jobs.values() for node in job.nodes.values()}
    unknown = unknown_machines(views, states)
    due = [ListInstances(name) for name, view in views.items() if _is_old(world, view, now)]
    asked = tuple(action for action in due if action.key not in world.busy)
    if unknown:
        found = f"etcd has no journal of this cluster, whose machines run ({_named(unknown)})"
        return JournalInit(None, asked, f"{found}: nothing is done; {ADOPT}")
    silent = [f"{name}{f' ({view.error})' if view.error else ''}" for name, view in views.items() if not view.listed_at]
    if silent:
        return JournalInit(None, asked, f"a new journal: waiting for {', '.join(silent)} to say what runs already")
    return JournalInit(Commit(job="", guards={}, cluster=cluster), (), "a new journal is begun")


def unknown_machines(clouds: Mapping[str, CloudView], node_states: Mapping[str, NodeState]) -> list[Instance]:
    """What has our tag, has not ended, and is no open node's, by node id."""
    found = [each for view in clouds.values() for each in view.instances.values() if is_orphan(each, node_states)]
    return sorted(found, key=lambda instance: (instance.node, instance.id))


def blocked_reason(world: World, job: JobView) -> str:
    """Why nothing is decided for a job: the journal lacks nodes of it that work. "" where it does not.

    A word alone is not enough, it may be old; but until the cloud has said what runs, it is.
    """
    mine = {node for node in world.unjournaled if node.rsplit("-", 2)[0] == job.record.name}
    if not mine:
        return ""
    cloud = world.volatile.clouds.get(job.record.spec.placement.cloud, CloudView())
    working = [each for each in cloud.instances.values() if each.node in mine and is_orphan(each, {})]
    if cloud.listed_at and not working:
        return ""
    return f"left alone: {', '.join(sorted(mine)[:MAX_NAMED])} may work for it and is not in the journal; {ADOPT}"


def warnings(world: World) -> tuple[str, ...]:
    """What is left alone until a person has looked at it."""
    told = [f"{job} is left alone: {why}" for job, why in sorted(world.unreadable_jobs.items())]
    if not world.unjournaled:
        return tuple(told)
    machines = [each for view in world.volatile.clouds.values() for each in view.instances.values()]
    working = [each for each in machines if each.node in world.unjournaled and is_orphan(each, {})]
    if working:
        told.append(f"machines work that the journal does not know ({_named(working)}): they are left alone; {ADOPT}")
    return tuple(told)


def _is_old(world: World, view: CloudView, now: float) -> bool:
    return now - view.attempted_at >= world.rules.listing_s


def _named(machines: Iterable[Instance]) -> str:
    nodes = [each.node or each.id for each in machines]
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    return f"{', '.join(nodes[:MAX_NAMED])}{more}"
