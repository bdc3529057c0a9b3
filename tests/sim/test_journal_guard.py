"""What the daemon does if etcd has no journal, an old one, one of another version, or a user's pause (P1, P4)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.events import EventKind
from supervisor.journal.codec import dump
from supervisor.model import SCHEMA_VERSION, ClusterRecord, DaemonPause, JobState
from supervisor.runtime.loop import Loop
from supervisor.runtime.marks import Continuity
from tests.sim.harness import (
    RULES,
    alive,
    empty_world,
    in_state,
    machine_of,
    record,
    service,
    submit,
    training_world,
)
from tests.sim.promises import events_of, jobs_of, settled

LONG_S = 4 * RULES.orphan_grace_s + 60.0


def headline(world: World) -> str:
    return world.daemon.loop.status.headline


def forget(world: World, *prefixes: str) -> None:
    """etcd loses these keys, or all: as after an emptied data folder, or an older backup.

    Only a person can tell a leak (P1) from a working machine then, so the check is off.
    """
    world.hooks.step.clear()
    for key in [key for key in world.etcd.keys if key.startswith(prefixes or ("",))]:
        world.etcd.delete(key)


# -- no journal --------------------------------------------------------------------------------------------


def test_a_new_etcd_without_machines_is_a_new_journal() -> None:
    world = empty_world()
    reading = world.daemon.journal.read()
    assert reading.cluster is not None
    submit(world, "job", 1, 1, 1)
    assert world.run_until(settled, 60.0)


def test_after_an_etcd_was_emptied_no_machine_is_terminated_whether_or_not_the_daemon_restarts() -> None:
    for restarts in (False, True):
        world = training_world()
        before = alive(world)
        forget(world)
        world.run(1.0)
        world.crash_daemon() if restarts else world.daemon.leader.seize()
        world.run(LONG_S)
        assert alive(world) == before
        assert "etcd has no journal of this cluster, but its machines run (job-" in headline(world)
        assert "`spotsupd adopt`" in headline(world)


def test_nothing_is_decided_before_every_cloud_was_listed() -> None:
    world = training_world()
    before = alive(world)
    forget(world)
    world.set_fault_rates(replace(world.fault_rates, unreachable=1.0))
    world.crash_daemon()
    world.run(30.0)
    assert "new journal: waiting for a listing of local" in headline(world)
    world.set_fault_rates(replace(world.fault_rates, unreachable=0.0))
    world.run(LONG_S)
    assert alive(world) == before


def test_the_journal_goes_on_once_the_unknown_machines_are_gone() -> None:
    world = training_world()
    forget(world)
    world.crash_daemon()
    world.run(10.0)
    submit(world, "job", 1, 1, 1)
    world.run(10.0)
    assert record(world).state is JobState.QUEUED, "what users ask for is stored, and waits"
    for machine in list(world.cloud.machines.values()):
        if machine.alive:
            world.cloud.end(machine, EndCause.USER)
    assert world.run_until(in_state(JobState.RUNNING), 120.0)


def test_a_daemon_with_another_clusters_key_does_nothing_and_says_why() -> None:
    world = training_world()
    daemon = world.daemon
    world.etcd.put("/spotsup/sim/world/cluster", dump(ClusterRecord(0.0, "another", "mark-a")))
    world.run(0.5)
    for mark, trusted in (("mark-a", True), ("mark-b", False)):
        loop = Loop(daemon.journal, daemon.leader, daemon.actor, world.clock, world.rules, ("local",), Continuity(mark))
        loop.tick()
        assert ("cluster.key is not the cluster's: copy it" in loop.status.headline) is not trusted


# -- an old journal ----------------------------------------------------------------------------------------


def test_after_an_older_backup_no_machine_whose_agent_publishes_is_terminated() -> None:
    world = training_world()
    lost, current = machine_of(world, 2), jobs_of(world)["job"].round
    node = lost.instance.node
    forget(world, f"/spotsup/sim/world/nodes/job/{node}")
    world.crash_daemon()
    world.run(LONG_S)
    assert lost.alive
    assert jobs_of(world)["job"].round == current, "nor is it taken from its round"
    assert world.daemon.loop.status.about("job").startswith(f"left alone: {node} may work for it and is not")
    assert f"machines run that are not in the journal ({node}): they are left alone" in headline(world)


# -- a journal of another version --------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "schema"), [("a newer", SCHEMA_VERSION + 1), ("an older", SCHEMA_VERSION - 1)])
def test_a_job_of_another_version_is_left_alone_and_the_others_are_not(other: str, schema: int) -> None:
    world = training_world()
    submit(world, "other", 1, 1, 1)
    assert world.run_until(settled, 60.0)
    key = "/spotsup/sim/world/jobs/job"
    world.hooks.step.clear()  # as in forget()
    foreign = {**json.loads(world.etcd.keys[key].value), "schema": schema, "colour": "red"}
    world.etcd.put(key, json.dumps(foreign).encode())
    before = {k: kv for k, kv in world.etcd.keys.items() if "/job" in k and ("/jobs/" in k or "/nodes/" in k)}
    machines = alive(world)
    world.crash_daemon()
    world.run(LONG_S)
    assert alive(world) == machines
    after = {k: kv for k, kv in world.etcd.keys.items() if "/job" in k and ("/jobs/" in k or "/nodes/" in k)}
    assert after == before
    assert "job is left alone: " in headline(world)
    assert f"was written by {other} spotsupd" in headline(world)
    assert world.daemon.loop.status.counters["records_refused"] == 1
    world.etcd.delete(key)
    ours = {k: v for k, v in foreign.items() if k != "colour"} | {"schema": SCHEMA_VERSION}
    world.etcd.put(key, json.dumps(ours).encode())
    world.run(10.0)
    assert settled(world)
    assert jobs_of(world)["other"].record.state is JobState.RUNNING


# -- paused by a user --------------------------------------------------------------------------------------


def test_a_paused_daemon_reports_the_pause_and_does_nothing_also_after_a_restart() -> None:
    world = training_world()
    service(world).daemons.pause("upgrade")
    for restart in (False, True):
        if restart:
            world.crash_daemon()
        world.cloud.preempt(machine_of(world, 1), 60.0)
        world.run(20.0)
        assert "paused by a user (upgrade)" in headline(world)
        assert world.daemon.loop.status.about("job") == headline(world)
        assert not events_of(world, "job", EventKind.NOTICE)
    service(world).daemons.resume()
    world.run(1.0)
    assert events_of(world, "job", EventKind.NOTICE)
    assert world.run_until(settled, 200.0)


def test_a_daemon_that_has_not_read_the_pause_yet_changes_nothing() -> None:
    world = training_world()
    world.set_fault_rates(replace(world.fault_rates, mirror_lag_s=5.0))
    world.run(6.0)
    world.cloud.preempt(machine_of(world, 1), 60.0)
    world.etcd.put("/spotsup/sim/world/pause", dump(DaemonPause(0.0)))
    before = {key: kv for key, kv in world.etcd.keys.items() if "/jobs/" in key or "/nodes/" in key}
    world.run(10.0)
    assert {key: kv for key, kv in world.etcd.keys.items() if "/jobs/" in key or "/nodes/" in key} == before


def test_commands_to_a_paused_daemon_are_carried_out_when_it_resumes() -> None:
    world = training_world()
    service(world).daemons.pause("")
    service(world).commands.cancel("job")
    world.run(10.0)
    assert record(world).state is JobState.RUNNING
    service(world).daemons.resume()
    assert world.run_until(in_state(JobState.CANCELLED), 10.0)
