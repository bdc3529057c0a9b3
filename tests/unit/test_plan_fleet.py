"""Which machines are requested, bootstrapped and released: one moment at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Result

from provisioners.base import InstanceState, Market, OfferQuery, Scope
from supervisor.events import EventKind
from supervisor.market.admission import Cap, QueueRules
from supervisor.market.capacity import LATE_DECAY_S, MIN_TOO_FEW_S, TOO_FEW_S, CapacityMemory, CapacityRefusal
from supervisor.model import JobRecord, NodeRecord, NodeState, NoticeRecord
from supervisor.planner.actions import Bootstrap, FetchOffers, Find, Launch, Terminate
from supervisor.planner.predicates import machine_room
from supervisor.planner.world import Rules
from tests.unit.scene import (
    FULL,
    NOW,
    OFFER,
    J,
    N,
    draft_of,
    hint_of,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    names,
    node,
    offering,
    round_of,
    scene,
    spec,
)

RULES = Rules()
DAY_S = 86_400.0
NOTICE = NoticeRecord(NOW + 60, NOW - 5, "metadata")

# -- more --------------------------------------------------------------------------------------------------


def test_missing_nodes_are_requested_with_their_intents() -> None:
    after = scene(member(1), record=job(3, next_node=12))
    assert [each.id for each in after.new] == list(names(12, 13))
    assert after.job.next_node == 14
    first = after.new[0]
    assert (first.token, first.job, first.offer, first.state) == (name(12), "job", OFFER, N.REQUESTED)
    assert (first.state_since, first.launch_attempts, first.replaces) == (NOW, 1, "")
    assert [each.node for each in after.does(Launch)] == after.new
    assert after.event_kinds == [EventKind.LAUNCH_REQUESTED] * 2
    assert [each.node for each in after.events] == list(names(12, 13))
    assert after.events[0].text == f"requested {name(12)} in zone-a (small)"


def test_spares_are_requested_as_spares() -> None:
    after = scene(member(1), record=job(2, spare_nodes=1))
    assert [each.text.endswith(", a spare)") for each in after.events] == [False, True]


def test_no_more_nodes_are_requested_than_wanted() -> None:
    coming = [node(n, state) for n, state in ((2, N.REQUESTED), (3, N.PENDING), (4, N.BOOTING), (5, N.BOOTSTRAPPING))]
    there = [member(1), node(6, N.READY), node(7, N.SUSPECT, state_since=NOW)]
    listed = listing(*(machine(n) for n in (1, 4, 5, 6, 7)), machine(3, InstanceState.PENDING))
    after = scene(*there, *coming, record=job(7), listed=listed)
    assert after.new == []
    leaving = [node(8, N.DRAINING), node(9, N.TERMINATING), node(10, N.GONE)]
    assert len(scene(member(1), *leaving, record=job(2)).new) == 1


def test_a_doomed_node_is_replaced_before_it_goes_and_its_place_is_named() -> None:
    doomed = member(2, notice=NOTICE, needs_replacement=True)
    after = scene(member(1), doomed)
    assert [each.replaces for each in after.new] == [name(2)]
    (event,) = after.events
    assert (event.kind, event.node) == (EventKind.REPLACEMENT_REQUESTED, after.new[0].id)
    place = {"zone": "zone-a", "instance_type": "small"}
    assert event.data == {"replaces": name(2), "seen_at": NOTICE.seen_at, **place}
    assert event.text == f"requested {after.new[0].id} in zone-a in place of {name(2)}"
    drained = scene(member(1), replace(doomed, notice=None, drain_requested=True))
    assert drained.events[0].data == {"replaces": name(2), **place}


TAKEN = node(2, N.GONE, has_joined=True, needs_replacement=True)
TAKEN_LATER = node(3, N.GONE, has_joined=True, needs_replacement=True)


@pytest.mark.parametrize(
    ("others", "replaces"),
    [
        ([TAKEN_LATER, TAKEN], [name(2), name(3)]),  # oldest first
        ([TAKEN, node(9, N.REQUESTED, replaces=name(2))], [""]),  # asked for already
        ([TAKEN, node(9, N.GONE, replaces=name(2))], [name(2), ""]),  # that came to nothing
        ([TAKEN, node(9, N.GONE, replaces=name(2), has_joined=True)], ["", ""]),  # it has taken the place
        ([TAKEN, node(9, N.GONE, replaces=name(2)), node(5, N.READY, took_over_from=name(2))], [""]),  # a spare has it
        ([replace(TAKEN, needs_replacement=False)], ["", ""]),
        ([replace(TAKEN, has_joined=False)], ["", ""]),
        ([TAKEN_LATER, replace(TAKEN, created_at=TAKEN_LATER.created_at)], [name(2), name(3)]),
        ([TAKEN, node(9, N.GONE, has_joined=True, needs_replacement=True, created_at=NOW - 3000)], [name(9), name(2)]),
    ],
)
def test_which_lost_node_a_request_replaces(others: list[NodeRecord], replaces: list[str]) -> None:
    after = scene(member(1), *others, record=job(3))
    assert [each.replaces for each in after.new] == replaces


@pytest.mark.parametrize("spread", ["zone", "region"])
def test_a_job_without_nodes_may_be_anywhere(spread: str) -> None:
    record = job(1, J.STARTING, spec=spec(placement={"spread": spread}))
    assert len(scene(record=record).new) == 1


def test_the_first_allowed_offer_is_requested() -> None:
    dear, cheap = replace(OFFER, instance_type="dear", usd_per_hour=9.0), OFFER
    assert scene(member(1), volatile=offering(cheap, dear)).new[0].offer == cheap
    closed = CapacityRefusal(cheap, Scope.TYPE_IN_ZONE, NOW + 1, "full")
    assert (
        scene(member(1), volatile=offering(cheap, dear) | {"capacity": CapacityMemory((closed,))}).new[0].offer == dear
    )
    assert scene(member(1), volatile=offering(cheap) | {"capacity": CapacityMemory((closed,))}).new == []
    for_spares = replace(closed, spare=True)
    assert len(scene(member(1), volatile=offering(cheap) | {"capacity": CapacityMemory((for_spares,))}).new) == 1
    spare = job(1, spare_nodes=1)
    assert (
        scene(member(1), record=spare, volatile=offering(cheap) | {"capacity": CapacityMemory((for_spares,))}).new == []
    )


@pytest.mark.parametrize(
    ("spread", "zone", "region", "allowed"),
    [
        ("zone", "zone-a", "region-1", True),
        ("zone", "zone-b", "region-1", False),
        ("region", "zone-b", "region-1", True),
        ("region", "zone-b", "region-2", False),
    ],
)
@pytest.mark.parametrize("state", [N.MEMBER, N.READY, N.DRAINING])
def test_a_job_stays_in_one_place(spread: str, zone: str, region: str, allowed: bool, state: NodeState) -> None:
    record = job(2, spec=spec(placement={"spread": spread}))
    offers = offering(replace(OFFER, zone=zone, region=region))
    inside = round_of(1)
    # A node that is gone does not tie the job to its place.
    gone = node(8, N.GONE, offer=replace(OFFER, zone="far", region="far"))
    after = scene(node(1, state), gone, record=record, volatile=offers, round=inside, hint=hint_of(1))
    assert bool(after.new) is allowed


ELSEWHERE = replace(OFFER, zone="zone-b")


def test_nodes_apart_from_those_that_train_are_released_and_then_others_are_requested() -> None:
    """As where machines were adopted after etcd had lost its data."""
    apart = [node(3, N.READY, offer=ELSEWHERE), node(4, N.BOOTSTRAPPING, offer=ELSEWHERE), node(5, N.READY)]
    after = scene(member(1), *apart, record=job(4), round=round_of(1), hint=hint_of(1))
    assert after.node(3).state is N.DRAINING
    assert after.node(4).state is N.TERMINATING
    assert [after.node(number).state for number in (1, 5)] == [N.MEMBER, N.READY]
    assert after.new == []
    leaves = node(3, N.TERMINATING, retry_at=NOW + 9, offer=ELSEWHERE)
    later = scene(member(1), leaves, node(5, N.READY), record=job(4), round=round_of(1), volatile=offering(OFFER))
    assert [each.offer.zone for each in later.new] == [OFFER.zone] * 2


def test_where_none_trains_the_place_with_most_nodes_counts_and_where_all_train_none_is_released() -> None:
    few = [node(1, N.READY, offer=ELSEWHERE), node(2, N.READY), node(3, N.READY)]
    after = scene(*few, record=job(3))
    assert [after.node(number).state for number in (1, 2, 3)] == [N.DRAINING, N.READY, N.READY]
    both = [member(1), member(2, offer=ELSEWHERE)]
    after = scene(*both, record=job(2), round=round_of(1, 2))
    assert [after.node(number).state for number in (1, 2)] == [N.MEMBER, N.MEMBER]
    wide = job(3, spec=spec(placement={"spread": "region"}))
    assert scene(*few, record=wide).node(1).state is N.READY


UNPRICED = replace(OFFER, instance_type="other", usd_per_hour=None)


@pytest.mark.parametrize(
    ("limit", "price", "others", "allowed"),
    [
        (1.0, 0.5, [], True),
        (0.99, 0.5, [], False),
        (None, 0.5, [], True),
        (9.0, None, [], False),
        (None, None, [], True),
        (1.0, 0.5, [node(2, N.GONE)], True),
        (1.0, 0.5, [node(2, N.TERMINATING, retry_at=NOW + 9)], False),
        (1.0, 0.5, [node(2, N.TERMINATING, retry_at=NOW + 9, offer=UNPRICED)], True),
    ],
)
def test_never_more_money_per_hour_than_allowed(
    limit: float | None, price: float | None, others: list[NodeRecord], allowed: bool
) -> None:
    record = job(2, spec=spec(limits={"usd_per_hour": limit} if limit else {}))
    after = scene(member(1), *others, record=record, volatile=offering(replace(OFFER, usd_per_hour=price)))
    assert bool(after.new) is allowed


@pytest.mark.parametrize(("retry_at", "asked"), [(NOW + 0.1, 0), (NOW, 1)])
def test_after_a_spare_that_failed_the_next_one_waits_and_a_member_does_not(retry_at: float, asked: int) -> None:
    assert len(scene(member(1), record=job(1, spare_nodes=1, bootstraps={"spare_retry_at": retry_at})).new) == asked
    assert len(scene(member(1), record=job(2, spare_nodes=1, bootstraps={"spare_retry_at": retry_at})).new) == asked + 1


@pytest.mark.parametrize(
    ("known", "asked_s", "asks"),
    [
        (True, 300.0, False),
        (True, 300.1, True),
        (False, 15.0, False),
        (False, 15.1, True),
        (False, NOW, True),  # never
    ],
)
def test_offers_are_read_when_unknown_or_old(known: bool, asked_s: float, asks: bool) -> None:
    after = scene(member(1), volatile=offering(OFFER, known=known, asked_at=NOW - asked_s))
    assert after.does(FetchOffers) == ([FetchOffers("job", "local", (OfferQuery(),))] if asks else [])
    complete = scene(member(1), member(2), volatile=offering(OFFER, known=known, asked_at=NOW - asked_s))
    assert len(complete.does(FetchOffers)) == (asked_s == NOW), "nothing is wanted but prices, now and then"


def test_old_offers_are_not_read_at_every_tick_where_the_period_is_short() -> None:
    rules = Rules(offers_s=1.0, leftovers_s=1e9)
    assert scene(member(1), rules=rules, volatile=offering(asked_at=NOW - 15.0)).does(FetchOffers) == []
    assert len(scene(member(1), rules=rules, volatile=offering(asked_at=NOW - 15.1)).does(FetchOffers)) == 1


@pytest.mark.parametrize(("asked_s", "asks"), [(60.0, 0), (60.1, 1)])
def test_offers_of_machines_that_one_has_are_soon_old(asked_s: float, asks: int) -> None:
    known = offering(replace(OFFER, room=1), asked_at=NOW - asked_s)
    assert len(scene(member(1), volatile=known).does(FetchOffers)) == asks


def test_offers_that_are_being_read_are_not_requested_twice() -> None:
    assert scene(member(1), volatile=offering(known=False, asked_at=0.0), busy=frozenset({"offers:job"})).actions == []


def test_offers_are_read_for_the_jobs_market() -> None:
    record = job(2, spec=spec(market="on-demand"))
    after = scene(member(1), record=record, volatile=offering(known=False, asked_at=0.0))
    assert [query.market for query in after.does(FetchOffers)[0].queries] == [Market.ON_DEMAND]


# -- one step on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retry_at", "asks"), [(NOW, True), (NOW + 0.1, False)])
def test_a_request_is_repeated_under_its_token_when_its_time_has_come(retry_at: float, asks: bool) -> None:
    after = scene(member(1), node(2, N.REQUESTED, retry_at=retry_at, launch_attempts=2, error="slow down"))
    assert [each.node.token for each in after.does(Launch)] == ([name(2)] if asks else [])
    assert after.node(2).launch_attempts == (3 if asks else 2)
    busy = scene(member(1), node(2, N.REQUESTED, retry_at=retry_at), busy=frozenset({f"node:{name(2)}"}))
    assert busy.actions == []


@pytest.mark.parametrize(
    ("ended", "error", "launch_unknown", "asks"),
    [
        (False, "full", False, {Launch}),
        (True, "full", False, set()),
        (True, "full", True, {Find}),
        (True, "", False, {Launch}),
    ],
)
def test_a_refused_request_that_is_not_wanted_any_more_is_not_repeated(
    ended: bool, error: str, launch_unknown: bool, asks: set[type]
) -> None:
    record = job(2, J.CANCELLED) if ended else job(2)
    after = scene(node(2, N.REQUESTED, error=error, launch_unknown=launch_unknown, launch_attempts=1), record=record)
    assert {type(each) for each in after.actions if isinstance(each, Launch | Find)} == asks
    assert (after.state(2), after.node(2).ended_at) == ((N.REQUESTED, 0.0) if asks else (N.GONE, NOW))


@pytest.mark.parametrize(
    ("attempts", "launch_unknown", "busy", "gone", "finds"),
    [
        (1, False, False, True, 0),
        (1, True, False, False, 1),
        (0, False, False, True, 0),  # it has had no turn yet (throttling.py)
        (1, False, True, False, 0),
        (1, True, True, False, 0),
    ],
)
def test_a_request_is_withdrawn_only_when_no_machine_can_result_from_it(
    attempts: int, launch_unknown: bool, busy: bool, gone: bool, finds: int
) -> None:
    asked = node(2, N.REQUESTED, launch_attempts=attempts, launch_unknown=launch_unknown, retry_at=NOW + 60)
    keys = frozenset({f"node:{name(2)}"} if busy else ())
    after = scene(member(1), asked, record=job(1), busy=keys)
    assert ((after.state(2) is N.GONE), len(after.does(Find))) == (gone, finds)
    assert after.node(2).ended_at == (NOW if gone else 0.0)
    assert after.does(Launch) == []


def test_a_booting_machine_is_bootstrapped_unless_it_is_not_needed() -> None:
    booting = node(2, N.BOOTING)
    after = scene(member(1), booting)
    assert (after.state(2), [each.node.id for each in after.does(Bootstrap)]) == (N.BOOTSTRAPPING, [name(2)])
    assert after.does(Bootstrap)[0].node == after.node(2)
    for record, which in ((job(2, J.CANCELLED), booting), (job(2), replace(booting, notice=NOTICE))):
        assert scene(member(1), which, record=record).does(Bootstrap) == []
    busy = scene(member(1), booting, busy=frozenset({f"node:{name(2)}"}))
    assert (busy.state(2), busy.does(Bootstrap)) == (N.BOOTING, [])


@pytest.mark.parametrize(
    ("done", "retry_at", "again"), [(False, NOW, True), (False, NOW + 0.1, False), (True, NOW, False)]
)
def test_a_bootstrap_is_repeated_until_it_is_done(done: bool, retry_at: float, again: bool) -> None:
    after = scene(member(1), node(2, N.BOOTSTRAPPING, bootstrapped=done, retry_at=retry_at))
    assert bool(after.does(Bootstrap)) is again


@pytest.mark.parametrize(("state", "last_words"), [(N.LOST, False), (N.FAILED, True)])
def test_a_lost_or_failed_machine_is_terminated(state: NodeState, last_words: bool) -> None:
    after = scene(member(1), node(2, state, error="x"), record=job(1))
    (end,) = after.does(Terminate)
    assert (end.cloud, end.instance_id, end.node, end.read_console) == ("local", "i-2", name(2), last_words)
    assert (after.state(2), after.node(2).retry_at) == (N.TERMINATING, NOW + RULES.terminate_retry_s)


def test_a_failed_node_without_a_machine_is_gone() -> None:
    after = scene(member(1), node(2, N.FAILED, instance_id=""), record=job(1))
    assert (after.state(2), after.node(2).ended_at, after.actions) == (N.GONE, NOW, [])


@pytest.mark.parametrize(("retry_at", "busy", "asks"), [(NOW, False, 1), (NOW + 0.1, False, 0), (NOW, True, 0)])
def test_a_termination_is_repeated_until_a_listing_confirms_it(retry_at: float, busy: bool, asks: int) -> None:
    keys = frozenset({"end:i-2"} if busy else ())
    after = scene(member(1), node(2, N.TERMINATING, retry_at=retry_at), record=job(1), busy=keys)
    assert len(after.does(Terminate)) == asks
    assert after.node(2).retry_at == (NOW + RULES.terminate_retry_s if asks else retry_at)


DONE = Result("success", "", 1)


@pytest.mark.parametrize(
    ("inside", "since_s", "record", "messages", "ends"),
    [
        (True, 150.0, job(1), {}, False),
        (True, 150.1, job(1), {}, True),
        (False, 1.0, job(1), {}, False),  # a hint still names it: it may be in the next round by then
        (False, 1.0, job(1), {"hint": hint_of(1)}, True),
        (False, 1.0, job(1), {"hint": None}, True),
        (True, 1.0, job(1), {"hint": hint_of(1)}, False),
        (True, 1.0, job(1, J.CANCELLED), {}, True),
        (True, 1.0, job(1), {"round": None, "hint": hint_of(1)}, True),
        (True, 1.0, job(1), {"result": DONE}, True),
    ],
)
def test_a_draining_node_ends_once_it_has_left_or_its_time_is_up(
    inside: bool, since_s: float, record: JobRecord, messages: Any, ends: bool
) -> None:
    known = {"round": round_of(1, 2) if inside else round_of(1)} | messages
    after = scene(member(1), node(2, N.DRAINING, state_since=NOW - since_s), record=record, **known)
    assert (after.state(2) is N.TERMINATING) is ends
    assert ("i-2" in [each.instance_id for each in after.does(Terminate)]) is ends


SHARED = spec(storage=[{"mount": "/data", "nfs": "server:/data"}])


@pytest.mark.parametrize(
    ("which", "record", "unmounts"),
    [
        (node(2, N.DRAINING, state_since=NOW - 999), job(1, spec=SHARED), True),
        (node(2, N.DRAINING, state_since=NOW - 999), job(1), False),
        (node(2, N.DRAINING, state_since=NOW - 999, notice=NOTICE), job(1, spec=SHARED), False),
        (node(2, N.TERMINATING), job(1, spec=SHARED), False),
        (node(2, N.LOST), job(1, spec=SHARED), False),
        (node(2, N.SUSPECT, state_since=NOW), job(1, J.CANCELLED, spec=SHARED), False),
        (node(2, N.BOOTSTRAPPING, retry_at=NOW + 9), job(1, J.CANCELLED, spec=SHARED), False),
        (node(2, N.READY), job(1, J.CANCELLED, spec=SHARED), True),
        (node(2, N.MEMBER), job(1, J.CANCELLED, spec=SHARED), True),
        (node(2, N.DRAINING, state_since=NOW), job(1, J.CANCELLED, spec=SHARED), True),
    ],
)
def test_a_machine_that_works_and_has_time_unmounts_what_is_shared(
    which: NodeRecord, record: JobRecord, unmounts: bool
) -> None:
    after = scene(member(1), which, record=record)
    (end,) = [each for each in after.does(Terminate) if each.node == name(2)]
    assert (end.unmount_first is not None) is unmounts
    if end.unmount_first:
        assert (end.unmount_first[0].id, end.unmount_first[1].name) == (name(2), "job")


@pytest.mark.parametrize(
    ("state", "bootstrapped", "asked"),
    [(N.FAILED, True, True), (N.FAILED, False, False), (N.LOST, True, False), (N.TERMINATING, True, False)],
)
def test_the_log_of_a_bootstrapped_node_that_failed_is_read(state: NodeState, bootstrapped: bool, asked: bool) -> None:
    after = scene(member(1), node(2, state, bootstrapped=bootstrapped), record=job(1))
    (end,) = after.does(Terminate)
    assert (end.read_log_of is not None, end.read_console) == (asked, state is N.FAILED)
    assert end.read_log_of is None or end.read_log_of.id == name(2)


# -- fewer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "since", "released"),
    [
        # As many as before, one fewer, and too few for the first time, whatever happened to the records of the others.
        (2, NOW - RULES.gang.timeout_s, True),
        (2, NOW - RULES.gang.timeout_s + 1, False),
        (3, NOW - DAY_S, False),
        (0, 0.0, False),
    ],
)
def test_too_few_machines_are_released_once_they_were_so_many_for_long(
    known: int, since: float, released: bool
) -> None:
    record = job(4, J.WAITING, state_since=NOW - DAY_S, gang={"machines": known, "since": since})
    after = scene(node(1, N.READY), node(2, N.READY), record=replace(record, min_nodes=4), volatile=FULL)
    assert [after.state(each) is N.DRAINING for each in (1, 2)] == [released] * 2
    assert (after.job.gang.machines, after.job.gang.since) == (2, since if known == 2 else NOW)


@pytest.mark.parametrize("state", [N.PENDING, N.BOOTING, N.READY])
def test_machines_that_are_too_few_again_are_released_at_once_unless_they_could_work(state: NodeState) -> None:
    def released(ago_s: float) -> bool:
        capacity = FULL["capacity"].with_too_few("job", OFFER, 2, 4, NOW - ago_s)
        record = job(4, J.WAITING, state_since=NOW - 1, min_nodes=4, gang={"machines": 2, "since": NOW - 1})
        after = scene(node(1, state), node(2, N.BOOTING), record=record, volatile=FULL | {"capacity": capacity})
        return any(each.kind is EventKind.TOO_FEW_NODES for each in after.events)

    assert released(500.0) is (state is not N.READY)
    assert not released(4 * MIN_TOO_FEW_S + LATE_DECAY_S), "that is long ago"


@pytest.mark.parametrize(("low", "asked"), [(3, False), (2, True)])
def test_a_pool_that_had_too_few_is_asked_again_at_once_where_the_job_needs_no_more_now(
    *, low: int, asked: bool
) -> None:
    """As where its user scales it down: the machines that were given back would be enough."""
    capacity = CapacityMemory().with_too_few("job", OFFER, 2, 4, NOW - 1)
    record = job(4, J.WAITING, state_since=NOW - 1, min_nodes=low)
    after = scene(record=record, volatile=offering(OFFER) | {"capacity": capacity})
    assert bool(after.new) is asked


@pytest.mark.parametrize("refused", [True, False])
def test_what_is_given_back_for_want_of_room_is_remembered_where_its_pool_has_no_more_either(*, refused: bool) -> None:
    rules = Rules(queue=QueueRules(Cap(nodes=2)), leftovers_s=1e9)
    record = job(4, J.WAITING, state_since=NOW - DAY_S, min_nodes=4, gang={"machines": 2, "since": NOW - DAY_S})
    volatile = FULL if refused else offering(OFFER)
    after = scene(node(1, N.READY), node(2, N.READY), record=record, rules=rules, volatile=volatile)
    assert [after.state(each) for each in (1, 2)] == [N.DRAINING] * 2
    assert [each.machines for each in after.volatile.capacity.too_few.values()] == [2] * refused


def test_what_a_pool_had_of_too_few_is_remembered() -> None:
    record = job(4, J.WAITING, state_since=NOW - DAY_S, min_nodes=4, gang={"machines": 3, "since": NOW - DAY_S})
    after = scene(*(node(n, N.READY) for n in (1, 2, 3)), record=record, volatile=FULL)
    (few,) = after.volatile.capacity.too_few.values()
    assert (few.machines, few.until) == (3, NOW + 9 * TOO_FEW_S)


@pytest.mark.parametrize("read", [True, False])
def test_too_few_machines_are_released_also_where_nothing_is_offered_any_more_but_not_before_that_is_read(
    *,
    read: bool,
) -> None:
    record = job(4, J.WAITING, state_since=NOW - DAY_S, min_nodes=4, gang={"machines": 1, "since": NOW - DAY_S})
    after = scene(node(1, N.READY), record=record, volatile=offering(known=read))
    assert (after.state(1) is N.DRAINING) is read


@pytest.mark.parametrize(
    ("failures", "retry_at", "coming", "released"),
    [
        # Nothing failed, and one could be requested. The next try is later; in the past; one is being tried.
        (0, 0.0, False, False),
        (1, NOW + 60.0, False, True),
        (2, NOW - 1.0, False, False),
        (2, NOW - 1.0, True, True),
    ],
)
def test_too_few_machines_are_not_held_while_bootstraps_fail_and_the_one_that_is_tried_stays(
    *, failures: int, retry_at: float, coming: bool, released: bool
) -> None:
    few = {"machines": 1 + coming, "since": NOW - DAY_S}
    bootstraps = {"failures": failures, "retry_at": retry_at}
    record = job(4, J.WAITING, state_since=NOW - DAY_S, min_nodes=4, gang=few, bootstraps=bootstraps)
    tried = [node(2, N.BOOTSTRAPPING)] if coming else []
    after = scene(node(1, N.READY), *tried, record=record)
    assert (after.state(1) is N.DRAINING) is released
    assert not coming or after.state(2) is N.BOOTSTRAPPING


def test_enough_machines_are_not_counted_as_few() -> None:
    assert scene(member(1), member(2), record=job(2, gang={"machines": 1, "since": NOW - DAY_S})).job.gang.machines == 0


@pytest.mark.parametrize(
    ("wanted", "gone"),
    [
        (5, ()),
        (4, (5,)),  # what is not there yet, the newest first
        (3, (5, 4)),
        (2, (5, 4, 3)),  # then who waits outside
        (1, (5, 4, 3, 1)),  # then the members with the highest ranks
    ],
)
def test_the_least_useful_nodes_go_first(wanted: int, gone: tuple[int, ...]) -> None:
    coming = [node(4, N.BOOTSTRAPPING, retry_at=NOW + 9), node(5, N.BOOTSTRAPPING, retry_at=NOW + 9)]
    nodes = [member(1), member(2), node(3, N.READY), *coming]
    after = scene(*nodes, record=job(wanted), round=round_of(2, 1), hint=hint_of(2, 1, spares=[3]))
    assert after.released == set(names(*gone))
    assert after.state(1) is (N.DRAINING if 1 in gone else N.MEMBER), "a member has time to checkpoint"


@pytest.mark.parametrize("state", [N.PENDING, N.BOOTSTRAPPING, N.READY])
@pytest.mark.parametrize(
    ("ago_s", "high", "launched_as", "released"),
    [
        (59.0, 4, "", ()),
        (60.0, 4, "", (2, 3)),
        (59.0, 2, "", (3,)),  # never more than `max`
        (59.0, 4, "other-u-1", (2, 3)),  # a machine of an earlier job has had its minute
    ],
)
def test_surplus_machines_stay_for_the_minute_that_they_bill_anyway(
    state: NodeState, ago_s: float, high: int, launched_as: str, released: tuple[int, ...]
) -> None:
    new = [
        node(n, state, launched_at=NOW - ago_s, launched_as=launched_as, state_since=NOW - 1, retry_at=NOW + 9)
        for n in (2, 3)
    ]
    record = job(1, max_nodes=high)
    after = scene(member(1), *new, record=record, round=round_of(1), hint=hint_of(1))
    assert after.released == set(names(*released))
    again = scene(member(1), *new, record=replace(record, desired_nodes=3, max_nodes=4))
    assert (again.new, again.released) == ([], set()), "who scales up again has them"


def test_doomed_nodes_are_no_surplus() -> None:
    after = scene(member(1), member(2, notice=NOTICE, needs_replacement=True), member(3), record=job(2))
    assert after.released == set()


@pytest.mark.parametrize(
    ("state", "after_it"),
    [
        (N.READY, N.DRAINING),
        (N.MEMBER, N.DRAINING),
        (N.SUSPECT, N.TERMINATING),
        (N.BOOTSTRAPPING, N.TERMINATING),
    ],
)
def test_how_a_node_is_released_depends_on_its_state(state: NodeState, after_it: NodeState) -> None:
    which = node(2, state, state_since=NOW - 1, retry_at=NOW + 9)
    after = scene(
        member(1),
        which,
        record=job(1),
        round=round_of(1),
        hint=hint_of(1),
        members={name(1): launcher(1), name(2): launcher(2)}
        if state in {N.READY, N.MEMBER}
        else {name(1): launcher(1)},
    )
    assert after.state(2) is after_it
    assert bool(after.does(Terminate)) is (after_it is N.TERMINATING)
    ended = scene(which, record=job(1, J.CANCELLED))
    assert ended.state(2) is N.TERMINATING, "no checkpoint is needed any more"


def test_an_ended_job_keeps_no_node() -> None:
    states = [N.READY, N.MEMBER, N.SUSPECT, N.DRAINING, N.BOOTING, N.BOOTSTRAPPING]
    nodes = [node(n, state, state_since=NOW - 1, retry_at=NOW + 9) for n, state in enumerate(states, 1)]
    pending = node(9, N.PENDING)
    after = scene(*nodes, pending, node(10, N.REQUESTED), record=job(2, J.SUCCEEDED))
    assert {each.state for each in after.nodes.values()} == {N.TERMINATING, N.REQUESTED}
    assert [each.node.id for each in after.does(Launch)] == [name(10)], "it may have a machine: the lookup shows"
    assert after.new == []
    assert after.node(2).history[-1].reason == "the job has ended"


# -- what fits into one transaction ------------------------------------------------------------------------


def test_a_pool_that_takes_machines_and_grants_others_meanwhile_is_asked_for_as_many_as_it_granted() -> None:
    taken = [member(n, notice=replace(NOTICE, seen_at=NOW - 20 + n)) for n in range(1, 7)]
    granted = [node(n, N.PENDING, created_at=NOW - 15) for n in (11, 12, 13)]
    after = scene(*taken, *granted, node(14, N.REQUESTED), record=job(6, max_nodes=20))
    assert len(after.new) == 2
    gone = [replace(each, notice=replace(NOTICE, seen_at=NOW - 3)) for each in granted]
    assert scene(*taken, *gone, node(14, N.REQUESTED), record=job(6, max_nodes=20)).new == [], "what it takes again"


def test_a_plan_for_many_nodes_comes_in_parts_that_a_transaction_takes() -> None:
    taken: Any = {"has_joined": True, "needs_replacement": True, "retry_at": NOW + 9}
    with_tombstones = [node(n, N.TERMINATING, **taken) for n in range(1, 400)]
    for record, nodes in (
        (job(400, max_nodes=400), []),
        (job(1, J.CANCELLED), [member(n) for n in range(1, 400)]),
        (job(1), [member(n) for n in range(1, 400)]),
        (job(400, max_nodes=400), [node(n, N.LOST) for n in range(1, 400)]),
        (job(1, J.WAITING), with_tombstones),
        (job(1, pause={"at": NOW - 999}), [member(n) for n in range(1, 400)]),
    ):
        hint = hint_of(*(int(each.id[6:]) for each in nodes if each.state is N.MEMBER), hold=bool(record.pause.at))
        after = scene(*nodes, record=record, hint=hint, rules=Rules(alerts=True, leftovers_s=1e9))
        commit = after.commit
        writes = len(commit.nodes) + len(commit.events) + len(commit.alerts) + len(commit.put_keys) + 1
        assert 60 < writes <= 128, record


# -- how many machines there may be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ([], 2),
        ([N.SUSPECT], 2),
        ([N.SUSPECT, N.TERMINATING], 2),
        ([N.SUSPECT, N.TERMINATING, N.DRAINING], 1),
        ([N.SUSPECT, N.TERMINATING, N.DRAINING, N.SUSPECT], 0),
    ],
)
def test_machines_beyond_max_are_no_more_than_desired_whatever_they_say_of_themselves(
    there: list[NodeState], asked: int
) -> None:
    doomed = [node(n, state, notice=NOTICE, retry_at=NOW + 9) for n, state in enumerate(there, 1)]
    after = scene(*doomed, record=job(2, max_nodes=2))
    assert len(after.new) == asked


def test_a_refused_request_is_repeated_only_where_one_more_machine_may_come() -> None:
    refused = node(9, N.REQUESTED, error="throttled", retry_at=NOW - 1)
    unanswered = node(9, N.REQUESTED, retry_at=NOW - 1)
    doomed = [node(n, N.SUSPECT, notice=NOTICE) for n in range(1, 5)]
    for count, request, launches in ((3, refused, 1), (4, refused, 0), (4, unanswered, 1)):
        after = scene(*doomed[:count], request, record=job(2, max_nodes=2))
        assert [each.node.id for each in after.does(Launch)] == [name(9)] * launches


def test_a_request_that_was_refused_counts_for_no_machine() -> None:
    assert machine_room(draft_of(member(1), member(2), record=job(2, max_nodes=2, spare_nodes=1))) == 3
    assert machine_room(draft_of(node(1, N.REQUESTED), record=job(1, max_nodes=1))) == 1
    assert machine_room(draft_of(node(1, N.REQUESTED, error="full"), record=job(1, max_nodes=1))) == 2
