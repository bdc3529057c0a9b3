"""Single scenarios in a simulated world, and how each must end. Random scenarios are in test_sim.py."""

from __future__ import annotations

from dataclasses import replace

from spotsup_simulator.faults import FaultRates
from spotsup_simulator.nodes import LEASE_S
from spotsup_simulator.world import World
from spotsup_trainer.wire import Ended, encode

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.model import Event, JobState
from supervisor.planner.actions import ListDone, ListInstances
from tests.sim.harness import RULES, alive, in_state, machine_of, service, training_world
from tests.sim.promises import events_of, jobs_of, settled


def test_a_notice_brings_a_replacement_in_the_same_tick_and_one_change_of_membership() -> None:
    world = training_world()
    before = jobs_of(world)["job"].round
    assert before is not None
    doomed = machine_of(world, 1)
    world.cloud.preempt(doomed, 60.0)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_REQUESTED)), 1.0)
    assert world.run_until(settled, 120.0)
    after = jobs_of(world)["job"].round
    assert after is not None
    assert after.number == before.number + 1
    assert doomed.instance.node not in after.nodes()
    assert world.nodes.trainings["job"].steps.lost == 0
    assert {event.kind for event in world.sent} >= {
        EventKind.NOTICE,
        EventKind.REPLACEMENT_REQUESTED,
        EventKind.REPLACEMENT_JOINED,
    }


def test_a_notice_without_capacity_leaves_in_time_and_loses_no_step() -> None:
    world = training_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    doomed = machine_of(world, 0)
    world.cloud.preempt(doomed, 30.0)
    assert world.run_until(lambda w: jobs_of(w)["job"].record.state is JobState.DEGRADED, 60.0)
    world.run(40.0)
    assert world.nodes.trainings["job"].steps.lost == 0
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 8)
    assert world.run_until(settled, 120.0)


def test_a_machine_that_vanishes_gets_a_tombstone_and_a_replacement() -> None:
    world = training_world()
    victim = machine_of(world, 2)
    world.cloud.end(victim, EndCause.UNKNOWN)
    assert world.run_until(lambda w: bool(jobs_of(w)["job"].tombstones), 10.0)
    assert world.run_until(settled, 120.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [victim.instance.node]


def test_a_silent_machine_that_the_cloud_lists_as_running_is_suspected_then_replaced() -> None:
    world = training_world()
    victim = machine_of(world, 2)
    victim.silent = True
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_SUSPECT)), 15.0)
    assert victim.alive
    assert world.run_until(settled, 120.0)
    assert not victim.alive


def test_a_machine_whose_agent_was_stopped_is_replaced_at_once() -> None:
    world = training_world()
    victim = machine_of(world, 1)
    node = victim.instance.node
    world.etcd.put(world.nodes.keys.ended("job", node), encode(Ended(node, "left", 0, "asked to leave", 0.0)))
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_REQUESTED)), 1.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [node]
    assert not events_of(world, "job", EventKind.NODE_SUSPECT)
    assert world.run_until(settled, 120.0)
    assert not victim.alive


def test_a_machine_that_was_silent_for_a_moment_is_not_killed() -> None:
    world = training_world()
    victim = machine_of(world, 1)
    victim.silent = True
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_SUSPECT)), 15.0)
    world.run(RULES.silence.suspect_s / 2)
    victim.silent = False
    world.run(60.0)
    assert victim.alive
    assert settled(world)


def test_a_suspicion_does_not_run_out_while_etcd_is_down() -> None:
    world = training_world()
    victim = machine_of(world, 1)
    victim.silent = True
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_SUSPECT)), 15.0)
    world.etcd.down = True
    world.run(1.0)
    victim.silent = False
    world.run(3 * RULES.silence.suspect_s)
    world.set_fault_rates(
        FaultRates(mirror_lag_s=0.5)
    )  # it publishes at once, and the daemon reads that a little later
    world.etcd.down = False
    world.run(60.0)
    assert victim.alive
    assert settled(world)


def test_the_spare_that_is_hinted_as_a_member_is_not_the_one_that_is_released() -> None:
    world = training_world(2, 3, 5, spares=2)
    spares = jobs_of(world)["job"].spares
    hinted: set[str] = set()
    ended: set[str] = set()
    world.hooks.step.append(lambda: hinted.update(jobs_of(world)["job"].hint.members))  # type: ignore[union-attr]
    world.hooks.terminate.append(lambda machine: ended.add(machine.instance.node))
    service(world).commands.scale("job", Scale(desired=4, spares=0))
    assert world.run_until(settled, 60.0)
    assert len(hinted & {*spares}) == 1
    assert ended == {*spares} - hinted


