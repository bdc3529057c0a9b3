"""P13: every dollar has a purpose, and it is the right one.

That the sum is the cost is checked after every event of every world (accounts_check.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.jobs.views import cost_row
from supervisor.billing import Purpose
from supervisor.features.billing.bookings import bookings_of
from supervisor.model import JobState
from tests.sim.accounts_check import check_accounts
from tests.sim.harness import RULES, empty_world, in_state, machine_of, service, submit, training_world
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long

P = Purpose


def seconds(world: World, name: str = "job") -> dict[Purpose, float]:
    """Node-seconds by purpose."""
    view = jobs_of(world)[name]
    found = dict.fromkeys(P, 0.0)
    for each in bookings_of(view.record, view.nodes.values(), world.clock.now()):
        found[each.purpose] += each.seconds
    return found


def trained(world: World) -> float:
    """Node-seconds in which steps were made, by the simulation's own word."""
    spans = world.nodes.trainings["job"].steps.spans_until(world.clock.now())
    return sum((span.end - span.start) * span.nodes for span in spans)


def training_job(**more: Any) -> World:
    """A world whose job trains; the workers of a new round need a moment."""
    world = training_world(**more)
    world.nodes.trainings["job"].start_s = 4.0
    return world


def pay(world: World, usd: float) -> dict[str, float]:
    row = cost_row(jobs_of(world)["job"], world.clock.now())
    assert row["usd"] == pytest.approx(usd)
    purposes: dict[str, float] = row["purposes"]
    return purposes


def test_a_job_that_trains_undisturbed_is_booked_as_it_was() -> None:
    world = training_job(spares=1)
    world.run(1000.0)
    found = seconds(world)
    assert found[P.USEFUL] == pytest.approx(trained(world), abs=5.0)
    assert found[P.IDLE] == pytest.approx(1000.0, rel=0.1), "the spare waits"
    assert 0 < found[P.BOOT] < 4 * 60.0
    assert (found[P.LOST], found[P.UNKNOWN]) == (0.0, 0.0)
    row = cost_row(jobs_of(world)["job"], world.clock.now())
    assert sum(row["purposes"].values()) == pytest.approx(row["usd"], abs=1e-4)
    assert [month["purposes"] for month in row["months"]] == [row["purposes"]]


def test_steps_that_a_loss_threw_away_are_lost_also_on_the_node_that_was_lost() -> None:
    world = training_job()
    world.run(500.0)
    training = world.nodes.trainings["job"]
    before = seconds(world)
    gone = machine_of(world, 1)
    training.save()
    world.run(100.0)
    world.cloud.end(gone, EndCause.PREEMPTED)
    rounds = training.round_number
    assert world.run_until(lambda w: training.round_number > rounds and in_state(JobState.RUNNING)(w), 200.0)
    world.run(120.0)
    assert training.steps.losses
    lost_s = sum(loss.steps for loss in training.steps.losses) * training.steps.step_s * 3
    found = seconds(world)
    assert before[P.LOST] == 0
    assert found[P.LOST] == pytest.approx(lost_s, rel=0.2)
    assert found[P.USEFUL] + found[P.LOST] == pytest.approx(trained(world), rel=0.05)
    assert found[P.PAUSE] > 0
    view = jobs_of(world)["job"]
    of_gone = view.nodes[gone.instance.node].billing.bookings
    assert any(each.purpose is P.LOST for each in of_gone)
    assert check_accounts([view], world.clock.now()) == ""


def test_a_pause_of_the_job_ends_what_is_useful_at_its_last_step() -> None:
    world = training_job()
    world.run(300.0)
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 120.0)
    world.run(100.0)
    found = seconds(world)
    assert found[P.USEFUL] == pytest.approx(trained(world), rel=0.15)
    again = seconds(world)
    world.run(500.0)
    assert seconds(world) == again, "it has no machines any more"


def test_the_accounts_outlive_the_daemon() -> None:
    world = training_job()
    world.run(700.0)
    world.lose_daemon()
    world.run(30.0)
    world.crash_daemon()
    world.run(300.0)
    found = seconds(world)
    assert found[P.USEFUL] == pytest.approx(trained(world), rel=0.05)
    assert found[P.UNKNOWN] == 0.0


def test_a_round_that_ended_unseen_is_unknown_since_its_last_noted_step() -> None:
    world = training_job()
    world.run(900.0)
    view = jobs_of(world)["job"]
    assert view.record.billing.rounds.step_at > 0
    world.lose_daemon()
    training = world.nodes.trainings["job"]
    world.cloud.end(machine_of(world, 2), EndCause.PREEMPTED)
    number = training.round_number
    world.run(200.0)
    assert training.round_number > number, "the others went on by themselves"
    world.crash_daemon()
    world.run(120.0)
    found = seconds(world)
    assert 0 < found[P.UNKNOWN] < 3 * 900.0
    assert found[P.USEFUL] + found[P.LOST] <= trained(world) + 5.0


def test_dollars_at_changing_prices_go_to_the_purpose_of_their_time() -> None:
    world = empty_world(replace(RULES, prices_s=60.0, offers_s=60.0))
    submit(world, "job", 2, 2, 2)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    world.run(300.0)
    world.cloud.price_factor = 5.0
    world.run(300.0)
    assert check_accounts(jobs_of(world).values(), world.clock.now()) == ""
    row = cost_row(jobs_of(world)["job"], world.clock.now())
    assert row["purposes"]["useful"] > 0.9 * row["usd"]


def test_a_price_that_was_not_known_is_booked_once_it_is() -> None:
    world = empty_world(replace(RULES, prices_s=60.0, offers_s=60.0))
    world.cloud.unpriced = frozenset({"small"})
    submit(world, "job", 2, 2, 2)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    world.run(300.0)
    assert pay(world, 0.0) == dict.fromkeys(P, 0.0)
    booted = seconds(world)[P.BOOT]
    world.cloud.unpriced = frozenset()
    world.run(200.0)
    row = cost_row(jobs_of(world)["job"], world.clock.now())
    assert row["purposes"]["boot"] == pytest.approx(booted / 3600 * 0.1, rel=0.01)
    assert sum(row["purposes"].values()) == pytest.approx(row["usd"], abs=1e-4)
