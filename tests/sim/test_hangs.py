"""Steps that hang, ranks that never end, workers that outlive SIGKILL: who hears of it, and what the job becomes."""

from __future__ import annotations

from typing import Any

import pytest
from spotsup_simulator.training import FINISH_S, HANG_S, HUNG_YIELD_S, OUTLIVE_S
from spotsup_simulator.world import World

from supervisor.events import EventKind
from supervisor.model import Event, JobState, NodeState
from tests.sim.harness import in_state, record, sentence, training_world
from tests.sim.promises import jobs_of

KINDS = {EventKind.STEPS_HANG, EventKind.STEPS_RESUMED, EventKind.WORKERS_STUCK}


def alerts(world: World) -> list[Event]:
    """The alerts about workers that Slack got."""
    return [event for event in world.sent if event.kind in KINDS]


def hanging_world(**limits: Any) -> World:
    world = training_world(limits=limits)
    world.nodes.trainings["job"].save()
    world.nodes.trainings["job"].hang(world.clock.now())
    return world


def test_steps_that_hang_are_one_alert_and_so_is_the_next_step() -> None:
    world = hanging_world()
    world.run(HANG_S - 5.0)
    assert alerts(world) == []
    world.run(10.0)
    world.crash_daemon()
    world.run(600.0)
    (hangs,) = alerts(world)
    assert hangs.text.startswith("the steps of job hang: no rank has shown life for 30")
    assert "its steps hang: see the stacks in its logs" in sentence(world)
    assert record(world).state is JobState.RUNNING
    world.nodes.trainings["job"].recover()
    world.run(40.0)
    assert [event.kind for event in alerts(world)] == [EventKind.STEPS_HANG, EventKind.STEPS_RESUMED]
    assert "hang" not in sentence(world)


def test_a_job_that_asks_for_it_is_formed_anew_three_times_a_day_and_its_program_is_not_blamed() -> None:
    world = hanging_world(hang="restart", app_failures=0)
    training = world.nodes.trainings["job"]
    for number in range(1, 5):
        world.run(HANG_S + HUNG_YIELD_S + 5.0)
        current = jobs_of(world)["job"].round
        assert current is not None
        assert (current.number, current.app_failures) == (1 + min(3, number), 0)
        assert len(current.recent_hangs) == min(3, number)
        if number < 4:
            assert current.reason == "its steps hung"
            training.hang(world.clock.now())
    assert [event.kind for event in alerts(world)].count(EventKind.STEPS_HANG) == 4
    assert record(world).state is JobState.RUNNING


def test_a_rank_that_does_not_end_is_told_and_the_job_succeeds() -> None:
    world = training_world()
    current = jobs_of(world)["job"].round
    assert current is not None
    world.nodes.trainings["job"].finish(endless=current.nodes()[0])
    world.run(FINISH_S - 5.0)
    assert record(world).state is JobState.RUNNING
    assert world.run_until(in_state(JobState.SUCCEEDED), 30.0)
    assert record(world).reason == f"exit code 0; {current.nodes()[0]}: local rank 0 had not ended"
    world.run(60.0)
    (done,) = [event for event in world.sent if event.kind is EventKind.JOB_DONE]
    assert "local rank 0 had not ended" in done.text


@pytest.mark.parametrize("lasts_s", [20.0, OUTLIVE_S])
def test_workers_that_outlive_sigkill_hold_one_node_out_and_after_a_minute_it_is_replaced(lasts_s: float) -> None:
    world = training_world(limits={"app_failures": 0})
    before = jobs_of(world)["job"].round
    assert before is not None
    stuck, training = before.nodes()[1], world.nodes.trainings["job"]
    assert training.outlive(stuck, world.clock.now())
    world.run(5.0)
    current = jobs_of(world)["job"].round
    assert current is not None
    assert current.nodes() == (before.nodes()[0], before.nodes()[2])
    (told,) = alerts(world)
    assert (told.kind, told.node, told.text) == (
        EventKind.WORKERS_STUCK,
        stuck,
        f"{stuck}: workers outlive SIGKILL",
    )
    world.run(lasts_s - 5.0)
    if lasts_s < OUTLIVE_S:
        training.revive(stuck)
    else:
        world.nodes.exit(stuck, "failure")
    assert world.run_until(lambda w: len(jobs_of(w)["job"].round.nodes()) == 3, 120.0)  # type: ignore[union-attr]
    nodes = jobs_of(world)["job"].nodes
    assert (nodes[stuck].state is NodeState.MEMBER) is (lasts_s < OUTLIVE_S)
    assert record(world).state is JobState.RUNNING
