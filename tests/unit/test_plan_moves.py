"""When a job moves to other nodes: one moment at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Market, NoCapacity, Offer, Scope
from supervisor.events import EventKind
from supervisor.market.capacity import MIN_TOO_FEW_S, CapacityMemory
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState, NoticeRecord
from supervisor.planner.actions import FetchOffers, Launch, LaunchDone
from supervisor.planner.world import Rules
from tests.unit.scene import (
    NOW,
    OFFER,
    Decided,
    J,
    N,
    hint_of,
    job,
    member,
    name,
    names,
    node,
    offering,
    scene,
    spec,
)

RULES = Rules()
ELSEWHERE = replace(OFFER, zone="zone-b")
ON_DEMAND = replace(OFFER, market=Market.ON_DEMAND, usd_per_hour=1.5)
EITHER = spec(market="spot-then-on-demand")
LONG = NOW - 2000
FULL_HERE = CapacityMemory().remember(OFFER, NoCapacity(Scope.TYPE_IN_ZONE, 180.0, "full"), NOW - 10, spare=False)


def trains(number: int, **changes: Any) -> NodeRecord:
    """A member since long ago."""
    return member(number, **({"state_since": LONG} | changes))


def moving(*nodes: NodeRecord, record: JobRecord | None = None, **more: Any) -> Decided:
    """Two of four train, their zone refuses, and another one does not."""
    record = record or job(4, J.DEGRADED, state_since=LONG)
    volatile = offering(OFFER, ELSEWHERE) | {"capacity": FULL_HERE} | more.pop("volatile", {})
    return scene(*(nodes or (trains(1), trains(2))), record=record, volatile=volatile, **more)


def zones(after: Decided) -> list[str]:
    """Where nodes are requested."""
    return [each.node.offer.zone for each in after.does(Launch)]


def test_all_that_a_job_wants_are_requested_ahead_where_they_may_be_as_many_at_once_as_were_granted() -> None:
    after = moving()
    assert zones(after) == ["zone-b"]
    assert all(each.ahead for each in after.new)
    assert after.job.moves.since == NOW
    assert not after.released
    begun = replace(UNDER_WAY, moves=replace(UNDER_WAY.moves, since=NOW - 5))
    for granted, more in ((1, 1), (2, 2), (3, 1)):
        there = [node(n, N.PENDING, offer=ELSEWHERE, ahead=True, created_at=NOW - 4) for n in range(5, 5 + granted)]
        assert zones(moving(trains(1), trains(2), *there, record=begun)) == ["zone-b"] * more


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"state_since": NOW - RULES.moves.after_s + 1}, {}),  # it has changed just now
        ({"moves": {"retry_at": NOW + 1}}, {}),
        ({"pause": {"at": NOW - 1}}, {}),
        ({"checkpoints": {"problem": "disk full"}}, {}),
        ({"spec": spec(checkpoints="none")}, {}),
        ({"spec": spec(limits={"usd_per_hour": 2.0})}, {}),  # for two more, of three that are worth it
        ({}, {"volatile": {"capacity": CapacityMemory()}}),  # its own zone has not refused
        ({}, {"volatile": offering(OFFER)}),  # there is no other
    ],
)
def test_a_job_stays(changes: dict[str, Any], more: dict[str, Any]) -> None:
    after = moving(record=job(4, J.DEGRADED, **({"state_since": LONG} | changes)), **more)
    assert "zone-b" not in zones(after)
    assert not after.job.moves.since


def test_a_node_that_has_come_just_now_or_will_be_drained_keeps_a_job_where_it_is() -> None:
    drained = trains(2, drain_requested=True)
    for other in (member(2), drained, node(2, N.PENDING), node(2, N.SUSPECT, state_since=NOW - 5)):
        assert "zone-b" not in zones(moving(trains(1), other))


NOTICE = NoticeRecord(NOW + 100, NOW - 5, "metadata")


def test_a_job_moves_at_once_while_nodes_that_are_taken_still_train() -> None:
    taken = [trains(n, notice=NOTICE) for n in (2, 3, 4)]
    fresh = job(4, J.RUNNING, state_since=NOW - 5)
    after = moving(trains(1), *taken, record=fresh)
    assert (zones(after), after.job.moves.since) == (["zone-b"], NOW)
    assert not after.released
    assert not moving(trains(1), *taken, record=fresh, volatile={"capacity": CapacityMemory()}).job.moves.since


@pytest.mark.parametrize("state", [J.RUNNING, J.WAITING, J.STARTING])
def test_a_job_whose_nodes_that_stay_are_too_few_asks_elsewhere_also_just_after_a_move(state: JobState) -> None:
    few = job(4, state, state_since=NOW - 5, min_nodes=2, moves={"retry_at": NOW + 500})
    after = moving(trains(1), trains(2, notice=NOTICE), trains(3, notice=NOTICE), record=few)
    assert "zone-b" in zones(after)
    enough = replace(few, min_nodes=1)
    assert "zone-b" not in zones(moving(trains(1), trains(2, notice=NOTICE), record=enough))


def test_a_job_that_cannot_train_believes_a_refusal_for_less_long() -> None:
    def believed_s(min_nodes: int, said_s: float = 180.0) -> float:
        outcome = LaunchDone(name(3), OFFER, NoCapacity(Scope.TYPE_IN_ZONE, said_s, "full"))
        record = job(4, J.DEGRADED, min_nodes=min_nodes)
        after = scene(trains(1), trains(2), node(3, N.REQUESTED), record=record, outcomes=[outcome])
        (refusal,) = after.volatile.capacity.refusals
        return refusal.until - NOW

    assert believed_s(2) == 180.0
    assert believed_s(3) == RULES.gang.retry_s
    assert believed_s(3, said_s=30.0) == 30.0, "never longer than the cloud says"


def test_too_few_that_stay_are_left_as_soon_as_enough_are_ready_elsewhere() -> None:
    few = job(4, J.WAITING, state_since=NOW - 50, min_nodes=2, moves={"since": NOW - 150})
    assert (
        moving(trains(1), coming(5), node(6, N.BOOTING, offer=ELSEWHERE, ahead=True), record=few).node(1).left_behind
        == ""
    )
    after = moving(trains(1), coming(5), coming(6), record=few)
    assert after.node(1).left_behind == "the job moves to zone-b"
    assert not any(after.node(n).ahead for n in (5, 6))


def test_none_is_left_while_one_of_them_is_silent_and_may_work() -> None:
    few = job(4, J.WAITING, state_since=NOW - 50, min_nodes=2, moves={"since": NOW - 150})
    silent = node(1, N.SUSPECT, state_since=NOW - 5, has_joined=True)
    assert moving(silent, coming(5), coming(6), record=few).node(1).left_behind == ""


def test_a_job_whose_machines_only_arrive_goes_where_more_are_granted() -> None:
    begins = job(4, J.STARTING, state_since=NOW - 50)
    here = [node(n, N.BOOTING) for n in (1, 2)]
    assert "zone-b" in zones(moving(*here, record=begins))
    there = [node(n, N.PENDING, offer=ELSEWHERE, ahead=True, created_at=NOW - 4) for n in (5, 6, 7)]
    after = moving(*here, *there, record=replace(begins, moves=replace(begins.moves, since=NOW - 5)))
    assert [bool(after.node(n).left_behind) for n in (1, 2)] == [True, True]
    assert (
        not moving(*here, *there[:2], record=replace(begins, moves=replace(begins.moves, since=NOW - 5)))
        .node(1)
        .left_behind
    )


def test_a_place_that_refused_lately_is_asked_for_a_move_later_and_then_for_one_node() -> None:
    def refused(ago_s: float) -> CapacityMemory:
        return FULL_HERE.remember(ELSEWHERE, NoCapacity(Scope.TYPE_IN_ZONE, 0.0, "full"), NOW - ago_s, spare=False)

    assert zones(moving(volatile={"capacity": refused(RULES.moves.probe_s - 1)})) == []
    assert zones(moving(volatile={"capacity": refused(RULES.moves.probe_s + 1)})) == ["zone-b"]


def coming(number: int, offer: Offer = ELSEWHERE, state: NodeState = N.READY, **changes: Any) -> NodeRecord:
    """A node ahead of a move."""
    return node(number, state, **({"offer": offer, "ahead": True, "created_at": NOW - 300} | changes))


UNDER_WAY = job(4, J.DEGRADED, state_since=LONG, moves={"since": NOW - 300})


def test_nodes_ahead_of_a_move_are_not_taken_for_strays() -> None:
    """Two train in one zone, and more than that are there in the other: they wait until enough of them are ready."""
    later = [node(n, N.BOOTSTRAPPING, offer=ELSEWHERE, ahead=True, created_at=NOW - 300) for n in (5, 6)]
    after = moving(trains(1), trains(2), coming(3), coming(4), *later, record=UNDER_WAY)
    assert not after.released
    assert after.job.moves.since == UNDER_WAY.moves.since


def test_once_they_are_ready_the_round_changes_to_them_and_the_others_leave() -> None:
    after = moving(trains(1), trains(2), *(coming(n) for n in (3, 4, 5, 6)), record=UNDER_WAY)
    assert after.hint
    assert set(after.hint.members) == set(names(3, 4, 5, 6))
    assert [after.node(n).left_behind for n in (1, 2)] == ["the job moves to zone-b"] * 2
    assert not any(after.node(n).ahead for n in (3, 4, 5, 6))
    assert EventKind.MOVED in after.event_kinds
    assert (after.job.moves.since, after.job.moves.retry_at) == (0.0, NOW + RULES.moves.rest_s)
    assert not after.released, "those that leave checkpoint with the round first"
    assert zones(after) == []


def test_a_node_that_is_drained_counts_among_those_that_the_new_ones_replace() -> None:
    drained = [trains(n, drain_requested=True) for n in (2, 3)]
    three = job(4, J.DEGRADED, state_since=LONG, moves={"since": NOW - 300})
    assert not moving(trains(1), *drained, coming(4), coming(5), record=three).hint
    after = moving(trains(1), *drained, *(coming(n) for n in (4, 5, 6)), record=three)
    assert after.hint
    assert set(after.hint.members) == set(names(4, 5, 6))


def test_a_job_moves_for_no_fewer_than_its_next_multiple() -> None:
    pairs = replace(UNDER_WAY, spec=spec(nodes={"min": 2, "desired": 4, "max": 4, "multiple_of": 2}), min_nodes=2)
    after = moving(trains(1), trains(2), *(coming(n) for n in (3, 4, 5)), record=pairs)
    assert after.released == set(names(3, 4, 5)), "of three, two would train"
    after = moving(trains(1), trains(2), *(coming(n) for n in (3, 4, 5, 6)), record=pairs)
    assert after.hint
    assert len(after.hint.members) == 4


def test_a_job_moves_ever_more_rarely_while_zones_keep_changing() -> None:
    def rest(moves: int, ended_ago_s: float) -> tuple[int, float]:
        record = replace(UNDER_WAY, moves=replace(UNDER_WAY.moves, in_row=moves, retry_at=NOW - ended_ago_s))
        after = moving(trains(1), trains(2), *(coming(n) for n in (3, 4, 5, 6)), record=record)
        return after.job.moves.in_row, after.job.moves.retry_at - NOW

    assert rest(0, NOW) == (1, RULES.moves.rest_s)
    assert rest(1, 300.0) == (2, 2 * RULES.moves.rest_s)
    assert rest(2, 300.0) == (3, 4 * RULES.moves.rest_s)
    assert rest(9, 300.0) == (10, RULES.moves.max_retry_s)
    assert rest(9, RULES.moves.max_retry_s) == (1, RULES.moves.rest_s), "the last one was long ago"


def test_old_prices_are_read_again_before_a_job_moves_for_them() -> None:
    old = {"offers": {"job": replace(offering(OFFER, ELSEWHERE)["offers"]["job"], asked_at=NOW - RULES.offers_s - 1)}}
    after = moving(volatile=old)
    assert FetchOffers in {type(each) for each in after.plan.actions}
    assert (zones(after), after.job.moves.since) == ([], 0.0)


def test_one_in_the_new_place_that_is_lost_as_the_round_changes_does_not_keep_both_sets() -> None:
    old = [trains(n, left_behind="the job moves to zone-b") for n in (1, 2, 3)]
    new = [coming(n, ahead=False) for n in (4, 5)]
    after = moving(*old, *new, record=job(4, J.DEGRADED, state_since=LONG, min_nodes=2))
    assert after.hint
    assert set(after.hint.members) == set(names(4, 5))


def test_nodes_ahead_are_waited_for_while_enough_are_coming() -> None:
    late = node(6, N.BOOTSTRAPPING, offer=ELSEWHERE, ahead=True, retry_at=NOW + 9)
    after = moving(trains(1), trains(2), coming(3), coming(4), late, record=UNDER_WAY)
    assert (after.job.moves.since, after.hint, after.released) == (UNDER_WAY.moves.since, None, set())


def test_a_move_is_ended_by_a_machine_where_the_job_is_and_not_by_a_request_there() -> None:
    dearer = replace(ELSEWHERE, usd_per_hour=0.7)  # two more are worth that, one is not
    there = [coming(n, dearer, state=N.BOOTSTRAPPING) for n in (5, 6, 7, 8)]
    for state, goes_on in ((N.REQUESTED, True), (N.PENDING, False)):
        here = (trains(1), trains(2), node(3, state))
        after = moving(*here, *there, record=UNDER_WAY, volatile=offering(OFFER, dearer))
        assert (bool(after.job.moves.since), bool(after.released)) == (goes_on, not goes_on)


def test_too_few_or_too_late_ones_are_given_back_and_the_next_try_is_later() -> None:
    few = moving(trains(1), trains(2), coming(3), record=UNDER_WAY)
    assert few.released == {name(3)}
    assert (few.job.moves.failed, few.job.moves.retry_at) == (1, NOW + RULES.moves.retry_s)
    assert few.events[0].text == "job does not move to zone-b, which had 1 node: 3 are needed"
    again = moving(trains(1), trains(2), coming(3), record=replace(UNDER_WAY, moves=replace(UNDER_WAY.moves, failed=9)))
    assert again.job.moves.retry_at == NOW + RULES.moves.max_retry_s
    old = replace(UNDER_WAY, moves=replace(UNDER_WAY.moves, since=NOW - RULES.moves.limit_s))
    assert moving(trains(1), trains(2), *(coming(n) for n in (3, 4, 5, 6)), record=old).released == set(
        names(3, 4, 5, 6)
    )


@pytest.mark.parametrize(("had", "moves"), [(2, False), (3, True)])
def test_a_job_moves_to_no_place_that_had_fewer_than_the_move_is_worth(*, had: int, moves: bool) -> None:
    """Three would be worth the pause, and two are enough to train."""
    capacity = FULL_HERE.with_too_few("job", ELSEWHERE, had, 3, NOW - 1)
    assert (zones(moving(volatile={"capacity": capacity})) == ["zone-b"]) is moves


def test_what_a_place_had_for_a_move_is_remembered() -> None:
    (few,) = moving(trains(1), trains(2), coming(3), record=UNDER_WAY).volatile.capacity.too_few.values()
    assert (few.machines, few.until) == (1, NOW + 3 * MIN_TOO_FEW_S)


def test_machines_that_are_too_few_to_move_to_are_kept_no_longer_than_those_that_are_too_few_to_train() -> None:
    asked = [node(n, N.REQUESTED, offer=ELSEWHERE, ahead=True, launch_unknown=True) for n in (4, 5)]
    for ago_s, kept in ((RULES.gang.timeout_s - 1, True), (RULES.gang.timeout_s, False)):
        record = replace(UNDER_WAY, moves=replace(UNDER_WAY.moves, since=NOW - ago_s))
        after = moving(trains(1), trains(2), coming(3, created_at=NOW - ago_s), *asked, record=record)
        assert (name(3) not in after.released) is kept


def test_a_job_with_a_spare_moves_to_a_cheaper_place_and_gets_a_new_spare_there() -> None:
    nodes = [trains(1), trains(2), node(3, N.READY, state_since=LONG)]
    cheap = replace(ELSEWHERE, usd_per_hour=0.3)
    record = job(2, state_since=LONG, spare_nodes=1)
    round_now: dict[str, Any] = {"hint": hint_of(1, 2, spares=(3,))}
    asked = scene(*nodes, record=record, volatile=offering(OFFER, cheap), **round_now)
    assert [(each.offer.zone, each.ahead) for each in asked.new] == [("zone-b", True)]
    there = [coming(n, cheap) for n in (4, 5)]
    under_way = replace(record, moves=replace(record.moves, since=NOW - 300))
    after = scene(*nodes, *there, record=under_way, volatile=offering(OFFER, cheap), **round_now)
    assert after.hint
    assert set(after.hint.members) == set(names(4, 5))
    assert [bool(after.node(n).left_behind) for n in (1, 2, 3)] == [True] * 3
    assert after.new == [], "the operator's limits were applied to what it had before"
    left = [replace(each, left_behind="the job moves") for each in nodes]
    moved = scene(*left, *(replace(each, ahead=False) for each in there), record=record, volatile=offering(cheap))
    assert [(each.offer.zone, each.ahead) for each in moved.new] == [("zone-b", False)]


def test_those_of_a_move_that_is_over_are_given_back() -> None:
    after = moving(
        trains(1), trains(2), coming(3), record=replace(UNDER_WAY, moves=replace(UNDER_WAY.moves, since=0.0))
    )
    assert name(3) in after.released


def test_on_demand_nodes_are_left_for_as_many_on_spot_where_they_are() -> None:
    dear = [trains(n, offer=ON_DEMAND) for n in (1, 2)]
    record = job(2, state_since=LONG, spec=EITHER)
    offers = offering(OFFER, ON_DEMAND)
    asked = scene(*dear, record=record, volatile=offers)
    assert [(each.offer, each.ahead) for each in asked.new] == [(OFFER, True)]
    young = [replace(each, created_at=NOW - RULES.moves.back_to_spot_s + 1) for each in dear]
    assert scene(*young, record=record, volatile=offers).new == []
    half = scene(
        *dear, coming(3, OFFER), record=replace(record, moves=replace(record.moves, since=NOW - 300)), volatile=offers
    )
    assert [half.node(n).left_behind for n in (1, 2, 3)] == ["", "the job goes back to spot", ""]
    assert half.hint
    assert half.hint.members == names(1, 3)


def test_on_demand_is_asked_for_only_where_no_other_place_may_be_moved_to() -> None:
    record = job(4, J.DEGRADED, state_since=NOW - 5, spec=EITHER)
    offers = offering(OFFER, ELSEWHERE, ON_DEMAND)
    assert zones(moving(record=record, volatile=offers)) == []
    full = FULL_HERE.remember(ELSEWHERE, NoCapacity(Scope.TYPE_IN_ZONE, 180.0, "full"), NOW - 10, spare=False)
    after = moving(record=record, volatile=offers | {"capacity": full})
    assert [each.offer for each in after.new] == [ON_DEMAND] * 2
    stays = replace(record, spec=spec(market="spot-then-on-demand", checkpoints="none"))
    assert [each.offer for each in moving(record=stays, volatile=offers).new] == [ON_DEMAND] * 2
