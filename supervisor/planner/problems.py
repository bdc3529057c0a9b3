"""Tell people of problems that cost money or time for as long as they last: once, then ever more seldom, and that they
are over (P15). All of it is volatile: a new leader tells them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from supervisor.alerts.routes import wanted
from supervisor.events import EventKind
from supervisor.model import Event
from supervisor.planner.actions import Commit
from supervisor.planner.world import Problem, Reminder, VolatileState, World

# Between two alerts of a problem: doubled each time, up to a day; sooner where it has grown.
REMINDER_S, MAX_REMINDER_S = 3600.0, 86400.0
GROWN_S = 600.0


def report(
    world: World, volatile: VolatileState, found: Iterable[Problem], now: float
) -> tuple[list[Commit], VolatileState, tuple[str, ...]]:
    """Return the commits that tell people, what is remembered of it, and the texts of the problems of which people have
    been told. `found`: all problems that there are now."""
    before, kept, events, texts = volatile.reminders, {}, [], []
    jobs: dict[str, str] = {}
    for problem in found:
        known = before.get(problem.key)
        early = known is None and now - problem.since < problem.after_s
        if problem.in_headline and (problem.is_reminder or not early):
            texts.append(problem.text)
        if early:
            continue
        if known is not None and now - known.at < _wait_s(known, problem):
            kept[problem.key] = known
            continue
        events.append(_event(problem.kind, problem.cause, problem.text, now, problem.data))
        jobs[events[-1].id] = problem.job
        members = problem.members | (known.members if known else frozenset())
        times = known.times + 1 if known else 1
        kept[problem.key] = Reminder(problem.kind, now, times, members, problem.over, problem.over_kind, problem.job)
    for key, known in before.items():
        if key not in kept and known.over:
            events.append(_event(known.over_kind, key, known.over, now))
            jobs[events[-1].id] = known.job
    if kept == before:
        return [], volatile, tuple(texts)
    alerts = wanted(world.rules.channels_used, [replace(each, job=jobs[each.id]) for each in events])
    commits = [Commit(job="", guards={}, events=events, alerts=alerts, reminds=True)] if events else []
    return commits, replace(volatile, reminders=MappingProxyType(kept)), tuple(texts)


def reminder_s(times: int) -> float:
    """Return how long after the last alert people are reminded, in seconds. `times`: how often they were told, at
    least once."""
    return min(MAX_REMINDER_S, REMINDER_S * 2.0 ** min(times - 1, 10))


def _wait_s(known: Reminder, problem: Problem) -> float:
    return GROWN_S if problem.members - known.members else reminder_s(known.times)


def _event(
    kind: EventKind, cause: str, text: str, now: float, data: Mapping[str, float | str] = MappingProxyType({})
) -> Event:
    return Event(f"{kind}-{cause}-{int(now)}" if cause else f"{kind}-{int(now)}", now, "", kind, text, data=dict(data))
