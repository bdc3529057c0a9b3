"""Commits that etcd did not take: what a plan remembers of them never happened. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from supervisor.events import EventKind
from supervisor.planner.actions import Commit, Remove, Terminate
from supervisor.planner.world import VolatileState

Value = TypeVar("Value")


def as_unwritten(commit: Commit, before: VolatileState, after: VolatileState) -> VolatileState:
    """Return what is remembered after a plan of which this commit was not written: whom it told is told by the next
    plan, and what it ended or removed is so then. `before`: what was remembered before the plan."""
    kinds = {event.kind for event in commit.events}
    ended = {action.instance_id for action in commit.actions if isinstance(action, Terminate)}
    removed_in = {action.cloud for action in commit.actions if isinstance(action, Remove)}
    of_quota, of_code = EventKind.QUOTA_REFUSED in kinds, EventKind.UNKNOWN_CODE in kinds
    return replace(
        after,
        reminders=before.reminders if commit.reminds else after.reminders,
        sightings=_as_before(ended, before.sightings, after.sightings),
        leftovers=_as_before(removed_in, before.leftovers, after.leftovers),
        quotas_reported=before.quotas_reported if of_quota else after.quotas_reported,
        unknown_codes=before.unknown_codes if of_code else after.unknown_codes,
    )


def _as_before(keys: Collection[str], before: Mapping[str, Value], after: Mapping[str, Value]) -> Mapping[str, Value]:
    if not keys:
        return after
    others = {key: value for key, value in after.items() if key not in keys}
    return MappingProxyType({**others, **{key: before[key] for key in keys if key in before}})
