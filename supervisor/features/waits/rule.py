"""Jobs that wait for machines for long, or lack some of them: people are told, and again ever more seldom."""

from __future__ import annotations

from supervisor.events import EventKind
from supervisor.features.silence.rule import kept
from supervisor.features.waits.record import WaitsRecord
from supervisor.model import HISTORY_LIMIT, JobRecord, JobState, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import part_of_round
from supervisor.planner.problems import reminder_s
from supervisor.planner.sentences import lasted, node_count, per_hour, why_missing

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
    lasts_s, have = draft.now - since, part_of_round(draft)
    trained = job.state is JobState.WAITING and draft.view.round is not None
    if record.reported_at and draft.now - record.reported_at < reminder_s(max(1, record.times)):
        return record
    if lasts_s < (rules.lacks_s if lacks or trained else rules.alert_s):
        return record
    if job.desired_nodes - have <= len(kept(draft)):
        return record  # they are silent, of which people are told by themselves
    why = why_missing(draft) or "`spotsupctl status` says what is asked for"
    if lacks:
        text = (
            f"{job.name} has lacked {job.desired_nodes - have} of {node_count(job.desired_nodes)} for "
            f"{lasted(lasts_s)}: {why}. It trains on with {have}, and asks again by itself"
        )
    elif trained:
        needed = f"it has {have} of at least {node_count(job.min_nodes)}"
        text = f"{job.name} has not trained for {lasted(lasts_s)}: {needed}; {why}. It asks again by itself"
        if machines := [node for node in draft.billed if node.state is not NodeState.REQUESTED]:
            text += f"; `spotsupctl pause {job.name}` ends what its machines cost meanwhile, {per_hour(machines)}"
    else:
        text = f"{job.name} has waited for machines for {lasted(lasts_s)}: {job.reason or 'it is queued'}"
    draft.add_event(EventKind.WAITS_LONG, text, since=since)
    return WaitsRecord(draft.now, record.times + 1, lacks)


def waits_since(job: JobRecord) -> float:
    """Return since when a job that waits has not trained: being queued, starting and waiting take turns."""
    for transition in reversed(job.history):
        if transition.after in _WAITING and transition.before not in _WAITING:
            return transition.at
    return job.history[0].at if len(job.history) >= HISTORY_LIMIT else job.submitted_at
