"""Which jobs need a decision now. One that is calm and of which nothing new is known would only get the same again.

A cluster of 10,000 nodes is nearly all calm nearly always; deciding about all of it at each word costs a CPU. Limits on
hours and dollars are all that time alone brings to a calm job: they are kept to within `Rules.steady_s`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from supervisor.model import JobState, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.world import JobView, World

# Steps that advance are no reason to decide anew: of progress, only trouble is.
_DECISIVE = tuple(each.name for each in fields(JobView) if each.name != "progress")


@dataclass(frozen=True, slots=True)
class Steady:
    """A job that was calm at `at`, and all that was known of it."""

    view: JobView
    at: float


def skipped(world: World, calm: Mapping[str, Steady], nodes_in_hand: Collection[str], now: float) -> frozenset[str]:
    """The jobs of which nothing is to be decided now. `nodes_in_hand`: of which an action's outcome is there."""
    if world.unjournaled:
        return frozenset()
    return frozenset(
        name
        for name, before in calm.items()
        if _is_as_it_was(world.jobs.get(name), before.view)
        and now - before.at < world.rules.steady_s
        and name not in world.volatile.changed_jobs
        and not any(node in before.view.nodes for node in nodes_in_hand)
    )


def _is_as_it_was(view: JobView | None, before: JobView) -> bool:
    if view is before:
        return True
    if view is None or (view.progress is not None and view.progress.checkpoint_problem):
        return False
    return all(getattr(view, name) is getattr(before, name) for name in _DECISIVE)


def is_steady(draft: Draft) -> bool:
    """Whether a job about which nothing was decided just now has all it wants, and nothing under way."""
    job, there = draft.job, [node for node in draft.nodes.values() if node.state is not NodeState.GONE]
    if job.ended or job.state is JobState.PAUSED:
        return not there
    if (
        job.state is not JobState.RUNNING
        or job.pause_requested_at
        or any(node.doomed for node in there)
        or stands_still(draft.view)
    ):
        return False
    spares = draft.view.spares
    settled = all(node.state is NodeState.MEMBER or node.id in spares for node in there)
    problem = draft.view.progress is not None and draft.view.progress.checkpoint_problem
    return settled and not (problem or job.checkpoint_problem) and len(there) == job.desired_nodes + job.spare_nodes


def stands_still(job: JobView) -> bool:
    """Whether its round stands still for a reason that its cloud may know: a member silent or stopped."""
    if job.round is None:
        return False
    for node in job.round.nodes():
        known, found = job.nodes.get(node), job.members.get(node)
        if known is None or known.state not in {NodeState.READY, NodeState.MEMBER, NodeState.SUSPECT}:
            continue  # its end is known already
        stopped = found is not None and found.state == "waiting" and found.round >= job.round.number
        if found is None or (stopped and not found.parked):
            return True
    return False
