"""What costs money without progress for as long as it lasts: people were told when it began, and are reminded."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.events import EventKind
from supervisor.features.hang.rule import hang_remedy
from supervisor.model import NodeState
from supervisor.planner.problems import REMINDER_S
from supervisor.planner.sentences import named, per_hour
from supervisor.planner.world import JobView, Problem, World
from supervisor.starting_time import moment


def job_problems(world: World) -> Iterator[Problem]:
    """Yield the problems of all jobs that have not ended."""
    for view in world.jobs.values():
        if not (view.record.ended or view.past):
            yield from _hangs(view)
            yield from _saves_nothing(view)
            yield from _lacks_spares(world, view)


def silent_jobs(world: World) -> tuple[str, ...]:
    """Return the warning that names jobs of whose silent nodes people have been told."""
    kept = {name: view.record.silence for name, view in world.jobs.items() if not view.record.ended}
    found = sorted(name for name, silence in kept.items() if 0 < silence.since <= silence.reported_at)
    return (f"silent nodes of {named(found)} are kept: `spotsupctl status {found[0]}` says why",) if found else ()


def _hangs(view: JobView) -> Iterator[Problem]:
    job, since = view.record, view.record.hang.since
    if since:
        yield Problem(
            EventKind.STEPS_HANG,
            job.name,
            since,
            f"the steps of {job.name} have hung since {moment(since)}, and its machines cost {per_hour(view.billed)}: "
            f"{hang_remedy(job)}",
            REMINDER_S,
            job=job.name,
            is_reminder=True,
        )


def _saves_nothing(view: JobView) -> Iterator[Problem]:
    job, saves = view.record, view.record.checkpoints
    if saves.problem:
        yield Problem(
            EventKind.CHECKPOINTS_FAILING,
            job.name,
            saves.problem_at,
            f"checkpoints of {job.name} have not been written since {moment(saves.problem_at)}, and what it trains is "
            f"lost with its nodes: {saves.problem}",
            REMINDER_S,
            job=job.name,
            is_reminder=True,
        )


def _lacks_spares(world: World, view: JobView) -> Iterator[Problem]:
    """Spares that cannot be bootstrapped, one after the other: the job trains, and pays for each try."""
    job = view.record
    if not job.spare_nodes or view.spares:
        return
    nodes = view.nodes.values()
    worked_at = max((node.created_at for node in nodes if node.has_joined), default=0.0)
    failed = [
        node
        for node in nodes
        if node.created_at > worked_at
        and any(each.after == NodeState.FAILED and each.before != NodeState.REQUESTED for each in node.history)
    ]
    if len(failed) >= world.rules.bootstraps.failures:
        last = max(failed, key=lambda node: node.created_at)
        yield Problem(
            EventKind.BOOTSTRAPS_FAILING,
            f"{job.name}-spares",
            min(node.created_at for node in failed),
            f"{job.name} has no spare: {len(failed)} in a row could not be bootstrapped, and each try is paid for. "
            f"The last error: {(last.error or 'not known').splitlines()[0]}",
            job=job.name,
            over=f"{job.name} has a spare again, or wants none",
        )
