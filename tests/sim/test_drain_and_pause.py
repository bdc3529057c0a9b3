"""What a user asks of what runs: drain a node, pause a job, resume it. Nothing finished is lost, nothing is bought."""

from __future__ import annotations

import pytest
from spotsup_simulator.world import World
from spotsup_trainer.rendezvous.membership import Wait, Yield, next_round, standing
from spotsup_trainer.rendezvous.view import Rules, View
from spotsup_trainer.wire import Hint, Member, Round, RoundMember

from provisioners.base import EndCause
from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, NotFoundError
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import (
    RULES,
    alive,
    empty_world,
    in_state,
    machine_of,
    record,
    sentence,
    service,
    submit,
    training_world,
)
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long


def node_with_rank(world: World, rank: int) -> str:
    return machine_of(world, rank).instance.node


def at_once(world: World) -> Service:
    """The API, for a user who does not wait."""
    return Service(world.daemon.journal, world.daemon.leader, world.clock, ["local"], lambda *_: True, hosted=["local"])


# -- drain -------------------------------------------------------------------------------------------------


def test_a_drained_node_trains_on_until_it_is_replaced_and_then_leaves_in_order() -> None:
    world = training_world()
    node = node_with_rank(world, 1)
    before = jobs_of(world)["job"].round
    service(world).commands.drain(node)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_REQUESTED)), 1.5)
    assert jobs_of(world)["job"].nodes[node].state is NodeState.MEMBER
    assert f"{node} leaves once replaced" in sentence(world)
    assert world.run_until(settled, 120.0)
    view = jobs_of(world)["job"]
    assert before is not None
    assert view.round is not None
    assert view.round.number == before.number + 1, "one change of membership"
    assert node not in view.round.nodes()
    assert view.nodes[node].state is NodeState.GONE
    assert world.nodes.trainings["job"].steps.lost == 0
    joined = events_of(world, "job", EventKind.REPLACEMENT_JOINED)
    assert [view.nodes[new].took_over_from for new in joined] == [node]


def test_a_drained_node_without_a_replacement_trains_on() -> None:
    world = training_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    node = node_with_rank(world, 0)
    service(world).commands.drain(node)
    world.run(300.0)
    assert record(world).state is JobState.RUNNING
    assert node_with_rank(world, 0) == node
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 16)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[node].state is NodeState.GONE and settled(w), 120.0)


def test_a_drain_survives_the_daemon_and_counts_once() -> None:
    world = training_world()
    node = node_with_rank(world, 2)
    service(world).commands.drain(node)
    world.crash_daemon()
    world.run(0.5)
    service(world).commands.drain(node)
    assert world.run_until(settled, 120.0)
    assert events_of(world, "job", EventKind.DRAIN_REQUESTED) == [node]
    assert len(events_of(world, "job", EventKind.REPLACEMENT_REQUESTED)) == 1


def test_all_nodes_may_be_drained_at_once_and_no_step_is_lost() -> None:
    world = training_world()
    nodes = jobs_of(world)["job"].round.nodes()  # type: ignore[union-attr]
    for node in nodes:
        service(world).commands.drain(node)
    assert world.run_until(settled, 200.0)
    assert not set(nodes) & set(jobs_of(world)["job"].round.nodes())  # type: ignore[union-attr]
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_drained_spare_and_one_that_is_on_its_way_are_replaced_without_a_pause() -> None:
    world = training_world(spares=1)
    spare = jobs_of(world)["job"].spares[0]
    service(world).commands.drain(spare)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[spare].state is NodeState.GONE and settled(w), 120.0)
    world.cloud.end(machine_of(world, 0), EndCause.UNKNOWN)
    assert world.run_until(
        lambda w: any(n.state is NodeState.REQUESTED for n in jobs_of(w)["job"].nodes.values()), 20.0
    )
    coming = next(n.id for n in jobs_of(world)["job"].nodes.values() if n.state is NodeState.REQUESTED)
    service(world).commands.drain(coming)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[coming].state is NodeState.GONE and settled(w), 120.0)


def test_a_drain_of_an_unknown_node_is_refused() -> None:
    world = training_world()
    with pytest.raises(NotFoundError, match="no node is named 'stranger'"):
        service(world).commands.drain("stranger")
    node = node_with_rank(world, 0)
    service(world).commands.drain(node)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[node].state is NodeState.GONE, 120.0)
    with pytest.raises(CommandRefusedError, match=f"node {node} is gone: there is nothing to drain"):
        service(world).commands.drain(node)


# -- pause -------------------------------------------------------------------------------------------------


def test_a_paused_job_checkpoints_releases_all_and_goes_on_where_it_was() -> None:
    world = training_world(spares=1)
    training = world.nodes.trainings["job"]
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 10.0)
    assert world.run_until(lambda w: not alive(w), 30.0)
    stopped_at = training.save()
    assert sentence(world).startswith("paused: a user paused it")
    launched = len(world.cloud.machines)
    world.run(500.0)
    assert len(world.cloud.machines) == launched, "nothing is bought"
    assert training.save() == stopped_at
    service(world).commands.resume("job")
    assert world.run_until(settled, 120.0)
    assert training.steps.lost == 0
    assert training.save() >= stopped_at
    assert record(world).state is JobState.RUNNING


