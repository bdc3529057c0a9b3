"""Budgets hold through crashes, takeovers, lost writes, changing prices and the month's end.

People are warned once; jobs are paused with a checkpoint, and go on by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.world import World

from supervisor.api.jobs.queue import queue_rows
from supervisor.billing import month_start
from supervisor.budget import Budgets
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.model import Event, JobState
from supervisor.planner.world import Rules
from tests.sim.harness import RULES, alive, empty_world, record, service, submit
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long

DAY_S = 86_400.0


def rules(**budgets: Any) -> Rules:
    return replace(RULES, prices_s=60.0, offers_s=60.0, budgets=Budgets(**budgets))


def events(world: World, *kinds: EventKind) -> list[Event]:
    """Of the cluster as a whole, those that people were sent."""
    return [event for event in world.sent if event.kind in kinds]


def trains(world: World, *names: str, **more: Any) -> None:
    for name in names:
        submit(world, name, 1, 2, 2, **more)
    assert world.run_until(lambda w: all(record(w, name).state is JobState.RUNNING for name in names), 60.0)


def is_paused(world: World) -> bool:
    return all(view.record.state is JobState.PAUSED for view in jobs_of(world).values()) and not alive(world)


WARNINGS = (EventKind.BUDGET_NEAR, EventKind.BUDGET_REACHED)


def test_a_spent_budget_warns_three_times_and_pauses_all_jobs_with_a_checkpoint() -> None:
    world = empty_world(rules(usd_per_month=0.05))
    trains(world, "one", "two")
    assert world.run_until(is_paused, 1500.0)
    world.run(600.0)
    found = events(world, *WARNINGS)
    assert [event.kind for event in found] == [EventKind.BUDGET_NEAR, EventKind.BUDGET_NEAR, EventKind.BUDGET_REACHED]
    assert len({event.id for event in found}) == 3
    assert not events(world, EventKind.LIMIT_REACHED)
    assert all(not training.steps.losses for training in world.nodes.trainings.values())
    assert "the budget of the cluster" in record(world, "one").reason
    rows = queue_rows(jobs_of(world).values(), {}, lambda name: record(world, name).reason, world.clock.now())
    assert [(row["job"], "the next month" in row["starts_when"]) for row in rows] == [("one", True), ("two", True)]
    with pytest.raises(CommandRefusedError, match="stays paused: the budget of the cluster"):
        service(world).commands.resume("one")
    submit(world, "late", 1, 1, 1)
    world.run(100.0)
    assert (record(world, "late").state, alive(world)) == (JobState.PAUSED, 0)


def test_a_users_budget_pauses_that_users_jobs_alone() -> None:
    world = empty_world(rules(user_usd_per_month=0.03, users={"bob": 99.0}))
    trains(world, "one", owner="ann")
    trains(world, "two", owner="bob")
    assert world.run_until(lambda w: record(w, "one").state is JobState.PAUSED, 1500.0)
    world.run(300.0)
    assert record(world, "two").state is JobState.RUNNING
    assert "the budget of user ann" in record(world, "one").reason


def test_a_raised_budget_lets_jobs_go_on_but_not_one_that_a_user_paused() -> None:
    world = empty_world(rules(usd_per_month=0.03))
    trains(world, "one", "two")
    assert world.run_until(is_paused, 1500.0)
    service(world).commands.pause("two")
    world.rules = rules(usd_per_month=5.0)
    world.crash_daemon()
    assert world.run_until(lambda w: record(w, "one").state is JobState.RUNNING, 120.0)
    assert record(world, "two").state is JobState.PAUSED


def test_with_the_next_month_jobs_go_on_and_the_warnings_begin_anew() -> None:
    world = empty_world(rules(usd_per_month=0.03))
    trains(world, "one")
    assert world.run_until(is_paused, 1500.0)
    next_month = month_start(month_start(world.clock.now()) + 32 * DAY_S)
    world.clock.time = next_month - 100.0  # nothing happens meanwhile
    world.run(90.0)
    assert is_paused(world)
    assert world.run_until(lambda w: record(w, "one").state is JobState.RUNNING, 200.0)
    assert world.run_until(is_paused, 1500.0)
    assert len(events(world, EventKind.BUDGET_REACHED)) == 2


@pytest.mark.parametrize("crash_every_s", [30.0, 97.0])
def test_crashes_and_takeovers_warn_nobody_twice_and_pause_as_well(crash_every_s: float) -> None:
    world = empty_world(rules(usd_per_month=0.03))
    trains(world, "one")
    for _ in range(int(900 / crash_every_s)):
        world.run(crash_every_s)
        world.crash_daemon()
    world.run(300.0)
    assert is_paused(world)
    assert len({event.id for event in events(world, *WARNINGS)}) == 3


def test_a_price_that_jumps_pauses_at_once_and_warns_once() -> None:
    world = empty_world(rules(usd_per_month=0.2))
    trains(world, "one")
    world.run(100.0)
    world.cloud.price_factor = 1000.0
    assert world.run_until(is_paused, 400.0)
    world.run(100.0)
    assert len({event.id for event in events(world, *WARNINGS)}) <= 3
    assert len({event.id for event in events(world, EventKind.BUDGET_REACHED)}) == 1


def test_a_write_that_fails_is_decided_again() -> None:
    world = empty_world(rules(usd_per_month=0.03))
    trains(world, "one")
    while not any(view.record.pause.at for view in jobs_of(world).values()):
        world.daemon.client.partitioned = not world.daemon.client.partitioned
        world.run(2.0)
        assert world.clock.now() < world.started_at + 9_000
    world.partition(world.daemon, on=False)
    assert world.run_until(is_paused, 300.0)
    assert len({event.id for event in events(world, *WARNINGS)}) == 3


def test_a_name_that_is_used_again_brings_no_new_budget() -> None:
    world = empty_world(rules(usd_per_month=0.03))
    trains(world, "one")
    world.run(150.0)
    service(world).commands.cancel("one")
    assert world.run_until(lambda w: all(each.state == "gone" for each in jobs_of(w)["one"].nodes.values()), 200.0)
    spent = record(world, "one").billing.dropped_usd + sum(
        node.usd(world.clock.now()) for node in jobs_of(world)["one"].nodes.values()
    )
    submit(world, "one", 1, 2, 2)
    world.run(5.0)
    assert sum(each.usd for each in record(world, "one").billing.earlier) == pytest.approx(spent)
    assert world.run_until(is_paused, 1500.0)


def test_no_machine_without_a_price_is_asked_for_where_there_is_a_budget() -> None:
    world = empty_world(rules(usd_per_month=9.0))
    world.cloud.unpriced = frozenset({"small"})
    submit(world, "one", 1, 1, 1)
    world.run(200.0)
    assert not world.cloud.machines
