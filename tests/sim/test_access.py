"""Users of etcd in the simulated world: the real rules of supervisor.journal.users, and nodes that lose access."""

from __future__ import annotations

import pytest
from spotsup_simulator.etcd import CLUSTER
from spotsup_simulator.etcd_clients import NodeClient
from spotsup_simulator.world import World

from supervisor.events import EventKind
from supervisor.model import JobState
from tests.sim.access import AccessFaults, user_of
from tests.sim.harness import alive, empty_world, in_state, record, service, submit, training_world
from tests.sim.promises import Violation, events_of, jobs_of, settled

pytestmark = pytest.mark.long


def users(world: World) -> set[str]:
    return set(world.etcd.auth.state.users)


def barred(world: World) -> list[str]:
    return [machine.instance.node for machine in world.cloud.machines.values() if machine.alive and machine.barred]


def assert_undisturbed(world: World, machines: int) -> None:
    job = jobs_of(world)["job"]
    assert job.round is not None
    assert job.round.number == 1
    assert world.nodes.trainings["job"].steps.losses == []
    assert events_of(world, "job", EventKind.NODE_LOST) == []
    assert alive(world) == len(world.cloud.machines) == machines


def test_a_user_is_made_before_the_first_node_and_deleted_after_the_end() -> None:
    world = empty_world()
    submit(world, "job", 2, 2, 2)
    assert users(world) == set()
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert users(world) == {user_of(record(world).task_id)}
    assert barred(world) == []
    service(world).commands.cancel("job")
    assert world.run_until(lambda w: settled(w) and not users(w), 120.0)
    assert not world.etcd.auth.state.roles


def test_a_node_can_log_in_as_soon_as_it_is_prepared() -> None:
    world = empty_world()
    no_pruning(world)
    submit(world, "job", 2, 2, 2)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert barred(world) == []


def no_pruning(world: World) -> None:
    """Housekeeping stands still."""
    world.daemon._prunes_at = world.clock.now() + 10_000.0


def test_a_user_that_was_deleted_is_made_again_and_its_nodes_train_on() -> None:
    world = training_world()
    AccessFaults(world).delete_user()
    assert world.run_until(lambda w: len(barred(w)) == 3, 1.0)
    assert world.run_until(lambda w: not barred(w), 70.0)
    assert world.run_until(settled, 60.0)
    assert_undisturbed(world, 3)


@pytest.mark.parametrize("calls", range(1, 13))
def test_a_daemon_that_dies_while_it_makes_users_again_leaves_none_incomplete(calls: int) -> None:
    world = training_world()
    faults = AccessFaults(world)
    faults.delete_user()
    faults.die_in(calls)
    assert world.run_until(lambda w: not barred(w) and users(w) != set(), 200.0)
    world.run(70.0)
    assert barred(world) == []
    assert world.run_until(settled, 60.0)
    assert_undisturbed(world, 3)


def test_users_that_a_backup_lacks_are_made_again() -> None:
    world = training_world()
    world.etcd.auth.roll_back(0)
    assert users(world) == set()
    assert world.run_until(lambda w: bool(users(w)) and not barred(w), 120.0)
    assert_undisturbed(world, 3)


def test_a_name_that_is_used_again_locks_the_earlier_user_out_before_its_own_is_made() -> None:
    world = training_world()
    earlier = user_of(record(world).task_id)
    service(world).commands.cancel("job")
    assert world.run_until(settled, 60.0)
    state = world.etcd.auth.state
    no_pruning(world)
    assert earlier in state.users
    both: list[set[str]] = []
    world.hooks.step.append(lambda: both.append(users(world)))
    submit(world, "job", 1, 1, 1)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    later = user_of(record(world).task_id)
    assert users(world) == {later} != {earlier}
    assert not any({earlier, later} <= seen for seen in both)


def test_tokens_that_expire_and_users_that_change_disturb_nothing() -> None:
    world = training_world()
    world.etcd.auth.forget_tokens()
    world.etcd.auth.stale_requests = 5
    submit(world, "other", 1, 1, 1)
    assert world.run_until(lambda w: record(w, "other").state is JobState.RUNNING, 60.0)
    assert_undisturbed_job(world)


def assert_undisturbed_job(world: World) -> None:
    assert barred(world) == []
    assert world.nodes.trainings["job"].steps.losses == []


def test_what_a_node_writes_elsewhere_is_refused_and_is_a_broken_promise() -> None:
    world = training_world()
    node = NodeClient(world.etcd, "job")
    for key in (
        world.nodes.keys.hint("job"),
        world.nodes.keys.member("other", "n"),
        f"{world.nodes.keys.world}jobs/job",
    ):
        before = world.etcd.keys.get(key)
        node.put(key, b"{}")
        assert world.etcd.keys.get(key) is before
    node.put(world.nodes.keys.progress("job"), b"{}")
    with pytest.raises(Violation, match=rf"access: a node of job wrote .*/{CLUSTER}/"):
        world.run(1.0)
