"""The operator's limits: who waits, for what, and who pauses for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from supervisor.api.jobs.changes import Scale
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.market.admission import Cap, QueueRules
from supervisor.model import JobState
from tests.sim.harness import RULES, alive, empty_world, record, service, submit
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long


def limited(preempt: bool = False, hold_s: float = 900.0, **caps: Cap) -> World:
    """An empty world with these limits."""
    queue = QueueRules(**caps, preempt=preempt)  # type: ignore[arg-type]
    return empty_world(replace(RULES, queue=queue, queue_hold_s=hold_s))


def states(world: World) -> dict[str, JobState]:
    return {name: job.record.state for name, job in jobs_of(world).items()}


def trains(*names: str) -> Callable[[World], bool]:
    return lambda world: all(states(world)[name] is JobState.RUNNING for name in names)


def sentence_of(world: World, name: str) -> str:
    return world.daemon.loop.status.sentences[name]


def finish(world: World, name: str) -> None:
    world.nodes.trainings[name].finish()
    assert world.run_until(lambda w: states(w)[name] is JobState.SUCCEEDED, 60.0)


def test_a_job_beyond_the_limit_holds_no_machine_says_its_place_and_starts_once_another_has_ended() -> None:
    world = limited(cluster=Cap(nodes=4))
    submit(world, "first", 3, 3, 3, owner="ann")
    submit(world, "second", 2, 2, 2, owner="bob")
    assert world.run_until(trains("first"), 60.0)
    world.run(300.0)
    assert (alive(world), states(world)["second"]) == (3, JobState.QUEUED)
    assert "number 1 in the queue: needs 2 nodes; 1 of 4 is left in the cluster's limit" in sentence_of(world, "second")
    finish(world, "first")
    assert world.run_until(trains("second"), 90.0)


def test_the_min_of_all_comes_before_the_desired_of_any() -> None:
    world = limited(cluster=Cap(nodes=6))
    submit(world, "runs", 6, 6, 6)
    assert world.run_until(trains("runs"), 60.0)
    submit(world, "first", 1, 6, 6, owner="ann")
    submit(world, "second", 2, 6, 6, owner="ann")
    submit(world, "third", 1, 6, 6, owner="bob")
    world.run(10.0)
    finish(world, "runs")
    world.run(120.0)
    assert {states(world)[name] for name in ("first", "second", "third")} == {JobState.DEGRADED}
    assert alive(world) == 6


def test_what_a_user_may_have_is_nothing_that_others_wait_for() -> None:
    world = limited(user=Cap(nodes=2), users={"bob": Cap(nodes=5)})  # type: ignore[arg-type]
    submit(world, "one", 2, 2, 2, owner="ann")
    submit(world, "two", 1, 1, 1, owner="ann")
    submit(world, "three", 4, 4, 4, owner="bob")
    assert world.run_until(trains("one", "three"), 90.0)
    world.run(60.0)
    assert states(world)["two"] is JobState.QUEUED
    assert "0 of 2 are left in ann's limit" in sentence_of(world, "two")


def test_a_job_that_lost_nodes_gets_them_back_before_others_begin() -> None:
    world = limited(cluster=Cap(nodes=3))
    submit(world, "first", 2, 2, 2)
    submit(world, "second", 2, 2, 2)
    assert world.run_until(trains("first"), 60.0)
    for machine in list(world.cloud.machines.values()):
        world.cloud.preempt(machine, 0.0)
    world.run(90.0)
    assert states(world) == {"first": JobState.RUNNING, "second": JobState.QUEUED}


def test_a_job_that_has_waited_long_is_not_overtaken_by_small_ones_any_more() -> None:
    world = limited(cluster=Cap(nodes=4), hold_s=200.0)
    submit(world, "runs", 2, 2, 2)
    submit(world, "large", 4, 4, 4)
    submit(world, "small", 1, 1, 1)
    assert world.run_until(trains("runs", "small"), 60.0), "while it waits, others use what is left"
    world.run(200.0)
    submit(world, "late", 1, 1, 1)
    world.run(60.0)
    assert states(world)["late"] is JobState.QUEUED
    assert "job large waits first for what is left in the cluster's limit" in sentence_of(world, "late")
    finish(world, "runs")
    finish(world, "small")
    assert world.run_until(trains("large"), 90.0)


def test_a_job_pauses_for_one_of_a_higher_priority_and_goes_on_by_itself() -> None:
    world = limited(preempt=True, cluster=Cap(nodes=3))
    submit(world, "low", 2, 3, 3)
    assert world.run_until(trains("low"), 60.0)
    submit(world, "high", 2, 2, 2, priority=5)
    assert world.run_until(trains("high"), 200.0)
    assert states(world)["low"] is JobState.PAUSED
    assert "high has a higher priority" in record(world, "low").reason
    with pytest.raises(CommandRefusedError, match="stays paused: high has a higher priority"):
        service(world).commands.resume("low")
    assert EventKind.DISPLACED in {event.kind for event in world.sent}
    finish(world, "high")
    assert world.run_until(trains("low"), 120.0)
    assert world.nodes.trainings["low"].steps.lost == 0


def test_no_job_pauses_for_another_unless_the_operator_allows_it_or_without_checkpoints() -> None:
    world = limited(cluster=Cap(nodes=2))
    submit(world, "low", 2, 2, 2)
    assert world.run_until(trains("low"), 60.0)
    submit(world, "high", 2, 2, 2, priority=5)
    world.run(300.0)
    assert states(world) == {"low": JobState.RUNNING, "high": JobState.QUEUED}
    world = limited(preempt=True, cluster=Cap(nodes=2))
    submit(world, "low", 2, 2, 2, checkpoints="none")
    assert world.run_until(trains("low"), 60.0)
    submit(world, "high", 2, 2, 2, priority=5)
    world.run(300.0)
    assert states(world) == {"low": JobState.RUNNING, "high": JobState.QUEUED}


def test_a_job_of_a_higher_priority_starts_first_where_nothing_runs() -> None:
    world = limited(cluster=Cap(nodes=2))
    submit(world, "runs", 2, 2, 2)
    assert world.run_until(trains("runs"), 60.0)
    submit(world, "low", 2, 2, 2, priority=-1)
    submit(world, "usual", 2, 2, 2)
    world.run(30.0)
    finish(world, "runs")
    assert world.run_until(trains("usual"), 90.0)
    assert states(world)["low"] is JobState.QUEUED


def test_a_job_that_its_cloud_refuses_keeps_no_other_waiting_and_gets_its_turn_once_there_is_capacity() -> None:
    world = limited(cluster=Cap(nodes=3))
    world.cloud.types = ("small", "large")
    world.cloud.used_up = frozenset({"large"})
    submit(world, "refused", 2, 2, 2, resources={"instance_types": ["large"]}, priority=5)
    world.run(30.0)
    submit(world, "able", 2, 3, 3, resources={"instance_types": ["small"]})
    assert world.run_until(lambda w: states(w)["able"] in {JobState.DEGRADED, JobState.RUNNING}, 90.0)
    world.cloud.used_up = frozenset()
    finish(world, "able")
    assert world.run_until(trains("refused"), 120.0)


def test_a_limit_of_dollars_per_hour_holds_for_all_jobs_together() -> None:
    world = limited(cluster=Cap(usd_per_hour=0.45))
    submit(world, "first", 2, 6, 6)
    submit(world, "second", 1, 6, 6)
    world.run(120.0)
    usd = sum(node.offer.usd_per_hour or 0.0 for job in jobs_of(world).values() for node in job.nodes.values())
    assert alive(world) == 4
    assert usd <= 0.45


def partly_in_a_full_zone(world: World) -> None:
    """Three of six nodes train in a zone that has no more; the other zone has room."""
    world.cloud.capacity.update({"zone-a": 3, "zone-b": 0})
    submit(world, "job", 2, 6, 6)
    assert world.run_until(lambda w: states(w)["job"] is JobState.DEGRADED, 60.0)
    world.run(60.0)
    world.cloud.capacity["zone-b"] = 16


def most_at_once(world: World, seconds: float) -> int:
    """How many machines there were at most."""
    most: list[int] = []
    world.run_until(lambda w: most.append(alive(w)) or False, seconds)  # type: ignore[func-returns-value]
    return max(most)


@pytest.mark.parametrize(
    ("cap", "most", "trains_on"),
    [
        pytest.param(Cap(nodes=9), 9, 6, marks=pytest.mark.nightly),  # both sets fit
        (Cap(nodes=8), 8, 5),  # five of six are worth the pause
        pytest.param(Cap(nodes=6), 3, 3, marks=pytest.mark.nightly),  # it stays, as too few fit
        (Cap(usd_per_hour=0.6), 3, 3),
    ],
)
def test_a_job_moves_only_where_both_sets_of_nodes_stay_within_the_operators_limits(
    cap: Cap, most: int, trains_on: int
) -> None:
    world = limited(cluster=cap)
    partly_in_a_full_zone(world)
    assert most_at_once(world, 700.0) == most
    job = jobs_of(world)["job"]
    assert job.round
    assert len(job.round.nodes()) >= trains_on
    assert ({job.nodes[node].offer.zone for node in job.round.nodes()} == {"zone-b"}) is (most > 3)
    assert world.nodes.trainings["job"].steps.lost == 0


@pytest.mark.nightly
def test_a_job_that_may_not_have_both_sets_says_so_and_asks_ever_more_rarely() -> None:
    world = limited(job=Cap(nodes=6))
    partly_in_a_full_zone(world)
    world.run(1800.0)
    said = [event.text for event in world.journal.events("job") if event.kind is EventKind.MOVE_GIVEN_UP]
    assert 2 <= len(said) <= 3
    assert said[0] == (
        "job does not move to zone-b: 4 are needed beside the nodes that it has, and the operator's limits leave 3"
    )


def test_a_job_that_needs_more_than_any_limit_allows_is_refused_at_once() -> None:
    world = limited(job=Cap(nodes=2))
    api = service(world)
    with pytest.raises(CommandRefusedError, match=r"needs 3 nodes; 2 of 2 are left in the limit of one job"):
        api.submissions.check({"name": "job", "nodes": 3, "run": "train.py"})
    submit(world, "other", 1, 1, 1)
    with pytest.raises(CommandRefusedError, match=r"job other is refused: it needs 3 nodes; 2 of 2 are left"):
        api.commands.scale("other", Scale(desired=3, min_nodes=3, max_nodes=3))
    api.commands.scale("other", Scale(desired=3, max_nodes=3))
