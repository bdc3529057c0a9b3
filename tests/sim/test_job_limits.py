"""A limit destroys nothing: the job checkpoints, pauses, and goes on once the limit is raised."""

from __future__ import annotations

import re

import pytest
from spotsup_simulator.cloud import CAPACITY
from spotsup_simulator.world import World

from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.features.limits.rule import trained_s
from supervisor.model import JobState
from supervisor.spec_limits import LimitChanges
from tests.sim.harness import alive, empty_world, in_state, record, sentence, service, submit, training_world
from tests.sim.promises import settled

pytestmark = pytest.mark.long


def trained_h(world: World) -> float:
    return trained_s(record(world), world.clock.now()) / 3600


@pytest.mark.parametrize(("limit", "amount"), [("hours", 0.05), ("usd", 0.02)])
def test_at_a_limit_the_job_pauses_without_losing_a_step_and_goes_on_when_it_is_raised(
    limit: str, amount: float
) -> None:
    world = training_world(limits={limit: amount})
    assert world.run_until(in_state(JobState.PAUSED), 400.0)
    why = rf"limits.{limit} {amount:g} reached; `spotsupctl limits job --{limit} 0.0\d+` goes on"
    assert re.fullmatch(why, record(world).reason)
    assert world.run_until(lambda w: not alive(w), 30.0)
    world.run(10.0)
    assert sentence(world) == f"paused: {record(world).reason}"
    training = world.nodes.trainings["job"]
    stopped_at = training.save()
    with pytest.raises(CommandRefusedError, match=f"job job stays paused: {why}"):
        service(world).commands.resume("job")
    world.run(600.0)
    assert alive(world) == 0
    raised = LimitChanges(hours=1.5 * amount) if limit == "hours" else LimitChanges(usd=1.5 * amount)
    service(world).commands.limits("job", raised)
    assert world.run_until(settled, 120.0)
    assert training.steps.lost == 0
    assert training.save() >= stopped_at
    kinds = [event.kind for event in world.journal.events("job")]
    warnings = 1 if limit == "hours" else 2  # of dollars also at half
    told = (EventKind.LIMIT_NEAR, EventKind.LIMIT_REACHED, EventKind.PAUSED)
    assert [kinds.count(each) for each in told] == [warnings, 1, 1]
    assert {EventKind.LIMIT_NEAR, EventKind.LIMIT_REACHED} <= {event.kind for event in world.sent}, "people are told"
    assert world.run_until(in_state(JobState.PAUSED), 400.0), "the new limit holds, too"


def test_waiting_for_machines_uses_up_no_hours() -> None:
    world = empty_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    submit(world, "job", 2, 3, 4, limits={"hours": 0.05})
    world.run(600.0)
    assert (record(world).state, trained_h(world)) == (JobState.WAITING, 0.0)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, CAPACITY)
    assert world.run_until(settled, 300.0)
    world.run(100.0)
    assert trained_h(world) == pytest.approx(100 / 3600, abs=0.01)


def test_a_takeover_and_an_outage_of_etcd_neither_lose_nor_double_training() -> None:
    world = training_world(limits={"hours": 10.0})
    world.run(100.0)
    world.lose_daemon()
    world.run(100.0)
    world.etcd.down = True
    world.run(100.0)
    world.etcd.down = False
    world.run(100.0)
    assert trained_h(world) == pytest.approx(400 / 3600, abs=0.01)


def test_a_limit_that_is_raised_while_the_job_pauses_keeps_its_machines() -> None:
    world = training_world(limits={"hours": 0.02})
    assert world.run_until(lambda w: bool(record(w).pause.by), 200.0)
    service(world).commands.limits("job", LimitChanges(hours=5.0))
    assert world.run_until(settled, 120.0)
    assert world.nodes.trainings["job"].steps.lost == 0
    assert (record(world).pause.by, record(world).pause.at) == ("", 0.0)


def test_a_lowered_limit_pauses_the_job() -> None:
    world = training_world()
    world.run(100.0)
    service(world).commands.limits("job", LimitChanges(hours=0.01))
    assert world.run_until(in_state(JobState.PAUSED), 120.0)
    service(world).commands.cancel("job")
    assert world.run_until(in_state(JobState.CANCELLED), 60.0)
