"""How records follow what clouds list and what nodes publish: one moment at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from spotsup_trainer.wire import Ended, Notice

from provisioners.base import Denied, EndCause, Fatal, InstanceState, NoCapacity, Quota, Refusal, Scope
from supervisor.events import EventKind
from supervisor.model import NodeState, NoticeRecord, Transition
from supervisor.planner.actions import AskDone, BootstrapDone, FindDone, Launch, LaunchDone, NodeOutcome, TerminateDone
from supervisor.planner.world import Rules
from tests.unit.scene import (
    MISSED,
    NOW,
    OFFER,
    Decided,
    J,
    N,
    hint_of,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    node,
    round_of,
    scene,
)

REQUESTED = node(3, N.REQUESTED)
RULES = Rules(leftovers_s=1e9)


# -- the end of a machine ----------------------------------------------------------------------------------

ENDING = node(3, N.TERMINATING, retry_at=NOW - 1, state_since=NOW - 3)


def test_an_accepted_termination_is_repeated_later_and_a_refused_one_sooner() -> None:
    done = scene(member(1), member(2), ENDING, outcomes=[TerminateDone(name(3), "i-3")])
    assert (done.node(3).retry_at, done.node(3).error) == (NOW + RULES.terminate_retry_s, "")
    assert done.actions == []
    failed = scene(member(1), member(2), ENDING, outcomes=[TerminateDone(name(3), "i-3", error="denied")])
    assert (failed.node(3).retry_at, failed.node(3).error) == (NOW + 2.0, "denied")


def test_a_console_that_was_read_is_reported() -> None:
    after = scene(member(1), member(2), ENDING, outcomes=[TerminateDone(name(3), "i-3", console="kernel panic")])
    (event,) = after.events
    assert (event.kind, event.node) == (EventKind.CONSOLE_TAIL, name(3))
    assert event.text.endswith(":\nkernel panic")


def test_a_log_that_was_read_is_reported_and_its_last_line_is_the_reason() -> None:
    ending = replace(ENDING, error="it did not come up")
    after = scene(member(1), member(2), ending, outcomes=[TerminateDone(name(3), "i-3", log="first\n last line \n\n")])
    (event,) = after.events
    assert (event.kind, event.node) == (EventKind.LOG_TAIL, name(3))
    assert event.text.endswith(":\nfirst\n last line")
    assert after.node(3).error == "it did not come up; the last line of its log is: last line"
    assert scene(member(1), member(2), ending, outcomes=[TerminateDone(name(3), "i-3", log=" \n")]).events == []


def test_console_and_log_are_reported_also_where_the_cloud_refuses_to_terminate_for_now() -> None:
    ending = replace(ENDING, error="it did not come up")
    done = TerminateDone(name(3), "i-3", error="denied", console="kernel panic", log="no space")
    after = scene(member(1), member(2), ending, outcomes=[done])
    assert [event.kind for event in after.events] == [EventKind.CONSOLE_TAIL, EventKind.LOG_TAIL]
    assert (after.node(3).retry_at, after.node(3).error) == (NOW + 2.0, "denied")


@pytest.mark.parametrize("state", [N.LOST, N.FAILED])
def test_a_node_that_was_given_up_is_terminated_whatever_is_reported_of_it(state: NodeState) -> None:
    listed = listing(machine(1), machine(2), machine(3, InstanceState.STOPPED, preempt_at=NOW + 9))
    after = scene(member(1), member(2), node(3, state), listed=listed)
    assert (after.state(3), after.plan.undecided, after.events) == (N.TERMINATING, {}, [])


def test_a_node_that_was_lost_just_now_gets_no_notice() -> None:
    listed = listing(machine(1), machine(2, InstanceState.STOPPED, preempt_at=NOW + 9))
    assert EventKind.NOTICE not in scene(member(1), member(2), listed=listed).event_kinds


def test_a_node_that_is_gone_stays_gone_whatever_is_listed() -> None:
    listed = listing(machine(1), machine(2), machine(3, InstanceState.TERMINATED))
    after = scene(member(1), member(2), node(3, N.GONE), listed=listed)
    assert (after.plan.commits, after.plan.undecided) == ((), {})


def test_a_request_without_a_machine_is_not_lost_for_not_being_listed() -> None:
    listed = listing(machine(1), machine(2), missed_at={name(3): MISSED})
    asked = replace(REQUESTED, retry_at=NOW + 60)
    after = scene(member(1), member(2), asked, record=job(3), listed=listed)
    assert (after.state(3), after.plan.undecided) == (N.REQUESTED, {})


def test_a_draining_node_whose_launcher_leaves_is_not_lost() -> None:
    ended = {name(3): Ended(name(3), "left", 0, "", NOW)}
    after = scene(member(1), member(2), node(3, N.DRAINING), exits=ended)
    assert EventKind.NODE_LOST not in after.event_kinds


def test_late_outcomes_change_nothing() -> None:
    late: list[NodeOutcome] = [
        LaunchDone(name(1), OFFER, NoCapacity(Scope.ZONE, 60.0, "full")),
        FindDone(name(1), None, "away"),
        BootstrapDone(name(1), error="failed"),
        TerminateDone(name(1), "i-1", error="denied"),
        TerminateDone(name(1), "i-1"),
    ]
    after = scene(member(1), member(2), outcomes=late)
    assert (after.plan.commits, after.plan.undecided) == ((), {})


@pytest.mark.parametrize(
    ("machines", "changes", "gone"),
    [
        ([machine(3, InstanceState.TERMINATED)], {}, True),
        ([machine(3)], {}, False),
        ([machine(3, InstanceState.STOPPED)], {}, False),
        ([], {"missed_at": {name(3): MISSED}}, True),
        ([], {"missed_at": {name(3): MISSED[1:]}}, False),
        ([machine(3)], {"missed_at": {name(3): MISSED}}, False),  # what is listed exists, whatever was counted
        ([machine(3, InstanceState.TERMINATED)], {"listed_at": ENDING.state_since}, False),
        ([machine(3, InstanceState.TERMINATED)], {"listed_at": ENDING.state_since + 0.1}, True),
    ],
)
def test_a_node_is_gone_by_a_listing_that_is_newer_than_the_terminate_call(
    machines: Any, changes: Any, gone: bool
) -> None:
    listed = listing(machine(1), machine(2), *machines, **changes)
    after = scene(member(1), member(2), replace(ENDING, retry_at=NOW + 9), listed=listed)
    assert (after.state(3) is N.GONE) is gone
    assert after.node(3).ended_at == (NOW if gone else 0.0)


@pytest.mark.parametrize(("age_s", "gone"), [(299.0, False), (300.0, True)])
def test_a_young_machine_that_no_listing_shows_is_not_gone(age_s: float, gone: bool) -> None:
    listed = listing(machine(1), machine(2), missed_at={name(3): MISSED})
    ending = replace(ENDING, launched_at=MISSED[0] - age_s, retry_at=NOW + 9)
    assert (scene(member(1), member(2), ending, listed=listed).state(3) is N.GONE) is gone


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ((), "released"),
        ((N.LOST, N.READY, N.MEMBER, N.TERMINATING), "released"),
        ((N.READY, N.MEMBER, N.LOST, N.TERMINATING), "its cloud confirmed the end"),
        ((N.BOOTSTRAPPING, N.FAILED, N.TERMINATING), "its cloud confirmed the end"),
    ],
)
def test_the_end_of_a_node_that_was_given_up_is_confirmed_and_another_is_released(
    states: tuple[NodeState, ...], reason: str
) -> None:
    history = tuple(Transition(NOW - 99, before, after, "") for before, after in pairwise(states))
    listed = listing(machine(1), machine(2), machine(3, InstanceState.TERMINATED))
    after = scene(member(1), member(2), replace(ENDING, history=history), listed=listed)
    assert (after.state(3), after.node(3).history[-1].reason) == (N.GONE, reason)


def test_a_node_without_a_machine_is_gone_at_the_next_listing() -> None:
    ending = replace(ENDING, instance_id="", launched_at=NOW, retry_at=NOW + 9)
    assert scene(member(1), member(2), ending).state(3) is N.GONE


# -- from the cloud's listing ------------------------------------------------------------------------------

BORN = node(3, N.PENDING)


def listed(which: Any, record: Any = None, *more: Any, **changes: Any) -> Decided:
    listed = listing(machine(1), machine(2), *more)
    return scene(member(1), member(2), which, record=record or job(3), listed=listed, **changes)


def test_a_running_machine_with_an_address_is_bootstrapped() -> None:
    ready = machine(3, ssh_port=2222, private_address="10.1.1.1", metadata_url="http://meta")
    after = listed(BORN, None, ready).node(3)
    assert after.state is N.BOOTSTRAPPING
    assert (after.ssh_host, after.ssh_port) == ("10.0.0.1", 2222)
    assert (after.private_address, after.metadata_url) == ("10.1.1.1", "http://meta")
    assert listed(BORN, None, machine(3, ssh_host="")).state(3) is N.PENDING
    assert listed(BORN, None, machine(3, InstanceState.PENDING)).state(3) is N.PENDING


@pytest.mark.parametrize(("age_s", "state"), [(300.0, N.PENDING), (300.1, N.TERMINATING)])
def test_a_machine_that_does_not_start_to_run_fails(age_s: float, state: NodeState) -> None:
    after = listed(replace(BORN, state_since=NOW - age_s), None, machine(3, InstanceState.PENDING))
    assert after.state(3) is state
    if state is N.TERMINATING:
        assert after.node(3).error == "i-3 did not run within 300 s"


def test_a_machine_that_a_listing_shows_before_its_answer_is_the_nodes() -> None:
    after = listed(REQUESTED, None, machine(3, InstanceState.PENDING))
    assert (after.state(3), after.node(3).instance_id) == (N.PENDING, "i-3")
    assert after.does(Launch) == []


@pytest.mark.parametrize("state", [InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED])
@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (EndCause.PREEMPTED, "i-2 was preempted"),
        (EndCause.USER, "i-2 was terminated outside spotsup"),
        (EndCause.FAILED, "its cloud lists i-2 as {}"),
        (None, "its cloud lists i-2 as {}"),
    ],
)
def test_a_machine_that_ended_is_a_loss_with_its_clouds_reason(
    state: InstanceState, cause: EndCause | None, reason: str
) -> None:
    after = scene(member(1), member(2), listed=listing(machine(1), machine(2, state, end_cause=cause)))
    assert (after.state(2), after.node(2).needs_replacement) == (N.TERMINATING, True)
    assert after.job.state is J.DEGRADED, "the job goes on"
    (event,) = [each for each in after.events if each.kind is EventKind.NODE_LOST]
    assert (event.node, event.text) == (name(2), f"lost {name(2)}: {reason.format(state)}")
    assert after.node(2).history[0].reason == reason.format(state)


@pytest.mark.parametrize(
    ("missed_at", "age_s", "silent", "lost"),
    [
        (MISSED, 300.0, True, True),
        (MISSED[1:], 300.0, True, False),
        (MISSED, 299.9, True, False),  # so old when it was missed first
        (MISSED, 300.0, False, False),
    ],
)
def test_a_machine_that_is_not_listed_is_lost_when_missed_twice_although_old_enough_and_silent(
    missed_at: tuple[float, ...], age_s: float, silent: bool, lost: bool
) -> None:
    missing = member(2, launched_at=MISSED[0] - age_s)
    agents: Any = {"agents": {}, "members": {name(1): launcher(1, "running")}} if silent else {}
    after = scene(member(1), missing, listed=listing(machine(1), missed_at={name(2): missed_at}), **agents)
    assert (EventKind.NODE_LOST in after.event_kinds) is lost
    if lost:
        assert "i-2 is not listed any more" in after.events[0].text


@pytest.mark.parametrize("sign", ["agents", "members"])
def test_one_sign_of_life_is_enough(sign: str) -> None:
    silent: Any = {"members" if sign == "agents" else "agents": {}}
    after = scene(member(1), member(2), **silent)
    assert (after.state(1), after.state(2)) == (N.MEMBER, N.MEMBER)


# -- from the node's messages ------------------------------------------------------------------------------


def test_a_notice_comes_from_the_agent_or_from_the_clouds_api() -> None:
    word_of_it = {name(2): Notice(name(2), NOW + 30, NOW - 1, "metadata")}
    by_agent = scene(member(1), member(2), notices=word_of_it)
    assert by_agent.node(2).notice == NoticeRecord(NOW + 30, NOW - 1, "metadata")
    assert by_agent.node(2).needs_replacement
    event = by_agent.events[0]
    assert (event.kind, event.node, event.data) == (
        EventKind.NOTICE,
        name(2),
        {"deadline": NOW + 30, "seen_at": NOW - 1},
    )
    assert event.text == f"{name(2)} will be preempted in 30 s (metadata)"
    listed = listing(machine(1), machine(2, preempt_at=NOW + 90))
    by_cloud = scene(member(1), member(2), listed=listed)
    assert by_cloud.node(2).notice == NoticeRecord(NOW + 90, NOW, "local API", confirmed=True)
    again = scene(member(1), by_cloud.node(2), listed=listed, notices=word_of_it)
    assert EventKind.NOTICE not in again.event_kinds
    assert again.node(2).notice == by_cloud.node(2).notice


def test_a_silent_node_is_suspected_first() -> None:
    for silent in (member(2), node(2, N.READY)):
        after = scene(member(1), silent, agents={}, members={name(1): launcher(1, "running")})
        assert after.state(2) is N.SUSPECT
        (event,) = [each for each in after.events if each.kind is EventKind.NODE_SUSPECT]
        assert (event.node, event.text) == (name(2), f"{name(2)} is silent, and its cloud has not said that it ended")


def test_a_spare_is_called_one() -> None:
    messages: Any = {"hint": hint_of(1, spares=[2]), "agents": {}, "members": {name(1): launcher(1, "running")}}
    after = scene(member(1), node(2, N.READY), record=job(1, spare_nodes=1), **messages)
    assert after.events[0].text.startswith(f"the spare {name(2)} is silent")


@pytest.mark.parametrize(
    ("since", "timers_paused_until", "lost"),
    [(20.0, 0.0, True), (19.9, 0.0, False), (60.0, NOW - 19.9, False), (60.0, NOW - 20.0, True)],
)
def test_a_suspect_is_lost_once_it_was_silent_while_timers_ran(
    since: float, timers_paused_until: float, lost: bool
) -> None:
    suspect = node(2, N.SUSPECT, state_since=NOW - since, has_joined=True)
    after = scene(member(1), suspect, timers_paused_until=timers_paused_until)
    assert (EventKind.NODE_LOST in after.event_kinds) is lost
    assert (after.state(2) is N.SUSPECT) is not lost


def test_a_suspect_that_is_heard_again_is_ready_or_a_member() -> None:
    heard = {name(n): launcher(n) for n in (1, 2)}
    inside = scene(member(1), node(2, N.SUSPECT), members=heard, round=round_of(1, 2))
    outside = scene(member(1), node(2, N.SUSPECT), members=heard, round=round_of(1))
    nowhere = scene(node(2, N.SUSPECT), members=heard)
    assert (inside.state(2), outside.state(2), nowhere.state(2)) == (N.MEMBER, N.READY, N.READY)


@pytest.mark.parametrize("state", [N.READY, N.MEMBER, N.SUSPECT])
@pytest.mark.parametrize(
    ("outcome", "noticed", "lost"),
    [("failure", False, True), ("left", False, True), ("left", True, False), ("success", False, False)],
)
def test_an_exit_message_ends_a_node_unless_it_was_to_leave(
    state: NodeState, outcome: Any, noticed: bool, lost: bool
) -> None:
    notice = NoticeRecord(NOW + 50, NOW - 5, "x") if noticed else None
    ended = {name(2): Ended(name(2), outcome, 1, "out of memory", NOW)}
    after = scene(member(1), node(2, state, notice=notice, state_since=NOW - 5), exits=ended)
    assert (EventKind.NODE_LOST in after.event_kinds) is lost
    if outcome == "failure":
        assert after.events[0].text.endswith("its launcher ended with status 1: out of memory")


# -- the round ---------------------------------------------------------------------------------------------


def test_a_node_joins_and_leaves_as_the_round_does() -> None:
    joins = scene(member(1), node(2, N.READY), round=round_of(1, 2))
    assert (joins.state(2), joins.node(2).has_joined) == (N.MEMBER, True)
    assert EventKind.REPLACEMENT_JOINED not in joins.event_kinds
    leaves = scene(member(1), member(2), round=round_of(1))
    assert leaves.state(2) is N.READY
    stays = scene(member(1), member(2))
    assert stays.plan.commits == ()


def test_a_replacement_that_joins_is_reported_once_with_the_node_it_took_over_from() -> None:
    lost = node(2, N.GONE, has_joined=True, needs_replacement=True)
    newcomer = node(3, N.READY, replaces=name(2))
    after = scene(member(1), lost, newcomer, round=round_of(1, 3, number=2))
    assert (after.node(3).took_over_from, after.state(3)) == (name(2), N.MEMBER)
    (event,) = [each for each in after.events if each.kind is EventKind.REPLACEMENT_JOINED]
    assert (event.node, event.data) == (name(3), {"replaces": name(2)})
    assert event.text == f"{name(3)} joined round 2 in place of {name(2)}"
    back = scene(member(1), lost, replace(after.node(3), state=N.READY), round=round_of(1, 3, number=3))
    assert EventKind.REPLACEMENT_JOINED not in back.event_kinds
    assert back.node(3).took_over_from == name(2)


LOST = node(1, N.GONE, has_joined=True, needs_replacement=True)
LOST_LATER = node(2, N.GONE, has_joined=True, needs_replacement=True)


@pytest.mark.parametrize(
    ("others", "replaces", "took_over_from"),
    [
        ([LOST_LATER, LOST], 0, name(1)),  # the first that was lost
        ([LOST, LOST_LATER], 2, name(2)),  # whom it was asked for
        ([LOST, LOST_LATER, member(5, took_over_from=name(1))], 0, name(2)),  # the other's place is filled
        ([LOST, member(5, took_over_from=name(1))], 1, ""),
        ([replace(LOST, has_joined=False)], 0, ""),
        ([replace(LOST, needs_replacement=False)], 0, ""),
        ([node(1, N.SUSPECT, has_joined=True, state_since=NOW)], 0, name(1)),
        ([LOST, node(10, N.GONE, has_joined=True, needs_replacement=True, created_at=NOW - 3000)], 0, name(10)),
        ([replace(LOST, created_at=LOST_LATER.created_at), LOST_LATER], 0, name(1)),
        ([LOST_LATER, replace(LOST, created_at=LOST_LATER.created_at)], 0, name(1)),
    ],
)
def test_whose_place_a_newcomer_takes(others: Any, replaces: int, took_over_from: str) -> None:
    newcomer = node(7, N.READY, replaces=name(replaces) if replaces else "")
    inside = [7, *(5 for each in others if each.id == name(5))]
    after = scene(*others, newcomer, round=round_of(*inside, number=2))
    assert after.node(7).took_over_from == took_over_from


# -- late refusals -----------------------------------------------------------------------------------------


def late(after: Decided) -> bool:
    """Whether the pool of node 3 is not asked again at once."""
    return after.volatile.capacity.refusal(OFFER, NOW, spare=False) is not None


@pytest.mark.parametrize("state", [N.PENDING, N.BOOTING, N.BOOTSTRAPPING])
@pytest.mark.parametrize("cause", [EndCause.PREEMPTED, EndCause.FAILED, EndCause.USER])
def test_a_machine_that_its_cloud_ends_before_it_was_bootstrapped_is_a_refusal(
    state: NodeState, cause: EndCause
) -> None:
    ended = listing(machine(1), machine(2), machine(3, InstanceState.TERMINATED, end_cause=cause))
    after = scene(member(1), member(2), node(3, state), record=job(3), listed=ended)
    assert (late(after), len(after.new)) == ((False, 1) if cause is EndCause.USER else (True, 0))
    assert late(after) is ("ended before it was ready, 1 times in a row" in after.sentence)


def test_so_is_one_that_vanishes_never_runs_or_gets_a_notice() -> None:
    unlisted = listing(machine(1), machine(2), missed_at={name(3): MISSED})
    assert late(scene(member(1), member(2), node(3, N.PENDING), record=job(3), listed=unlisted))
    slow = node(3, N.PENDING, state_since=NOW - 301)
    pending = listing(machine(1), machine(2), machine(3, InstanceState.PENDING))
    after = scene(member(1), member(2), slow, record=job(3), listed=pending)
    assert (late(after), after.job.bootstraps.failures) == (True, 0), "that is not the job's fault"
    noticed = listing(machine(1), machine(2), machine(3, preempt_at=NOW + 60))
    assert late(scene(member(1), member(2), node(3, N.BOOTSTRAPPING), record=job(3), listed=noticed))
    word = {name(3): Notice(name(3), NOW + 60, NOW, "aws")}
    forged = scene(member(1), member(2), node(3, N.BOOTSTRAPPING), record=job(3), notices=word)
    assert forged.node(3).doomed
    assert not late(forged), "a node's word says nothing of its pool to other jobs"


def test_a_machine_that_was_bootstrapped_is_no_refusal() -> None:
    ended = listing(machine(1), machine(2), machine(3, InstanceState.TERMINATED, end_cause=EndCause.PREEMPTED))
    for known in (node(3, N.BOOTSTRAPPING, bootstrapped=True), node(3, N.READY), member(3)):
        assert scene(member(1), member(2), known, record=job(3), listed=ended).volatile.capacity.late == {}


@pytest.mark.parametrize(
    ("fault", "is_late"),
    [({"unhealthy": True}, True), ({"unreachable": True}, True), ({"foreign": True}, False), ({}, False)],
)
def test_so_is_one_whose_bootstrap_failed_by_its_own_fault(fault: dict[str, Any], is_late: bool) -> None:
    old = node(3, N.BOOTSTRAPPING, state_since=NOW - 901)
    done = BootstrapDone(name(3), "it failed", **fault)
    assert late(scene(member(1), member(2), old, record=job(3), outcomes=[done])) is is_late


# -- what a cloud accepted, and could not provide ----------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "scope", "other_job"),
    [
        (NoCapacity(Scope.ZONE, 180.0, "zone-a is out of everything"), Scope.ZONE, True),
        (Quota(Scope.REGION, 600.0, "the region's quota is used"), Scope.REGION, True),
        (Denied(Scope.ZONE, 600.0, "the disk may not be encrypted"), Scope.ZONE, True),
        (Fatal("the key may not be used"), Scope.TYPE_IN_ZONE, False),
    ],
)
def test_a_late_refusal_is_remembered_as_if_the_launch_had_met_it(
    refused: Refusal, scope: Scope, other_job: bool
) -> None:
    ended = machine(3, InstanceState.TERMINATED, end_cause=EndCause.FAILED, end_message="so it is", refused=refused)
    listed = listing(machine(1), machine(2), ended)
    after = scene(member(1), member(2), node(3, N.PENDING), record=job(3), listed=listed)
    assert "its cloud lists i-3 as terminated: so it is" in [step.reason for step in after.node(3).history]
    (memory,) = after.volatile.capacity.refusals
    assert (memory.scope, memory.message) == (scope, refused.message)
    assert (memory.job == "") is other_job


@pytest.mark.parametrize(("gpus", "limit_s"), [(1, 300.0), (8, 900.0)])
def test_whole_hosts_may_be_pending_three_times_as_long(gpus: int, limit_s: float) -> None:
    offer = replace(OFFER, gpus=gpus)
    for late_s, state in ((-1.0, N.PENDING), (1.0, N.TERMINATING)):
        pending = node(3, N.PENDING, offer=offer, state_since=NOW - limit_s - late_s)
        listed = listing(machine(1), machine(2), machine(3, InstanceState.PENDING, ssh_host=""))
        assert scene(member(1), member(2), pending, record=job(3), listed=listed).state(3) is state


# -- nodes that are to leave, by their own word ---------------------------------------------------------------

FAR = 9e10
ADVANCES = {"answers": {name(3): AskDone(name(3), NOW - 0.5, agent_runs=True, written_s_ago=0.0)}}


@pytest.mark.parametrize(
    ("deadline", "longest", "believed"),
    [
        (FAR, {"local": 120.0}, NOW + 180),  # clocks may differ by a minute
        (FAR, {"aws": 120.0}, NOW + 960),  # nothing is known of this cloud
        (NOW + 179, {"local": 120.0}, NOW + 179),
        (-FAR, {"local": 120.0}, -FAR),
    ],
)
def test_no_notice_is_believed_to_be_longer_than_its_cloud_gives(
    deadline: float, longest: dict[str, float], believed: float
) -> None:
    rules = replace(RULES, max_notice_s=longest)
    said = scene(member(1), member(2), notices={name(2): Notice(name(2), deadline, NOW - 1, "aws")}, rules=rules)
    listed = scene(
        member(1), member(2), listed=listing(machine(1), machine(2, preempt_at=deadline)), notices={}, rules=rules
    )
    for after in (said, listed):
        found = after.node(2).notice
        assert found is not None
        assert found.deadline == believed


@pytest.mark.parametrize("state", [N.SUSPECT, N.DRAINING])
@pytest.mark.parametrize(
    ("late_s", "jump_s", "ended"), [(60.0, 100.0, True), (59.9, 100.0, False), (60.0, 59.9, False)]
)
def test_a_node_whose_deadline_has_passed_is_given_back_also_if_it_is_silent_or_says_that_it_trains(
    state: NodeState, late_s: float, jump_s: float, ended: bool
) -> None:
    notice = NoticeRecord(NOW - late_s, NOW - 150, "aws")
    doomed = node(3, state, state_since=NOW - 9, notice=notice, has_joined=True)
    others = [node(4, N.SUSPECT, state_since=NOW - 9, has_joined=True)] if state is N.SUSPECT else []
    after = scene(
        member(1),
        member(2),
        doomed,
        *others,
        record=job(3),
        round=round_of(1, 2, 3, 4),
        volatile=ADVANCES,
        timers_paused_until=NOW - jump_s,
    )
    assert after.state(3) is (N.TERMINATING if ended else state)
    assert not others or after.state(4) is N.SUSPECT, "it is held with the other"


@pytest.mark.parametrize(
    "why", [{"unhealthy_at": NOW - 500}, {"left_behind": "the job moves to zone-b"}, {"drain_requested": True}]
)
def test_a_silent_node_that_is_to_leave_has_as_long_as_one_that_leaves_in_order_whatever_it_answers(why: Any) -> None:
    limit_s = RULES.silence.suspect_s if "drain_requested" in why else RULES.drain_timeout_s
    for early_s, state in ((0.1, N.SUSPECT), (0.0, N.TERMINATING)):
        silent = node(3, N.SUSPECT, state_since=NOW - limit_s + early_s, has_joined=True, **why)
        after = scene(member(1), member(2), silent, round=round_of(1, 2, 3), volatile=ADVANCES)
        assert after.state(3) is state
