"""Who trains next, who waits outside, and who gets a tombstone: one moment at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Hint, Notice, Result, Tombstone, decode

from supervisor.events import EventKind
from supervisor.model import JobRecord, NodeRecord, NodeState, NoticeRecord, Transition
from tests.unit.scene import (
    KEYS,
    NOW,
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
    names,
    node,
    round_of,
    scene,
    spec,
)

SOON = NoticeRecord(NOW + 12.0, NOW - 5, "metadata")  # within the margin: its time has come
LOST = node(2, N.LOST, has_joined=True, needs_replacement=True)
LATER = NoticeRecord(NOW + 12.1, NOW - 5, "metadata")


def doomed(number: int, notice: NoticeRecord | None = LATER, **changes: Any) -> NodeRecord:
    """A member that will be preempted."""
    return member(number, notice=notice, needs_replacement=True, **changes)


def waiting(number: int, **changes: Any) -> NodeRecord:
    """A node that waits at the rendezvous."""
    return node(number, N.READY, **changes)


def coming(number: int, state: NodeState = N.BOOTSTRAPPING, **changes: Any) -> NodeRecord:
    """One that will be ready soon."""
    return node(number, state, retry_at=NOW + 60, **changes)


def expected(after: Decided) -> tuple[str, ...] | None:
    """Whom the new hint names; None where there is no new one."""
    return None if after.hint is None else after.hint.members


# -- the first round ---------------------------------------------------------------------------------------


def test_the_first_hint_is_empty_so_that_no_launcher_forms_a_round_alone() -> None:
    after = scene(record=job(2, J.QUEUED, min_nodes=2), hint=None)
    assert after.hint == Hint((), 2, 4, "waiting for nodes", app_failures=3)
    there = scene(waiting(1), waiting(2), record=job(2, J.STARTING), hint=None)
    assert expected(there) == ()


EMPTY = hint_of()


@pytest.mark.parametrize(
    ("nodes", "minimum", "named"),
    [
        ([waiting(1), waiting(2), waiting(3)], 1, names(1, 2, 3)),
        ([waiting(1), waiting(2)], 3, None),  # not enough
        ([waiting(1), waiting(2)], 2, names(1, 2)),  # none is on the way
        ([waiting(1), waiting(2), coming(3)], 2, None),  # worth waiting for
        ([waiting(1), waiting(2), coming(3, N.REQUESTED)], 2, None),  # before the first round, a request is, too
        ([waiting(1), waiting(2), coming(3, N.PENDING)], 2, None),
        ([waiting(1), waiting(2), coming(3, notice=LATER)], 2, names(1, 2)),  # it will not stay
    ],
)
def test_the_first_round_waits_for_all_that_may_come_soon(nodes: Any, minimum: int, named: Any) -> None:
    record = job(3, J.STARTING, min_nodes=minimum)
    listed = listing(*(machine(int(each.id[6:]), ssh_host="") for each in nodes if each.instance_id))
    after = scene(*nodes, record=record, hint=replace(EMPTY, min_nodes=minimum), listed=listed, volatile={"offers": {}})
    assert expected(after) == named
    if named is None and len(nodes) == 3:
        assert after.job.rounds.gathering_since == NOW


@pytest.mark.parametrize(("gathered_s", "named"), [(19.9, None), (20.0, names(1, 2))])
def test_no_node_is_waited_for_longer_than_gather_s(gathered_s: float, named: Any) -> None:
    record = job(3, J.STARTING, rounds={"gathering_since": NOW - gathered_s})
    after = scene(waiting(1), waiting(2), coming(3), record=record, hint=EMPTY)
    assert expected(after) == named
    assert after.job.rounds.gathering_since == (NOW - gathered_s if named is None else 0.0)


def test_a_node_whose_launcher_does_not_wait_is_not_chosen_before_those_that_do() -> None:
    members = {name(2): launcher(2), name(3): launcher(3)}
    after = scene(waiting(1), waiting(2), waiting(3), record=job(2, J.STARTING), hint=EMPTY, members=members)
    assert expected(after) == names(2, 3)
    short = scene(waiting(1), waiting(2), record=job(2, J.STARTING), hint=EMPTY, members={name(2): launcher(2)})
    assert expected(short) == names(2, 1), "better than none"


# -- the next rounds ---------------------------------------------------------------------------------------


def test_a_settled_round_gets_no_new_hint() -> None:
    assert scene(member(1), member(2)).plan.commits == ()


def test_members_keep_their_ranks_and_newcomers_come_after_them() -> None:
    after = scene(member(2), member(1), waiting(3), record=job(3), round=round_of(2, 1), hint=hint_of(2, 1))
    assert expected(after) == names(2, 1, 3)
    assert after.hint is not None
    assert after.hint.reason == f"{name(3)} joins"
    assert (after.hint.min_nodes, after.hint.max_nodes) == (1, 4)


def test_the_reason_of_a_hint_says_who_joins_and_who_leaves() -> None:
    after = scene(member(1), LOST, waiting(3), round=round_of(1, 2), hint=hint_of(1, 2))
    assert after.hint is not None
    assert (after.hint.members, after.hint.reason) == (names(1, 3), f"{name(3)} joins and {name(2)} leaves")


@pytest.mark.parametrize(("low", "high", "changed"), [(1, 4, False), (2, 4, True), (1, 5, True)])
def test_changed_node_limits_are_published(low: int, high: int, changed: bool) -> None:
    after = scene(member(1), member(2), record=job(2, min_nodes=low, max_nodes=high))
    assert (after.hint == hint_of(1, 2, low=low, high=high, reason="limits changed")) is changed
    assert bool(after.plan.commits) is changed


def test_a_changed_number_of_allowed_failures_is_published_without_a_new_round() -> None:
    after = scene(member(1), member(2), record=job(2, spec=spec(limits={"app_failures": 7})))
    assert after.hint == hint_of(1, 2, reason="limits changed", app_failures=7)


def test_a_job_that_is_resumed_trains_on_with_the_same_nodes() -> None:
    after = scene(member(1), member(2), hint=hint_of(1, 2, hold=True))
    assert after.hint == hint_of(1, 2, reason="a user resumed it")


@pytest.mark.parametrize(
    ("newcomers", "named"),
    [
        ([waiting(3), coming(4)], None),  # one pause instead of two
        ([waiting(3), coming(4, N.REQUESTED)], names(1, 2, 3)),  # a cloud may never grant it
        ([waiting(3), coming(4, N.PENDING)], names(1, 2, 3)),
        ([waiting(3), coming(4, N.BOOTING)], None),
        ([waiting(3), waiting(4)], names(1, 2, 3, 4)),
        ([waiting(3), waiting(4), coming(5)], names(1, 2, 3, 4)),  # no better node will come
        ([coming(3)], None),
    ],
)
def test_a_running_round_waits_only_for_nodes_that_are_nearly_ready(newcomers: list[NodeRecord], named: Any) -> None:
    numbers = [int(each.id[6:]) for each in newcomers if each.instance_id]
    listed = listing(machine(1), machine(2), *(machine(n, ssh_host="") for n in numbers))
    after = scene(member(1), member(2), *newcomers, record=job(4), listed=listed, volatile={"offers": {}})
    assert expected(after) == named


def test_a_silent_member_that_the_others_may_still_hear_does_not_end_the_gathering() -> None:
    silent = node(2, N.SUSPECT, has_joined=True, state_since=NOW - 1)
    known: Any = {"record": job(4), "round": round_of(1, 2), "hint": hint_of(1, 2)}
    after = scene(member(1), silent, waiting(3), coming(4), **known)
    assert (expected(after), after.job.rounds.gathering_since) == (None, NOW)


def test_a_member_that_has_left_the_round_ends_the_gathering() -> None:
    for gone in (node(2, N.LOST, has_joined=True), node(2, N.SUSPECT, drain_requested=True), node(2, N.DRAINING)):
        after = scene(member(1), gone, waiting(3), coming(4), record=job(3), round=round_of(1, 2), hint=hint_of(1, 2))
        assert expected(after) == names(1, 3), gone.state
    forgotten = scene(member(1), waiting(3), coming(4), record=job(3), round=round_of(1, 2), hint=hint_of(1, 2))
    assert expected(forgotten) == names(1, 3)


# -- make before break -------------------------------------------------------------------------------------


def test_a_doomed_member_trains_on_until_another_node_can_take_its_place() -> None:
    alone = scene(member(1), doomed(2))
    assert (alone.hint, alone.state(2)) == (None, N.MEMBER)
    replaced = scene(member(1), doomed(2), waiting(3, replaces=name(2)))
    assert expected(replaced) == names(1, 3)
    assert replaced.state(2) is N.MEMBER, "the hint that frees it is not out yet"
    freed = scene(member(1), doomed(2), waiting(3), hint=hint_of(1, 3))
    assert freed.state(2) is N.DRAINING
    assert freed.node(2).history[-1].reason == "its provider takes it"


def test_a_doomed_member_leaves_when_its_time_has_come_with_or_without_a_replacement() -> None:
    after = scene(member(1), doomed(2, SOON), coming(3))
    assert expected(after) == names(1)
    assert scene(member(1), doomed(2, LATER), coming(3)).hint is None
    drained = scene(member(1), doomed(2, None, drain_requested=True), coming(3))
    assert drained.hint is None, "a user gives it all the time it needs"


def test_a_doomed_node_that_never_joined_goes_at_once() -> None:
    for number, state in enumerate((N.BOOTING, N.BOOTSTRAPPING, N.PENDING, N.READY), 3):
        which = node(number, state, notice=LATER, needs_replacement=True, retry_at=NOW + 60)
        after = scene(member(1), member(2), which, listed=listing(machine(1), machine(2), machine(number, ssh_host="")))
        assert after.state(number) in {N.TERMINATING, N.DRAINING}, state
        assert after.node(number).history[0].reason == "its provider takes it"
    drained = scene(member(1), member(2), waiting(3, drain_requested=True))
    assert drained.node(3).history[0].reason == "a user drains it"
    asked = scene(member(1), member(2), node(3, N.REQUESTED, drain_requested=True, retry_at=NOW + 60))
    assert asked.state(3) is N.GONE


def test_a_doomed_member_that_the_hint_names_as_a_spare_stays_for_now() -> None:
    after = scene(doomed(1), member(2), record=job(1), hint=hint_of(2, spares=[1]), round=round_of(1, 2))
    assert after.state(1) is N.MEMBER
    unnamed = scene(doomed(1), member(2), record=job(1), hint=hint_of(2), round=round_of(1, 2))
    assert unnamed.state(1) is N.DRAINING
    assert scene(doomed(1), member(2), record=job(1), hint=None, round=round_of(1, 2)).state(1) is N.DRAINING


@pytest.mark.parametrize(("left_s", "must"), [(12.1, False), (12.0, True), (-5.0, True)])
def test_when_a_doomed_nodes_time_has_come(left_s: float, must: bool) -> None:
    after = scene(member(1), doomed(2, NoticeRecord(NOW + left_s, NOW - 9, "x")), waiting(3), coming(4), record=job(3))
    # With its time come there is nothing to gather for; before it, node 4 is worth waiting for.
    assert (expected(after) == names(1, 3)) is must


def leaving(number: int, notice: NoticeRecord = SOON) -> NodeRecord:
    """One that its provider takes, and that has to be out of the round by now."""
    return node(number, N.DRAINING, notice=notice, needs_replacement=True)


@pytest.mark.parametrize(
    ("nodes", "minimum", "reason"),
    [
        ([member(1), doomed(2, SOON)], 2, f"{name(2)} leaves; a checkpoint, then 1 of at least 2 nodes wait"),
        ([member(1), leaving(2)], 2, f"{name(2)} leaves; a checkpoint, then 1 of at least 2 nodes wait"),
        (
            [doomed(1, SOON), doomed(2, SOON)],
            1,
            f"{name(1)}, {name(2)} leave; a checkpoint, then 0 of at least 1 nodes wait",
        ),
        ([member(1), doomed(2, SOON)], 1, ""),  # enough stay
        ([member(1), member(3), doomed(2, SOON)], 1, ""),
        ([member(1), doomed(2, LATER)], 3, ""),  # it has time: too few are left for another reason
        ([member(1), leaving(2, LATER)], 2, ""),
        ([member(1), LOST], 2, ""),
        ([member(1), node(2, N.SUSPECT, notice=SOON, needs_replacement=True, has_joined=True)], 2, ""),
    ],
)
def test_where_too_few_would_stay_all_write_a_checkpoint_and_wait(
    nodes: list[NodeRecord], minimum: int, reason: str
) -> None:
    numbers = [int(each.id[6:]) for each in nodes]
    record = job(len(nodes), min_nodes=minimum)
    after = scene(*nodes, record=record, round=round_of(*numbers), hint=hint_of(*numbers, low=minimum))
    staying = [each.id for each in nodes if each.state is N.MEMBER and each.notice is None]
    if reason:
        assert after.hint is not None
        assert (list(after.hint.members), after.hint.hold, after.hint.reason) == (staying, True, reason)
    else:
        assert after.hint is None or not after.hint.hold


def test_a_leaving_node_that_is_out_of_the_round_already_holds_no_other() -> None:
    known: Any = {"round": round_of(1), "hint": hint_of(1, 2, low=2), "record": job(2, min_nodes=2)}
    after = scene(member(1), leaving(2), **known)
    assert after.hint is not None
    assert (after.hint.members, after.hint.hold) == (names(1), False)


# -- spares ------------------------------------------------------------------------------------------------


def test_spares_are_published_without_disturbing_the_round() -> None:
    after = scene(member(1), member(2), waiting(3), record=job(2, spare_nodes=1))
    assert after.hint == hint_of(1, 2, spares=[3])
    again = scene(member(1), member(2), waiting(3), record=job(2, spare_nodes=1), hint=hint_of(1, 2, spares=[3]))
    assert again.hint is None


def test_never_more_spares_than_wanted_and_none_before_the_first_round() -> None:
    after = scene(member(1), waiting(2), waiting(3), record=job(1, spare_nodes=1))
    assert after.hint == hint_of(1, spares=[2])
    first = scene(waiting(1), coming(2), record=job(2, J.STARTING, spare_nodes=1, min_nodes=2), hint=EMPTY)
    assert first.hint is None


def test_a_spare_that_stepped_in_is_a_member_and_stays_first() -> None:
    after = scene(
        member(1),
        member(3),
        waiting(2),
        record=job(2, spare_nodes=1),
        round=round_of(1, 3),
        hint=hint_of(1, 2, spares=[3]),
    )
    assert after.hint is not None
    assert (after.hint.members, after.hint.spares) == (names(1, 3), names(2))


def test_a_waiting_hint_keeps_its_members_and_brings_its_spares_up_to_date() -> None:
    after = scene(member(1), member(2), waiting(3), coming(4), record=job(4, spare_nodes=1))
    assert after.hint == hint_of(1, 2, spares=[3])
    assert after.job.rounds.gathering_since == NOW


def test_gathering_ends_when_all_wanted_nodes_are_named() -> None:
    assert (
        scene(member(1), member(2), record=job(2, rounds={"gathering_since": NOW - 5})).job.rounds.gathering_since
        == 0.0
    )


# -- pause, end --------------------------------------------------------------------------------------------


def test_a_pause_holds_all_nodes() -> None:
    held = scene(member(1), member(2), record=job(2, pause={"at": NOW}))
    assert held.hint == hint_of(1, 2, reason="the job is paused", hold=True)
    empty = scene(record=job(2, J.QUEUED, pause={"at": NOW}), hint=None)
    assert empty.hint == hint_of(reason="the job is paused", hold=True)
    again = scene(member(1), member(2), record=job(2, pause={"at": NOW}), hint=held.hint)
    assert again.hint is None


def test_no_hint_is_published_once_the_job_has_a_result_or_has_ended() -> None:
    for messages in ({"result": Result("success", "", 1)}, {"record": job(3, cancel_requested=True)}):
        after = scene(member(1), member(2), waiting(3), **({"record": job(3)} | messages))
        assert after.hint is None


def test_what_the_nodes_of_a_settled_job_were_told_is_deleted() -> None:
    told = (KEYS.hint("job"), KEYS.ca("job"))
    over = scene(node(1, N.GONE), record=job(1, J.SUCCEEDED), passing=told)
    assert tuple(over.commit.delete_keys) == told
    assert scene(node(1, N.GONE), record=job(1, J.SUCCEEDED)).plan.commits == ()
    ending = node(1, N.TERMINATING, retry_at=NOW + 9)
    still = scene(ending, node(2, N.GONE), record=job(1, J.SUCCEEDED), passing=told)
    assert still.plan.commits == ()
    assert scene(record=job(1, J.WAITING), volatile={"offers": {}}).plan.commits == ()


# -- reports and tombstones --------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "reported"), [(1, True), (2, False), (3, False)])
def test_each_round_is_reported_once(seen: int, reported: bool) -> None:
    record = replace(job(2), rounds=replace(job(2).rounds, reported=seen))
    after = scene(member(1), member(2), record=record, round=round_of(1, 2, number=2, reason="more"))
    events = [each for each in after.events if each.kind is EventKind.ROUND]
    assert bool(events) is reported
    if reported:
        assert after.job.rounds.reported == 2
        assert events[0].text == "round 2 formed by 2 nodes: more"
        assert events[0].data == {"formed_at": NOW - 50, "nodes": 2, "round": 2}


def test_the_first_round_is_called_so() -> None:
    after = scene(member(1), member(2), record=replace(job(2), rounds=replace(job(2).rounds, reported=0)))
    assert after.events[0].text.endswith(": first")


@pytest.mark.parametrize("state", [N.LOST, N.TERMINATING])
def test_a_member_that_was_taken_gets_a_tombstone(state: NodeState) -> None:
    passages = (
        Transition(NOW - 9, "pending", "booting", "earlier"),
        Transition(NOW - 1, "member", "lost", "preempted"),
    )
    dead = node(2, state, has_joined=True, needs_replacement=True, retry_at=NOW + 9, history=passages, instance_id="")
    listed = listing(machine(1), listed_at=0.0)
    after = scene(member(1), dead, record=job(1), listed=listed)
    raw = after.commit.put_keys[KEYS.tombstone("job", name(2))]
    assert decode(Tombstone, raw) == Tombstone(name(2), "preempted", NOW)
    unknown = scene(member(1), replace(dead, history=()), record=job(1), listed=listed)
    assert decode(Tombstone, unknown.commit.put_keys[KEYS.tombstone("job", name(2))]).reason == "lost"
    for changed in (replace(dead, needs_replacement=False), replace(dead, has_joined=False)):
        other = scene(member(1), changed, record=job(1), listed=listed)
        assert KEYS.tombstone("job", name(2)) not in other.commit.put_keys
    with_tombstone = scene(member(1), dead, record=job(1), listed=listed, tombstones=frozenset({name(2)}))
    assert KEYS.tombstone("job", name(2)) not in with_tombstone.commit.put_keys


# -- special cases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "record", "messages", "named"),
    [
        # A member that left the round by itself and waits is named still, and can be waited with.
        ([member(1), waiting(2)], job(2), {"round": round_of(1), "hint": hint_of(1, 2)}, None),
        ([member(1), waiting(2), waiting(3), coming(4)], job(4), {"round": round_of(1), "hint": hint_of(1, 2)}, None),
        # Healthy nodes come before doomed ones, and these before absent ones.
        (
            [doomed(1), member(2), waiting(3), waiting(4)],
            job(3),
            {"members": {name(n): launcher(n) for n in (1, 2, 4)}},
            names(2, 4, 1),
        ),
        # A notice in the same moment as a replacement is one change.
        (
            [member(1), member(2), waiting(3)],
            job(2, spare_nodes=1),
            {"notices": {name(2): Notice(name(2), NOW + 5, NOW, "x")}},
            names(1, 3),
        ),
        # A member whose launcher is silent for a moment stays.
        ([member(1), member(2)], job(2), {"members": {name(1): launcher(1, "running")}}, None),
        # A round that lost too many gets its new hint at once.
        ([member(1), LOST], job(2, min_nodes=2), {"round": round_of(1, 2), "hint": hint_of(1, 2, low=2)}, names(1)),
        # Doomed nodes without healthy ones wait for nodes that are nearly ready.
        ([doomed(1), doomed(2), doomed(3), coming(4)], job(2), {}, None),
        ([doomed(1), doomed(2), doomed(3)], job(2), {}, names(1, 2)),
    ],
)
def test_whom_the_next_hint_names(nodes: list[NodeRecord], record: JobRecord, messages: Any, named: Any) -> None:
    assert expected(scene(*nodes, record=record, **messages)) == named


def test_a_doomed_newcomer_replaces_no_node() -> None:
    after = scene(member(1), waiting(2, notice=LATER, needs_replacement=True))
    assert (after.hint, after.state(2)) == (None, N.TERMINATING)


def test_a_doomed_member_that_is_still_needed_stays_though_the_hint_does_not_name_it_yet() -> None:
    after = scene(member(1), doomed(2), round=round_of(1, 2), hint=hint_of(1))
    assert (expected(after), after.state(2)) == (names(1, 2), N.MEMBER)


def test_a_doomed_spare_is_released_once_no_round_can_take_it() -> None:
    messages: Any = {"record": job(2, spare_nodes=1), "round": round_of(1, 2)}
    spare = waiting(3, drain_requested=True)
    after = scene(member(1), member(2), spare, **messages, hint=hint_of(1, 2, spares=[3]))
    assert (after.state(3), after.hint and after.hint.spares) == (N.DRAINING, ()), "it may be in a round by now"
    again = scene(member(1), member(2), after.node(3), **messages, hint=hint_of(1, 2))
    assert again.state(3) is N.TERMINATING
    stepped_in = scene(member(1), member(2), after.node(3), **messages | {"round": round_of(1, 3)}, hint=hint_of(1, 2))
    assert stepped_in.state(3) is N.DRAINING


def test_a_job_of_pairs_trains_on_pairs_and_the_third_node_waits_like_a_spare() -> None:
    pairs = job(4, spec=spec(nodes={"min": 2, "desired": 4, "max": 4, "multiple_of": 2}), min_nodes=2)
    after = scene(
        member(1), member(3), member(4), LOST, record=pairs, round=round_of(1, 2, 3, 4), hint=hint_of(1, 2, 3, 4)
    )
    assert after.hint is not None
    assert (after.hint.members, after.hint.spares, after.hint.multiple_of) == (names(1, 3), names(4), 2)
    assert after.state(4) is N.MEMBER
    complete = scene(*(member(n) for n in (1, 2, 3, 4)), record=pairs)
    assert expected(complete) in (None, names(1, 2, 3, 4))


def test_surplus_nodes_of_a_job_of_pairs_are_no_spares() -> None:
    pairs = job(2, spec=spec(nodes={"min": 2, "desired": 2, "max": 4, "multiple_of": 2}), min_nodes=2)
    after = scene(*(member(n) for n in (1, 2, 3, 4)), record=pairs, hint=hint_of(1, 2, 3, 4, low=2, multiple_of=2))
    assert after.hint is not None
    assert (after.hint.members, after.hint.spares) == (names(1, 2), ())
