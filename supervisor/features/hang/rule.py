"""Steps that hang, and what launchers say of their workers: people are told once each, and of no more than some an
hour, whatever nodes write."""

from __future__ import annotations

from dataclasses import replace

from supervisor.events import EventKind
from supervisor.features.checkpoints.rule import MAX_PROBLEM_CHARACTERS
from supervisor.features.hang.record import HangRecord
from supervisor.model import JobRecord
from supervisor.planner.draft import Draft
from supervisor.planner.sentences import per_hour

HOUR_S = 3600.0
MAX_REPORTS = 12  # an hour, of one job, and two more for each node: what is beyond is reported later, if it is still so


def drive_worker_alerts(draft: Draft) -> None:
    """Report steps that hang, and what launchers say of their workers: once each."""
    if draft.job.ended:
        return
    since, progress = _hung_since(draft), draft.view.progress
    if since and not draft.job.hang.since and _may_report(draft):
        draft.set_part(replace(_with_report(draft), since=since))
        text = f"the steps of {draft.job.name} hang: no rank has shown life for {draft.now - since:.0f} s, and its "
        text += f"machines cost {per_hour(draft.billed)}: {hang_remedy(draft.job)}"
        draft.add_event(EventKind.STEPS_HANG, text, since=since)
    elif draft.job.hang.since and not since and progress is not None and progress.at > draft.job.hang.since:
        draft.set_part(replace(draft.job.hang, since=0.0))
        text = f"{draft.job.name} has completed step {progress.step}, after its steps hung"
        draft.add_event(EventKind.STEPS_RESUMED, text, step=progress.step)
    for node in list(draft.nodes.values()):
        member = draft.view.members.get(node.id)
        problem = " ".join(member.problem.split())[:MAX_PROBLEM_CHARACTERS] if member else ""
        if problem and problem != node.worker_problem and not draft.full and _may_report(draft):
            draft.set_part(_with_report(draft))
            draft.set_node(replace(node, worker_problem=problem))
            draft.add_event(EventKind.WORKERS_STUCK, f"{node.id}: {problem}", node.id)


def hang_remedy(job: JobRecord) -> str:
    """Return what to do about steps that hang."""
    return f"`spotsupctl logs {job.name}` has the stacks of all ranks; `spotsupctl pause {job.name}` ends the cost"


def _hung_since(draft: Draft) -> float:
    """Since when no rank of any member of the round has given a sign of life; 0 while one does."""
    nodes = draft.view.round.nodes() if draft.view.round else ()
    members = [draft.view.members.get(node) for node in nodes]
    times = [member.stalled_since for member in members if member is not None and member.state == "running"]
    return min(times, default=0.0) if len(times) == len(nodes) else 0.0


def _may_report(draft: Draft) -> bool:
    return _counted(draft).reports < MAX_REPORTS + 2 * len(draft.billed)


def _with_report(draft: Draft) -> HangRecord:
    counted = _counted(draft)
    return replace(counted, reports=counted.reports + 1)


def _counted(draft: Draft) -> HangRecord:
    hang = draft.job.hang
    return hang if 0 <= draft.now - hang.hour_since < HOUR_S else replace(hang, hour_since=draft.now, reports=0)
