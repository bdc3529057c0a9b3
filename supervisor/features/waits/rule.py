"""Jobs that wait for machines for long: people are told once."""

from __future__ import annotations

from dataclasses import replace

from supervisor.events import EventKind
from supervisor.model import HISTORY_LIMIT, JobRecord, JobState
from supervisor.planner.draft import Draft

_WAITING = frozenset({JobState.QUEUED, JobState.STARTING, JobState.WAITING})


def drive_wait_alerts(draft: Draft) -> None:
    """Report once that a job has waited for machines for long, and that it no longer does."""
    job = draft.job
    if job.state in _WAITING:
        since = max(waits_since(job), job.starts_at)
        if not job.waits.reported_at and draft.now - since >= draft.rules.waits.alert_s:
            draft.set_part(replace(draft.job.waits, reported_at=draft.now))
            text = f"{job.name} has waited for machines for {_hours(draft.now - since)}: {job.reason or 'it is queued'}"
            draft.add_event(EventKind.WAITS_LONG, text, since=since)
    elif job.waits.reported_at:
        draft.set_part(replace(draft.job.waits, reported_at=0.0))
        if job.state in {JobState.RUNNING, JobState.DEGRADED}:
            draft.add_event(EventKind.WAIT_ENDED, f"{job.name} waits no more: it is {job.state}")


def waits_since(job: JobRecord) -> float:
    """Since when a job that waits has not trained: being queued, starting and waiting take turns."""
    for transition in reversed(job.history):
        if transition.after in _WAITING and transition.before not in _WAITING:
            return transition.at
    return job.history[0].at if len(job.history) >= HISTORY_LIMIT else job.submitted_at


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"
