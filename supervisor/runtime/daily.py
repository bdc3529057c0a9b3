"""The daily summary: a task of housekeeping, and so on the leader only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spotsup_trainer.etcd import Compare

from supervisor.alerts.routes import Channel, is_wanted
from supervisor.billing import month_of
from supervisor.events import EventKind
from supervisor.features.budgets.rule import by_deleted, spending
from supervisor.journal.journal import Journal
from supervisor.model import Event, JobState, NodeState
from supervisor.planner.actions import Commit
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock

DAY_S = 86400.0
_STATES = {
    "running": {JobState.RUNNING, JobState.DEGRADED},
    "waiting": {JobState.QUEUED, JobState.STARTING, JobState.WAITING},
    "paused": {JobState.PAUSED},
}


@dataclass(frozen=True, slots=True)
class DailySummary:
    """`guard`: as Leadership has it."""

    journal: Journal
    clock: Clock
    guard: Callable[[], Sequence[Compare]]
    channels: tuple[Channel, ...]

    def run(self) -> str:
        """Write the summary of the last day, once per day. Returns what was done, or ""."""
        now = self.clock.now()
        reading = self.journal.read()
        deleted_usd = sum(each.usd for each in by_deleted(reading.budgets, month_of(now)))
        text = summary(reading.jobs.values(), now, deleted_usd)
        event_id = f"{EventKind.DAILY_SUMMARY}-{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
        event = Event(event_id, now, "", EventKind.DAILY_SUMMARY, text)
        if not is_wanted(self.channels, event) or any(each.id == event_id for each in self.journal.events("")):
            return ""
        self.journal.commit(Commit(job="", guards={}, events=[event], alerts=[event]), self.guard())
        return text


def summary(jobs: Iterable[JobView], now: float, deleted_usd: float = 0.0) -> str:
    """Return what runs and waits, and what the last day brought. `deleted_usd`: spent this month by jobs that were
    deleted."""
    views = list(jobs)
    counts = {what: sum(view.record.state in states for view in views) for what, states in _STATES.items()}
    nodes = sum(node.state is NodeState.MEMBER for view in views for node in view.nodes.values())
    ended = Counter(view.record.state for view in views if view.record.ended and now - view.record.ended_at < DAY_S)
    notices = sum(
        node.notice is not None and now - node.notice.seen_at < DAY_S for view in views for node in view.nodes.values()
    )
    lost = sum(
        each.after == NodeState.LOST and now - each.at < DAY_S
        for view in views
        for node in view.nodes.values()
        for each in node.history
    )
    month = month_of(now)
    usd = deleted_usd + sum(each.usd for view in views for each in spending(view, month, now))
    running = counts["running"]
    now_text = (
        f"{running} {'job' if running == 1 else 'jobs'} running on {nodes} {'node' if nodes == 1 else 'nodes'}, "
        f"{counts['waiting']} waiting, {counts['paused']} paused"
    )
    day = ", ".join(f"{ended[state]} {state}" for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED))
    return (
        f"{now_text}; in the last day: {day}, {notices} preemption notices, {lost} nodes lost; "
        f"${usd:.2f} in {month} so far"
    )
