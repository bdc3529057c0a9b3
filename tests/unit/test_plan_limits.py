"""Limits of hours and dollars, one moment at a time: what counts, when people are warned, and how the job pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Progress

from supervisor.api.jobs.changes import limit_changes, limited_job
from supervisor.errors import UsageError
from supervisor.events import EventKind
from supervisor.features.limits.rule import Use, trained_s
from supervisor.model import JobRecord
from supervisor.spec_limits import LimitChanges
from tests.unit.scene import NOW, J, N, hint_of, job, launcher, member, name, node, round_of, scene, spec, view

HOUR = 3600.0


def limited(allowed: dict[str, float], **changes: Any) -> JobRecord:
    return job(2, spec=spec(limits=allowed), **changes)


# -- what counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "changes", "reached"),
    [
        ({"hours": 2}, {"limits": {"trained_s": HOUR, "training_since": NOW - HOUR}}, "hours"),
        ({"hours": 2}, {"limits": {"trained_s": HOUR, "training_since": NOW - HOUR + 1}}, ""),
        ({"hours": 2}, {"limits": {"trained_s": HOUR, "training_since": NOW + HOUR}}, ""),  # a clock was set back
        ({"usd": 1000 / 3600}, {}, "usd"),
        ({"usd": 1000 / 3600 + 0.01}, {}, ""),
        ({"usd": 3 + 1000 / 3600}, {"billing": {"dropped_usd": 3.0}}, "usd"),
        ({"hours": 1, "usd": 1}, {"limits": {"trained_s": HOUR}, "billing": {"dropped_usd": 3.0}}, "hours"),
        ({}, {"billing": {"dropped_usd": 1e9}, "limits": {"trained_s": 1e9}}, ""),
        ({"usd": 1}, {"billing": {"dropped_usd": 3.0}, "pause": {"at": NOW - 5}}, ""),  # a user has paused it already
    ],
)
def test_a_limit_that_is_reached_pauses_the_job(limits: dict[str, float], changes: Any, reached: str) -> None:
    after = scene(member(1), member(2), record=limited(limits, **changes))
    assert (after.job.state, after.job.pause.by) == (J.RUNNING, reached), "all ranks checkpoint first"
    assert after.hint == (hint_of(1, 2, hold=True, reason="the job is paused") if after.job.pause.at else None)
    assert (EventKind.LIMIT_REACHED in after.event_kinds) is bool(reached)
    assert after.job.pause.at == (NOW if reached else changes.get("pause", {"at": 0.0})["at"])


def test_a_job_without_any_machine_never_reaches_its_hours() -> None:
    waits = scene(record=replace(limited({"hours": 0.5}), state=J.WAITING, submitted_at=NOW - 1e6))
    assert (waits.job.pause.at, trained_s(waits.job, NOW + 1e6)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("nodes", "messages", "training"),
    [
        ([member(1), member(2)], {}, True),
        ([member(1), node(2, N.SUSPECT, state_since=NOW)], {"round": round_of(1, 2)}, True),  # it may train
        ([member(1), node(2, N.DRAINING)], {}, True),
        ([member(1), node(2, N.READY)], {}, False),
        ([member(1), node(2, N.LOST)], {"round": round_of(1, 2)}, False),
        ([node(1, N.READY), node(2, N.READY)], {}, False),
    ],
)
def test_time_counts_while_a_round_has_enough_nodes(nodes: Any, messages: Any, training: bool) -> None:
    record = job(2, min_nodes=2, limits={"trained_s": 50.0})
    begins = scene(*nodes, record=record, **messages).job
    assert (begins.limits.training_since, begins.limits.trained_s) == (NOW if training else 0.0, 50.0)
    goes_on = scene(
        *nodes, record=replace(record, limits=replace(record.limits, training_since=NOW - 100)), **messages
    ).job
    assert (goes_on.limits.training_since, goes_on.limits.trained_s) == (
        (NOW - 100, 50.0) if training else (0.0, 150.0)
    )


@pytest.mark.parametrize(
    ("blind_until", "progress_at", "counted_s"),
    [
        (NOW - 200, NOW - 60, 100.0),  # watched all the time
        (NOW - 1, NOW - 60, 40.0),  # the last step that was made while nobody watched
        (NOW - 1, NOW - 600, 0.0),  # of an earlier stretch
        (NOW - 1, NOW + 600, 100.0),  # a node's clock is ahead
        (NOW - 1, None, 100.0),  # a script that reports no steps
    ],
)
def test_of_time_in_which_nobody_watched_only_steps_count(
    blind_until: float, progress_at: float | None, counted_s: float
) -> None:
    progress = Progress(1, 9, progress_at, 0.0) if progress_at else None
    record = job(2, limits={"trained_s": 1.0, "training_since": NOW - 100})
    after = scene(node(1, N.LOST), record=record, progress=progress, timers_paused_until=blind_until)
    assert (after.job.limits.trained_s, after.job.limits.training_since) == (1.0 + counted_s, 0.0)


def test_the_end_of_the_job_ends_the_count_and_a_time_in_the_future_is_clamped() -> None:
    after = scene(member(1), member(2), record=job(2, cancel_requested=True, limits={"training_since": NOW - 100}))
    assert (after.job.limits.trained_s, after.job.limits.training_since) == (100.0, 0.0)
    assert (
        scene(member(1), member(2), record=job(2, limits={"training_since": NOW + 90})).job.limits.training_since == NOW
    )


# -- warnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used_s", "warned_before", "warns"),
    [(0.79 * HOUR, (), False), (0.8 * HOUR, (), True), (0.9 * HOUR, ("hours",), False), (0.9 * HOUR, ("usd",), True)],
)
def test_people_are_warned_once_when_little_is_left(used_s: float, warned_before: Any, warns: bool) -> None:
    record = limited(
        {"hours": 1, "usd": 5}, limits={"trained_s": used_s, "training_since": NOW, "warned": warned_before}
    )
    after = scene(member(1), member(2), record=record)
    assert (after.event_kinds == [EventKind.LIMIT_NEAR]) is warns
    assert after.job.limits.warned == (("hours",) if used_s >= 0.8 * HOUR else ())
    if warns and not warned_before:
        assert after.events[0].text == (
            "job used 0.8 of limits.hours 1, and pauses when that is reached; `spotsupctl limits job --hours 1.5` "
            "raises it"
        )


def test_a_limit_that_was_raised_is_warned_of_again() -> None:
    record = limited({"hours": 4}, limits={"trained_s": HOUR, "training_since": NOW, "warned": ("hours",)})
    assert scene(member(1), member(2), record=record).job.limits.warned == ()


# -- the pause ---------------------------------------------------------------------------------------------

PAUSING: dict[str, Any] = {"limits": {"trained_s": 48 * HOUR}, "pause": {"at": NOW - 10, "by": "hours"}}


def test_the_pause_waits_for_the_checkpoint_and_says_what_to_do() -> None:
    record = limited({"hours": 48}, **PAUSING)
    waits = scene(member(1), member(2), record=record, hint=hint_of(1, 2, hold=True))
    assert waits.sentence == "limits.hours is reached; pausing: waiting for a checkpoint of 2 nodes"
    stopped = {name(n): launcher(n, "waiting") for n in (1, 2)}
    after = scene(member(1), member(2), record=record, hint=hint_of(1, 2, hold=True), members=stopped)
    why = "limits.hours 48 reached; `spotsupctl limits job --hours 72` goes on"
    assert (after.job.state, after.job.reason) == (J.PAUSED, why)
    assert after.sentence == f"paused: {why}; releasing 2 nodes"
    assert after.events[0].text == f"job is paused, and its machines are released: {why}"


@pytest.mark.parametrize(
    ("use", "more"),
    [
        (Use("hours", 48.0, 48), "72"),
        (Use("usd", 203.0, 200), "300"),
        (Use("usd", 9.0, 2), "14"),
        (Use("hours", 0.006, 0.005), "0.009"),
    ],
)
def test_the_remedy_allows_more_than_is_used(use: Use, more: str) -> None:
    assert use.remedy("job") == f"`spotsupctl limits job --{use.name} {more}`"


# -- a user changes limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reached", "reason"),
    [
        (LimitChanges(hours=72), "", "was"),
        (LimitChanges(usd=400), "hours", "limits.hours 48 reached; `spotsupctl limits job --hours 72` goes on"),
        (LimitChanges(hours=72, usd=1), "usd", "limits.usd 1 reached; `spotsupctl limits job --usd 4.5` goes on"),
    ],
)
def test_a_paused_job_goes_on_once_no_limit_is_reached(changes: LimitChanges, reached: str, reason: str) -> None:
    record = limited({"hours": 48}, state=J.PAUSED, reason="was", billing={"dropped_usd": 3.0}, **PAUSING)
    after = limited_job(view(record, []), changes, NOW)
    assert (after.pause.by, after.reason) == (reached, reason)
    assert after.pause.at == (record.pause.at if reached else 0.0)


def test_a_users_own_pause_stays_and_a_limit_may_be_lowered() -> None:
    paused = limited({"hours": 48}, state=J.PAUSED, pause={"at": NOW - 5}, limits={"trained_s": HOUR})
    after = limited_job(view(paused, []), LimitChanges(hours=72, app_failures=9), NOW)
    assert (after.pause.at, after.spec.limits.hours, after.spec.limits.app_failures) == (NOW - 5, 72, 9)
    lowered = limited_job(view(limited({"hours": 48}, limits={"trained_s": 2 * HOUR}), []), LimitChanges(hours=1), NOW)
    assert lowered.pause.at == 0.0, "the next plan sees it"


def test_a_limit_that_no_job_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"limits: `hours` is 0\.0: input should be greater than 0"):
        limit_changes({"hours": 0.0})
