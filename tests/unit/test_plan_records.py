"""Times that a clock has written which was far ahead, and has been set back since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import InstanceState
from supervisor.planner.actions import BootstrapDone
from supervisor.planner.records import AHEAD_S
from supervisor.planner.world import Rules
from tests.unit.scene import NOW, J, N, hint_of, job, launcher, listing, machine, member, name, node, round_of, scene

DAY_S = 86_400.0
RULES = Rules()
ENDING = node(3, N.TERMINATING, state_since=NOW - 5, retry_at=NOW + 5)
LATEST = NOW + RULES.ready_timeout_s


@pytest.mark.parametrize(
    ("ahead", "right"),
    [
        ({"state_since": NOW + DAY_S}, {"state_since": NOW}),
        ({"launched_at": NOW + DAY_S}, {"launched_at": NOW}),
        ({"unhealthy_at": NOW + DAY_S}, {"unhealthy_at": NOW}),  # else no other report of the kind is believed
        ({"retry_at": NOW + DAY_S}, {"retry_at": LATEST}),
        ({"ready_by": NOW + DAY_S}, {"ready_by": LATEST}),
        ({"state_since": NOW + AHEAD_S + 1, "retry_at": NOW + 1}, {"state_since": NOW, "retry_at": NOW + 1}),
    ],
)
def test_times_of_a_node_that_are_far_in_the_future_are_clamped(ahead: dict[str, Any], right: dict[str, Any]) -> None:
    known = replace(ENDING, **ahead)
    assert scene(member(1), member(2), known).node(3) == replace(known, **right)


def test_a_termination_with_a_future_time_is_confirmed_by_the_next_listing() -> None:
    found = scene(member(1), member(2), replace(ENDING, state_since=NOW + DAY_S, launched_at=NOW + DAY_S)).node(3)
    gone = listing(machine(1), machine(2), machine(3, InstanceState.TERMINATED), listed_at=NOW + 1)
    assert scene(member(1), member(2), found, listed=gone).state(3) is N.GONE


@pytest.mark.parametrize("ahead_s", [AHEAD_S, 9.0])
def test_times_that_are_a_little_ahead_are_kept(ahead_s: float) -> None:
    known = replace(
        ENDING,
        state_since=NOW + ahead_s,
        launched_at=NOW + ahead_s,
        retry_at=LATEST + ahead_s,
        ready_by=LATEST + ahead_s,
    )
    bootstraps = {"spare_retry_at": NOW + RULES.bootstraps.spare_retry_s + ahead_s}
    record = job(2, J.RUNNING, bootstraps=bootstraps, limits={"training_since": NOW + ahead_s})
    after = scene(member(1), member(2), known, record=record)
    assert not after.commit.nodes
    assert after.job == record


def test_future_times_of_spares_and_pauses_are_clamped() -> None:
    failed = job(2, bootstraps={"failures": 1, "retry_at": NOW + DAY_S})
    assert scene(member(1), record=failed).job.bootstraps.retry_at == NOW + RULES.bootstraps.max_retry_s
    ahead = job(2, spare_nodes=1, bootstraps={"spare_retry_at": NOW + DAY_S})
    assert (
        scene(member(1), member(2), record=ahead).job.bootstraps.spare_retry_at == NOW + RULES.bootstraps.spare_retry_s
    )
    assert scene(member(1), member(2), record=job(2, places={"since": NOW + DAY_S})).job.places.since == NOW
    gathering = scene(member(1), member(2), record=job(2, rounds={"gathering_since": NOW + DAY_S})).job
    assert gathering.rounds.gathering_since <= NOW
    paused = job(2, pause={"at": NOW + DAY_S})
    assert scene(member(1), member(2), record=paused).job.pause.at == NOW
    running = scene(member(1), member(2), record=ahead).job
    assert running.pause.at == 0.0


LONG_AGO = NOW - DAY_S


@pytest.mark.parametrize(
    ("waits", "limit_s"),
    [
        (node(2, N.DRAINING, state_since=LONG_AGO, has_joined=True), RULES.drain_timeout_s),
        (node(2, N.PENDING, state_since=LONG_AGO), RULES.launch_timeout_s),
        (node(2, N.BOOTSTRAPPING, state_since=LONG_AGO, bootstrapped=True, ready_by=LONG_AGO), RULES.ready_timeout_s),
        (node(2, N.SUSPECT, state_since=LONG_AGO, has_joined=True), RULES.silence.suspect_s),
    ],
    ids=lambda value: str(value.state) if hasattr(value, "state") else "",
)
def test_time_in_which_timers_were_paused_counts_towards_no_timeout(waits: Any, limit_s: float) -> None:
    heard = {name(1): launcher(1, "running")}
    messages: dict[str, Any] = {"members": heard, "agents": {}, "round": round_of(1, 2), "hint": hint_of(1)}
    listed = listing(machine(1), machine(2, InstanceState.PENDING))

    def after(timers_paused_until: float) -> Any:
        return scene(member(1), waits, listed=listed, timers_paused_until=timers_paused_until, **messages).state(2)

    assert after(NOW - limit_s + 1) is waits.state
    assert after(NOW - limit_s - 1) is not waits.state


def test_paused_timers_give_an_unreachable_machine_its_full_time() -> None:
    waits = node(2, N.BOOTSTRAPPING, state_since=LONG_AGO)
    failed = BootstrapDone(name(2), "no route", unreachable=True)
    limit_s = RULES.bootstrap_timeout_s
    assert scene(member(1), waits, outcomes=[failed], timers_paused_until=NOW - limit_s + 1).state(2) is N.BOOTSTRAPPING
    assert scene(member(1), waits, outcomes=[failed], timers_paused_until=NOW - limit_s).state(2) is N.TERMINATING


def test_paused_timers_give_a_job_that_pauses_its_full_time() -> None:
    held: dict[str, Any] = {"record": job(2, pause={"at": LONG_AGO}), "hint": hint_of(1, 2, hold=True)}
    limit_s = RULES.drain_timeout_s
    assert scene(member(1), member(2), timers_paused_until=NOW - limit_s + 1, **held).state(2) is N.MEMBER
    assert scene(member(1), member(2), timers_paused_until=NOW - limit_s - 1, **held).state(2) is N.TERMINATING