def test_a_pause_that_is_resumed_at_once_keeps_the_machines() -> None:
    world = training_world()
    machines = set(world.cloud.machines)
    world.nodes.trainings["job"].save_in(3.0)
    at_once(world).commands.pause("job")
    world.run(1.0)
    assert sentence(world) == "pausing: waiting for a checkpoint of 3 nodes"
    at_once(world).commands.resume("job")
    world.run(30.0)
    assert settled(world)
    assert set(world.cloud.machines) == machines
    assert world.nodes.trainings["job"].steps.lost == 0


def test_commands_that_are_given_twice_count_once() -> None:
    world = training_world()
    service(world).commands.resume("job")
    service(world).commands.pause("job")
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 10.0)
    service(world).commands.resume("job")
    service(world).commands.resume("job")
    kinds = [event.kind for event in world.daemon.journal.events("job")]
    assert (
        kinds.count(EventKind.PAUSE_REQUESTED) == kinds.count(EventKind.PAUSED) == kinds.count(EventKind.RESUMED) == 1
    )


def test_a_pause_survives_the_daemon_at_any_moment() -> None:
    for seconds in (0.0, 0.5, 1.0, 2.0, 5.0):
        world = training_world()
        service(world).commands.pause("job")
        world.run(seconds)
        world.lose_daemon()
        world.run(5.0)
        world.crash_daemon()
        assert world.run_until(lambda w: record(w).state is JobState.PAUSED and not alive(w), 60.0)
        assert world.nodes.trainings["job"].steps.lost == 0


def test_a_job_that_is_paused_before_it_trains_buys_nothing_more() -> None:
    world = empty_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 1)
    submit(world, "job", 2, 2, 2)
    world.run(3.0)
    service(world).commands.pause("job")
    assert world.run_until(lambda w: record(w).state is JobState.PAUSED and not alive(w), 60.0)
    launched = len(world.cloud.machines)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 16)
    world.run(100.0)
    assert len(world.cloud.machines) == launched
    service(world).commands.resume("job")
    assert world.run_until(settled, 120.0)


def test_a_silent_node_delays_a_pause_only_until_it_is_lost() -> None:
    world = training_world()
    machine_of(world, 1).silent = True
    service(world).commands.pause("job")
    assert sentence(world).startswith("pausing: waiting for a checkpoint of")
    assert world.run_until(in_state(JobState.PAUSED), RULES.silence.suspect_s + 20.0)
    assert world.run_until(lambda w: not alive(w), 60.0)


def test_paused_time_does_not_count_towards_the_limit_of_hours() -> None:
    world = training_world(limits={"hours": 0.1})
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 10.0)
    world.run(1000.0)
    service(world).commands.resume("job")
    assert world.run_until(settled, 120.0)
    world.run(300.0)
    assert record(world).state is JobState.RUNNING, "1000 s of pause are more than the limit's 360 s"
    assert world.run_until(in_state(JobState.PAUSED), 100.0)
    assert record(world).reason.startswith("limits.hours 0.1 reached; ")


def test_a_cancellation_that_reaches_etcd_twice_is_not_refused_because_the_job_has_ended_by_it() -> None:
    world = empty_world()
    submit(world, "job", 1, 1, 1)
    assert world.run_until(settled, 60.0)

    def first() -> None:
        service(world).commands.cancel("job")
        assert world.run_until(lambda w: record(w).ended, 60.0)

    world.daemon.client.before_txn = first
    assert service(world).commands.cancel("job").record.cancel_requested


def test_a_paused_job_can_be_cancelled_and_not_paused_once_it_has_ended() -> None:
    world = training_world()
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 10.0)
    service(world).commands.cancel("job")
    assert world.run_until(lambda w: record(w).state is JobState.CANCELLED and settled(w), 60.0)
    with pytest.raises(CommandRefusedError, match="has ended"):
        service(world).commands.pause("job")
    with pytest.raises(CommandRefusedError, match="has ended"):
        service(world).commands.resume("job")


# -- the launchers' part -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("the job is paused", "the job is paused"),
        ("a leaves; a checkpoint, then 1 of at least 2 nodes wait",) * 2,
        ("", "the daemon holds the job"),
    ],
)
def test_launchers_on_hold_checkpoint_together_form_no_round_and_say_why(reason: str, said: str) -> None:
    members = {node: Member(node, f"{node}/1", "10.0.0.1", 1, "running", 1) for node in "ab"}
    current = Round(1, tuple(RoundMember(m.node, m.incarnation, m.addr, m.store_port) for m in members.values()), 0.0)
    hold = Hint(("a", "b"), 1, 2, reason, hold=True)
    running = View(Rules(1, 2), members, current, hold)
    assert standing(running, current, "a", 100.0) == Yield(said)
    parked = {node: Member(node, f"{node}/1", "10.0.0.1", 1, "waiting", 1, parked=True) for node in "ab"}
    assert next_round(View(Rules(1, 2), parked, current, hold), 100.0, 0.0) == Wait(said)