def test_a_stored_job_is_returned_however_late_the_daemon_reads_of_it() -> None:
    world = training_world()
    service(world).commands.cancel("job")
    assert world.run_until(settled, 60.0)
    world.run(10.0)
    old = jobs_of(world)["job"].record.uid
    world.set_fault_rates(FaultRates(mirror_lag_s=4.0))
    late = service(world)
    spec = {"name": "job", "nodes": {"min": 1, "desired": 2, "max": 3}, "run": "train.py"}
    stored = late.submissions.submit(spec, late.submissions.put_blob(b"code"), "again").record
    assert (stored.uid, stored.state) == (jobs_of(world)["job"].record.uid, JobState.QUEUED)
    assert stored.uid != old
    world.run(60.0)
    assert late.commands.scale("job", Scale(desired=3)).record.desired_nodes == 3


def test_a_daemon_that_was_replaced_changes_nothing() -> None:
    world = training_world()
    old = world.daemon
    world.crash_daemon()
    world.run(5.0)
    before = {key: kv.mod_revision for key, kv in world.etcd.keys.items() if "/world/jobs/" in key}
    world.cloud.preempt(machine_of(world, 0), 60.0)
    world.nodes.step()  # the notice is in etcd, and only the old daemon ticks
    for _ in range(20):
        old.loop.tick()
    assert old.loop.status.counters.get("commits_stale", 0) > 0
    assert before == {key: kv.mod_revision for key, kv in world.etcd.keys.items() if "/world/jobs/" in key}


def test_a_command_that_is_stored_between_a_daemons_read_and_its_write_is_not_overwritten() -> None:
    world = training_world(2, 3, 4)
    world.hooks.boundary.append(lambda _daemon, where, kind: _cancel_once(world, where, kind))
    service(world).commands.scale("job", Scale(desired=4))
    assert world.run_until(in_state(JobState.CANCELLED), 30.0)
    assert world.run_until(lambda w: not alive(w), 60.0)


def _cancel_once(world: World, where: str, kind: str) -> None:
    view = jobs_of(world)["job"]
    if (where, kind) != ("before intent", "Launch") or view.record.cancel_requested:
        return
    event = Event("cancel", world.clock.now(), "job", EventKind.CANCEL_REQUESTED, "a user asked to cancel it")
    assert world.journal.update_job(view, replace(view.record, cancel_requested=True), event)


def test_scaling_up_and_down_and_the_end_release_every_machine() -> None:
    world = training_world()
    service(world).commands.scale("job", Scale(desired=4))
    assert world.run_until(lambda w: settled(w) and len(jobs_of(w)["job"].round.nodes()) == 4, 60.0)  # type: ignore[union-attr]
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(lambda w: settled(w) and len(jobs_of(w)["job"].round.nodes()) == 2, 60.0)  # type: ignore[union-attr]
    training_of = world.nodes.trainings["job"]
    assert training_of.steps.lost == 0
    training_of.target_steps = 1
    assert world.run_until(lambda w: jobs_of(w)["job"].record.state is JobState.SUCCEEDED and settled(w), 60.0)
    assert not alive(world)


def test_a_listing_answered_after_leadership_was_lost_is_ignored() -> None:
    world = training_world()
    first, second = world.daemon, world.start_daemon()
    second.leader.seize()
    world.run(5.0)
    first.actor.done.append(
        (ListInstances("local"), ListDone("local", asked_at=world.clock.now()))
    )  # it lists no machine
    world.run(60.0)
    victim = machine_of(world, 2)
    victim.silent = True
    world.run(LEASE_S + 0.5)
    victim.hidden = 1
    first.leader.seize()
    assert world.run_until(lambda _: not victim.hidden, 10.0)
    world.run(1.0)
    victim.silent = False
    world.run(30.0)
    assert victim.alive
    assert not events_of(world, "job", EventKind.NODE_LOST)


def test_a_new_leader_restarts_the_suspicion_of_one_whose_clock_was_wrong() -> None:
    world = training_world()
    first, second = world.daemon, world.start_daemon()
    first.clock_error_s = -86_400.0
    world.run(90.0)  # the jump is accepted
    victim = machine_of(world, 2)
    victim.silent = True
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_SUSPECT)), 20.0)
    second.leader.seize()
    world.run(2.0)
    victim.silent = False
    world.run(30.0)
    assert victim.alive
    assert not events_of(world, "job", EventKind.NODE_LOST)


def test_a_fence_holds_after_etcd_reused_revisions() -> None:
    world = training_world()
    first, second = world.daemon, world.start_daemon()
    old = first.leader.guard()
    world.etcd.roll_back(10**6)
    assert isinstance(old[0].value, int)
    world.etcd.revision = old[0].value - 1
    second.leader.seize()
    assert second.leader.guard()[0] == old[0]
    assert not world.etcd.txn(old, []).succeeded
    assert world.etcd.txn(second.leader.guard(), []).succeeded
