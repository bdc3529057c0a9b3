"""Clouds that deny everything: people are told once, and once that they accept requests again."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from supervisor.alerts.routes import is_wanted
from supervisor.events import EventKind
from supervisor.model import Event
from supervisor.planner.actions import Commit
from supervisor.planner.world import Denial, VolatileState, World


def report_denials(world: World, volatile: VolatileState, now: float) -> tuple[list[Commit], VolatileState]:
    """Report once that a cloud has denied all calls for a while, and once that it accepts them again."""
    kept: dict[str, Denial] = {}
    events: list[Event] = []
    for cloud, denial in volatile.denials.items():
        if denial.over:
            if denial.reported:
                text = f"{cloud} accepts spotsup's requests again"
                events.append(_of_the_cluster(EventKind.ACCESS_RESTORED, cloud, text, now))
            continue
        due = not denial.reported and now - denial.since >= world.rules.denied_alert_s
        kept[cloud] = replace(denial, reported=denial.reported or due)
        if due:
            events.append(_of_the_cluster(EventKind.ACCESS_DENIED, cloud, _in_words(cloud, denial), now))
    alerts = [event for event in events if is_wanted(world.rules.channels_used, event)]
    commits = [Commit(job="", guards={}, events=events, alerts=alerts)] if events else []
    if kept == volatile.denials:
        return commits, volatile
    return commits, replace(volatile, denials=MappingProxyType(kept))


def denials_in_words(volatile: VolatileState) -> tuple[str, ...]:
    """For the daemon's status: which clouds deny everything."""
    return tuple(_in_words(cloud, denial) for cloud, denial in volatile.denials.items() if denial.reported)


def _in_words(cloud: str, denial: Denial) -> str:
    return f"{cloud} denies spotsup's requests: {denial.message}. Jobs wait, and go on by themselves once that is fixed"


def _of_the_cluster(kind: EventKind, cloud: str, text: str, now: float) -> Event:
    return Event(f"{kind}-{cloud}-{int(now)}", now, "", kind, text)
