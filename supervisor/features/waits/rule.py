"""Jobs that wait for machines for long, or lack some of them: people are told, and again ever more seldom."""

from __future__ import annotations

from supervisor.events import EventKind
from supervisor.features.waits.record import WaitsRecord
from supervisor.model import HISTORY_LIMIT, JobRecord, JobState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import part_of_round
from supervisor.planner.problems import reminder_s
from supervisor.planner.sentences import lasted, node_count

_WAITING = frozenset({JobState.QUEUED, JobState.STARTING, JobState.WAITING})


def drive_wait_alerts(draft: Draft) -> None:
    """Report that a job has waited for machines for long, or trained without all of them; and that this is over."""
    job, record = draft.job, draft.job.waits
    waits, lacks = job.state in _WAITING, job.state is JobState.DEGRADED
    if record.times and not (lacks if record.lacks else waits):
        if job.state is JobState.RUNNING or lacks:
            draft.add_event(EventKind.WAIT_ENDED, f"{job.name} waits no more: it is {job.state}")
        record = WaitsRecord(record.reported_at)
    if waits or lacks:
        record = _reported(draft, record, lacks=lacks)
    if record != draft.job.waits:
        draft.set_part(record)


def _reported(draft: Draft, record: WaitsRecord, *, lacks: bool) -> WaitsRecord:
    """Return what people have been told, after telling them if that is due: where it comes and goes, once an hour."""
    job, rules = draft.job, draft.rules.waits
    since = job.state_since if lacks else max(waits_since(job), job.starts_at)
    lasts_s = draft.now - since
    if record.reported_at and draft.now - record.reported_at < reminder_s(max(1, record.times)):
        return record
    if lasts_s < (rules.lacks_s if lacks else rules.alert_s):
        return record
    if lacks:
        missing = job.desired_nodes - part_of_round(draft)
        text = (
            f"{job.name} has lacked {missing} of {node_count(job.desired_nodes)} for {lasted(lasts_s)}: {_why(draft)}"
        )
    else:
        text = f"{job.name} has waited for machines for {lasted(lasts_s)}: {job.reason or 'it is queued'}"
    draft.add_event(EventKind.WAITS_LONG, text, since=since)
    return WaitsRecord(draft.now, record.times + 1, lacks)


def _why(draft: Draft) -> str:
    """Return what its clouds answered last, in a few words."""
    refused = [node for node in draft.nodes.values() if node.error and not node.has_joined]
    newest = max(refused, key=lambda node: node.state_since, default=None)
    if newest is None:
        return "`spotsupctl status` says what is asked for"
    return f"{newest.offer.zone} says {newest.error.splitlines()[0]}"


def waits_since(job: JobRecord) -> float:
    """Return since when a job that waits has not trained: being queued, starting and waiting take turns."""
    for transition in reversed(job.history):
        if transition.after in _WAITING and transition.before not in _WAITING:
            return transition.at
    return job.history[0].at if len(job.history) >= HISTORY_LIMIT else job.submitted_at
