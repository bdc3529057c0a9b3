"""Leases of the simulated etcd: they end late, or together, and their users end or renew each other's."""

from __future__ import annotations

import pytest
from spotsup_simulator.daemon import LEADER_TTL_S
from spotsup_simulator.etcd import LEADER_KEY, MIN_TTL_S
from spotsup_simulator.nodes import LEASE_S
from spotsup_simulator.world import World

from supervisor.events import EventKind
from supervisor.model import JobState
from supervisor.runtime.leader import SILENT_TTLS
from tests.sim.etcd_faults import EtcdFaults
from tests.sim.harness import alive, empty_world, in_state, machine_of, record, service, submit, training_world
from tests.sim.promises import events_of, jobs_of, settled

# etcd ends a lease so much later at most.
LATE_S = 6.0


def faults(world: World) -> EtcdFaults:
    return EtcdFaults(world, lambda daemon, _: world.kill(daemon), lambda: None, lambda: None)


def assert_trains_on(world: World, machines: int = 3) -> None:
    """Nothing has disturbed the job."""
    job = jobs_of(world)["job"]
    assert job.round is not None
    assert job.round.number == 1
    assert world.nodes.trainings["job"].steps.losses == []
    assert events_of(world, "job", EventKind.NODE_LOST) == []
    assert alive(world) == len(world.cloud.machines) == machines


def test_a_leader_whose_lease_is_revoked_leads_again_or_another_does_and_nothing_is_lost() -> None:
    world = training_world()
    first, second = world.daemon, world.start_daemon()
    world.run(2.0)
    for _ in range(5):
        (leader,) = [daemon for daemon in (first, second) if daemon.leader.leading]
        guard = leader.leader.guard()
        leader.leader.lose_lease()
        assert LEADER_KEY not in world.etcd.keys
        assert not world.etcd.txn(guard, []).succeeded
        assert world.run_until(lambda w: LEADER_KEY in w.etcd.keys, LEADER_TTL_S)
        world.run(2.0)
        assert [first.leader.leading, second.leader.leading].count(True) == 1
    assert_trains_on(world)


def test_a_standby_whose_lease_is_revoked_gets_another_one_and_takes_over() -> None:
    world = training_world()
    second = world.start_daemon()
    world.run(2.0)
    for _ in range(3):
        second.leader.lose_lease()
        world.run(2.0)
    world.kill(world.daemon)
    assert world.run_until(lambda _: second.leader.leading, LEADER_TTL_S + LATE_S)
    world.run(5.0)
    assert_trains_on(world)


def test_a_dead_leader_whose_lease_somebody_renews_is_replaced_by_a_standby() -> None:
    world = training_world()
    second = world.start_daemon()
    world.run(2.0)
    faults(world).renew(10_000.0)
    world.kill(world.daemon)
    assert not world.run_until(lambda _: second.leader.leading, LEADER_TTL_S + LATE_S)
    assert world.run_until(lambda _: second.leader.leading, SILENT_TTLS * LEADER_TTL_S)
    machine_of(world, 2).noticed_at = world.clock.now()
    world.cloud.vanish(machine_of(world, 2))
    world.daemon = second
    assert world.run_until(settled, 120.0)


def test_a_frozen_leader_whose_lease_somebody_renews_writes_nothing_once_another_leads() -> None:
    world = training_world()
    first, second = world.daemon, world.start_daemon()
    world.run(2.0)
    guard = first.leader.guard()
    faults(world).renew(10_000.0)
    world.freeze(first, 60.0)
    assert world.run_until(lambda _: second.leader.leading, 2 * SILENT_TTLS * LEADER_TTL_S)
    assert not world.etcd.txn(guard, []).succeeded
    world.run(60.0)
    assert [first.leader.leading, second.leader.leading] == [False, True]
    assert_trains_on(world)


def test_nodes_whose_leases_are_revoked_train_on() -> None:
    world = training_world()
    for _ in range(10):
        for rank in range(3):
            world.nodes.revoke_leases(machine_of(world, rank).instance.node)
        world.run(0.5)
    world.run(LEASE_S)
    assert len(jobs_of(world)["job"].members) == len(jobs_of(world)["job"].agents) == 3
    assert_trains_on(world)


def test_a_dead_node_whose_leases_somebody_renews_is_replaced_because_its_cloud_says_that_it_ended() -> None:
    world = training_world()
    victim = machine_of(world, 2)
    world.nodes.renew_leases(victim.instance.node, 10_000.0)
    world.cloud.vanish(victim)
    world.run(2.0)
    assert victim.instance.node in jobs_of(world)["job"].members
    assert world.run_until(lambda w: settled(w) and record(w).state is JobState.RUNNING, 120.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [victim.instance.node]


def test_a_lease_is_as_long_as_etcd_grants_it_and_ends_late_and_a_new_leader_of_etcd_lets_all_begin_anew() -> None:
    world = empty_world()
    etcd = world.etcd
    begun = world.clock.now()
    leases = [etcd.grant(ttl_s) for ttl_s in (1, 5, 5)]
    assert [etcd.keep_alive(lease) for lease in leases] == [MIN_TTL_S, 5, 5]
    assert world.run_until(lambda _: leases[0] not in etcd.leases, 20.0)
    assert MIN_TTL_S <= world.clock.now() - begun <= MIN_TTL_S + LATE_S
    assert {5} == {etcd.leases[lease].ttl_s for lease in leases[1:]}
    etcd.elect()
    anew = world.clock.now()
    ended = []
    world.hooks.step.append(lambda: ended.append(world.clock.now()) if leases[1] not in etcd.leases else None)
    world.run(20.0)
    assert anew + 5.0 < ended[0]
    assert etcd.keep_alive(leases[2]) == 0


@pytest.mark.long
def test_while_etcd_is_full_training_goes_on_and_afterwards_what_was_lost_is_replaced() -> None:
    world = training_world()
    world.start_daemon()
    world.run(2.0)
    world.etcd.full = True
    world.run(600.0)
    assert_trains_on(world)
    world.cloud.vanish(machine_of(world, 2))
    world.run(60.0)
    world.etcd.full = False
    assert world.run_until(settled, 120.0)
    assert len(events_of(world, "job", EventKind.NODE_LOST)) == 1


def test_a_daemon_that_ends_while_etcd_is_full_is_replaced_when_there_is_room() -> None:
    world = training_world()
    world.etcd.full = True
    world.kill(world.daemon)
    world.daemon = world.start_daemon()
    world.run(60.0)
    assert not world.daemon.leader.leading
    assert "space quota" in world.daemon.leader.etcd_problem()
    world.etcd.full = False
    assert world.run_until(lambda w: w.daemon.leader.leading, 5.0)
    service(world).commands.cancel("job")
    assert world.run_until(lambda w: in_state(JobState.CANCELLED)(w) and settled(w), 120.0)


def test_a_machine_of_a_job_that_is_new_waits_for_room_and_is_asked_for_once() -> None:
    world = empty_world()
    submit(world, "job", 1, 1, 1)
    world.etcd.full = True
    world.run(120.0)
    world.etcd.full = False
    assert world.run_until(in_state(JobState.RUNNING), 120.0)
    assert world.cloud.launched == 1
