"""Quiescence: which jobs need a decision now. A steady job whose view has not changed would only get the same plan.

In a cluster of 10,000 nodes nearly all jobs are steady; planning all of them at each message costs a CPU. Time alone
brings a steady job nothing but its limits of hours and dollars: those are kept to within `Rules.steady_s`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from supervisor.model import JobState, NodeState, parts_of
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import stands_still
from supervisor.planner.world import JobView, World

# Of progress only a checkpoint problem matters: steps that advance decide nothing.
_DECISIVE = tuple(each.name for each in fields(JobView) if each.name != "progress")


@dataclass(frozen=True, slots=True)
class Steady:
    """A job that was steady when it was last planned."""

    view: JobView  # all that was known of it
    at: float  # when that was


def skipped(
    world: World, steady: Mapping[str, Steady], nodes_with_outcomes: Collection[str], now: float
) -> frozenset[str]:
    """Return the jobs about which nothing is to be decided now. `nodes_with_outcomes`: ids of nodes of which an action
    has ended since."""
    if world.lost_nodes:
        return frozenset()
    blocked = {parts_of(node).job for node in world.unjournaled}
    return frozenset(
        name
        for name, before in steady.items()
        if _is_unchanged(world.jobs.get(name), before.view)
        and now - before.at < world.rules.steady_s
        and name not in world.volatile.changed_jobs
        and name not in blocked
        and not any(node in before.view.nodes for node in nodes_with_outcomes)
    )


def _is_unchanged(view: JobView | None, before: JobView) -> bool:
    if view is before:
        return True
    if view is None or (view.progress is not None and view.progress.checkpoint_problem):
        return False
    return all(getattr(view, name) is getattr(before, name) for name in _DECISIVE)


def is_steady(draft: Draft) -> bool:
    """True if a job about which nothing was decided just now has all it wants, and nothing under way."""
    job, present = draft.job, draft.billed
    if job.ended or job.state is JobState.PAUSED:
        return not present
    if (
        job.state is not JobState.RUNNING
        or job.pause.at
        or any(node.doomed for node in present)
        or stands_still(draft.view)
    ):
        return False
    spares = draft.view.spares
    in_place = all(node.state is NodeState.MEMBER or node.id in spares for node in present)
    problem = draft.view.progress is not None and draft.view.progress.checkpoint_problem
    complete = len(present) == job.desired_nodes + job.spare_nodes
    return in_place and complete and not (problem or job.checkpoints.problem)
