"""What the planner decides, case by case, in a world without other faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World
from spotsup_trainer.wire import Result, encode

from provisioners.base import EndCause, Fatal, InstanceState, LaunchOutcome, LaunchRequest
from supervisor.api.jobs.changes import Scale
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.model import COUNTED_NODE_STATES, OPEN_NODE_STATES, JobState, NodeState
from supervisor.planner.world import CLOCKS_S
from tests.sim.harness import (
    NO_FAULTS,
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

# -- clocks ------------------------------------------------------------------------------------------------


def test_a_launch_was_between_its_intent_and_its_answer_whatever_the_clouds_clock_says() -> None:
    world = empty_world(RULES, replace(NO_FAULTS, skew_s=7200.0))
    submit(world, "job", 1, 4, 4)
    assert world.run_until(in_state(JobState.RUNNING), 120.0)
    nodes = [each for each in jobs_of(world)["job"].nodes.values() if each.instance_id]
    assert len(nodes) == 4
    for node in nodes:
        assert node.created_at <= node.launched_at <= world.clock.now()


# -- budgets are separate (P5) -----------------------------------------------------------------------------


def test_bootstraps_that_fail_in_a_row_end_the_job_with_the_reason_and_release_everything() -> None:
    world = empty_world(
        replace(RULES, bootstraps=replace(RULES.bootstraps, failures=4)), replace(NO_FAULTS, bootstrap=1.0)
    )
    submit(world, "job", 1, 2, 2)
    assert world.run_until(in_state(JobState.FAILED), 120.0)
    assert record(world).reason.startswith("4 nodes in a row could not be bootstrapped: step environment failed")
    assert world.run_until(settled, 60.0)


def test_preemptions_are_not_failures_however_many() -> None:
    world = empty_world(replace(RULES, bootstraps=replace(RULES.bootstraps, failures=2)))
    submit(world, "job", 1, 2, 2)
    preempt_again_and_again(world)
    assert record(world).bootstraps.failures == 0


def preempt_again_and_again(world: World) -> None:
    for _ in range(8):
        assert world.run_until(in_state(JobState.RUNNING), 60.0)
        world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
        assert world.run_until(lambda w: record(w).state is not JobState.RUNNING, 30.0)
    assert world.run_until(settled, 60.0)


def test_a_full_zone_is_remembered_and_costs_no_budget() -> None:
    world = empty_world()
    world.cloud.capacity = {"zone-a": 0, "zone-b": 0}
    submit(world, "job", 1, 2, 2)
    world.run(20.0)
    refused = len(events_of(world, "job", EventKind.LAUNCH_REFUSED))
    assert 0 < refused <= 8, "it must ask again only when the memory of the refusal has ended"
    assert "no capacity: zone-a is full" in sentence(world)
    world.cloud.capacity["zone-b"] = 4
    assert world.run_until(settled, 60.0)
    assert {node.offer.zone for node in jobs_of(world)["job"].nodes.values() if node.has_joined} == {"zone-b"}


def test_a_program_that_failed_too_often_fails_the_job_with_its_message() -> None:
    world = training_world()
    key = world.nodes.keys.result("job")
    world.etcd.put(key, encode(Result("failure", "the program failed 4 times, 3 allowed", 5)))
    assert world.run_until(in_state(JobState.FAILED), 10.0)
    assert record(world).reason == "the program failed 4 times, 3 allowed"
    assert world.run_until(settled, 60.0)


def test_a_request_that_cannot_work_ends_a_job_that_never_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world()
    monkeypatch.setattr(world.cloud, "launch", refuse)
    submit(world, "job", 1, 1, 1)
    assert world.run_until(in_state(JobState.FAILED), 30.0)
    assert record(world).reason == "local refuses the request: the key pair does not exist"


def test_a_request_that_cannot_work_leaves_a_running_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training_world()
    monkeypatch.setattr(world.cloud, "launch", refuse)
    service(world).commands.scale("job", Scale(desired=4))
    world.run(30.0)
    assert record(world).state is JobState.DEGRADED
    assert len(jobs_of(world)["job"].round.nodes()) == 3  # type: ignore[union-attr]
    assert len(events_of(world, "job", EventKind.LAUNCH_REFUSED)) == 1


def refuse(request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
    """A cloud that will never grant it."""
    return Fatal("the key pair does not exist")


def test_a_machine_that_listings_do_not_show_yet_is_not_lost() -> None:
    world = empty_world(rates=replace(NO_FAULTS, listing_lag_s=9.0))
    submit(world, "job", 2, 3, 4)
    assert world.run_until(in_state(JobState.RUNNING), 90.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == []
    assert len(world.cloud.machines) == 3


# -- money and place (P3, P8) ------------------------------------------------------------------------------


def test_never_more_money_per_hour_than_allowed_not_even_for_a_replacement() -> None:
    world = training_world(1, 2, 4, limits={"usd_per_hour": 0.2})
    world.cloud.preempt(machine_of(world, 0), 30.0)
    world.run(10.0)
    assert alive(world) == 2
    assert world.run_until(settled, 90.0)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"hours": 0.05}, "limits.hours 0.05 reached; "), ({"usd": 0.01}, "limits.usd 0.01 reached; ")],
)
def test_a_limit_pauses_a_steady_job_and_releases_everything(limits: dict[str, float], reason: str) -> None:
    world = training_world(limits=limits)
    assert world.run_until(in_state(JobState.PAUSED), 0.05 * 3600 + RULES.steady_s + 5.0)
    assert record(world).reason.startswith(reason)
    assert world.run_until(all_released, 60.0)
    assert world.nodes.trainings["job"].steps.lost == 0


def all_released(world: World) -> bool:
    nodes = jobs_of(world)["job"].nodes.values()
    billed = any(machine.billed for machine in world.cloud.machines.values())
    return not (alive(world) or billed or any(node.state in OPEN_NODE_STATES for node in nodes))


def test_a_job_stays_in_its_zone_unless_it_says_region() -> None:
    world = training_world(1, 2, 4)
    here = next(iter(jobs_of(world)["job"].nodes.values())).offer.zone
    world.cloud.capacity[here] = 2
    service(world).commands.scale("job", Scale(desired=3))
    world.run(30.0)
    assert {n.offer.zone for n in jobs_of(world)["job"].nodes.values() if n.state in COUNTED_NODE_STATES} == {here}
    wide = empty_world()
    wide.hooks.step.clear()  # the check of P8 is for jobs in one zone
    submit(wide, "job", 1, 2, 4, placement={"spread": "region"})
    assert wide.run_until(in_state(JobState.RUNNING), 60.0)
    wide.cloud.capacity["zone-a"] = 2
    service(wide).commands.scale("job", Scale(desired=3))
    assert wide.run_until(settled, 60.0)


# -- membership --------------------------------------------------------------------------------------------


def test_three_nodes_that_come_up_apart_form_one_round() -> None:
    world = training_world()
    assert len(events_of(world, "job", EventKind.ROUND)) == 1


def test_two_notices_at_once_are_two_replacements_and_one_pause() -> None:
    world = training_world()
    world.bootstrap_s = 10.0  # both are prepared by the time that one is ready, whatever their launches take
    world.cloud.preempt(machine_of(world, 0), 60.0)
    world.cloud.preempt(machine_of(world, 1), 60.0)
    world.run(2.0)
    assert world.run_until(settled, 120.0)
    assert len(events_of(world, "job", EventKind.REPLACEMENT_REQUESTED)) == 2
    assert len(events_of(world, "job", EventKind.ROUND)) == 2
    assert world.nodes.trainings["job"].steps.lost == 0


def test_the_newest_and_least_useful_nodes_go_first() -> None:
    world = training_world(1, 3, 4)
    order = jobs_of(world)["job"].round.nodes()  # type: ignore[union-attr]
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(settled, 60.0)
    assert jobs_of(world)["job"].round.nodes() == order[:2]  # type: ignore[union-attr]


def test_scaling_down_while_nodes_are_on_their_way_leaves_the_round_alone() -> None:
    world = training_world(1, 2, 4)
    service(world).commands.scale("job", Scale(desired=4))
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(settled, 120.0)
    assert len(events_of(world, "job", EventKind.ROUND)) == 1


def test_cancelling_while_machines_are_requested_leaks_none() -> None:
    world = empty_world(rates=replace(NO_FAULTS, lost_reply=1.0))
    submit(world, "job", 2, 3, 4)
    assert world.run_until(lambda w: bool(w.cloud.machines), 30.0)
    service(world).commands.cancel("job")
    assert world.run_until(settled, 200.0)
    assert record(world).state is JobState.CANCELLED
    orphans = [event for event in world.daemon.journal.events("") if event.kind is EventKind.ORPHAN]
    assert orphans == [], "the journal itself must find what it asked for; the sweep is for what it cannot know"


# -- the rest ----------------------------------------------------------------------------------------------


def test_a_machine_with_our_tag_that_appears_and_that_the_journal_lacks_is_terminated_after_the_grace() -> None:
    world = training_world()
    world.run(2 * CLOCKS_S)
    template = machine_of(world, 0)
    stranger = replace(template.instance, id="i-99", node="job-zzzzz-1", launched_at=world.clock.now())
    world.cloud.machines["i-99"] = replace(template, instance=stranger, history=[])
    world.run(RULES.orphan_grace_s / 2)
    assert world.cloud.machines["i-99"].alive
    assert world.run_until(lambda w: not w.cloud.machines["i-99"].alive, RULES.orphan_grace_s + 10.0)
    assert settled(world)


def test_a_stopped_machine_is_a_loss_and_a_leak() -> None:
    world = training_world()
    victim = machine_of(world, 0)
    victim.instance = replace(victim.instance, state=InstanceState.STOPPED)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_LOST)), 10.0)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[victim.instance.node].state is NodeState.TERMINATING, 10.0)


def test_history_is_bounded() -> None:
    world = empty_world(replace(RULES, gone_kept=3, events_kept=10))
    submit(world, "job", 1, 1, 1)
    preempt_again_and_again(world)
    gone = [node for node in jobs_of(world)["job"].nodes.values() if node.state is NodeState.GONE]
    assert len(gone) <= 4
    assert len(world.daemon.journal.events("job")) <= 12
    assert record(world).billing.dropped_usd > 0


def test_alerts_are_sent_once_each_and_the_outbox_is_emptied() -> None:
    world = training_world()
    world.cloud.preempt(machine_of(world, 1), 60.0)
    world.run(2.0)
    assert world.run_until(settled, 120.0)
    world.run(10.0)
    assert len(world.sent) == 3
    assert len(world.sent) == len({event.id for event in world.sent})
    assert world.daemon.journal.read().alerts == ()


def test_an_ended_job_cannot_be_scaled_and_its_name_is_free_again() -> None:
    world = training_world()
    world.nodes.trainings["job"].target_steps = 1
    assert world.run_until(lambda w: record(w).state is JobState.SUCCEEDED and settled(w), 60.0)
    with pytest.raises(CommandRefusedError, match="has ended"):
        service(world).commands.scale("job", Scale(desired=2))
    submit(world, "job", 1, 1, 1)
    with pytest.raises(CommandRefusedError, match="cannot scale job"):
        service(world).commands.scale("job", Scale(desired=9))
