"""Admission: who may have how much, in which order, and what the others wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.wire import Notice

from provisioners.base import InstanceState, NoCapacity, Scope
from supervisor.api.app import create_app
from supervisor.api.jobs.queue import queue_rows
from supervisor.api.quote import Quote, check_admissible, check_prices_known
from supervisor.api.security.unix_socket import PEER
from supervisor.cli.show import show_queue
from supervisor.config import parse_config
from supervisor.errors import CommandRefusedError, UsageError
from supervisor.features.queue.rule import claim_of
from supervisor.market.admission import Admission, Amount, Cap, Claim, QueueRules, admit
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState, NoticeRecord, Transition
from supervisor.planner.actions import Launch, LaunchDone
from supervisor.planner.plan import plan
from supervisor.planner.world import Rules
from tests.sim.harness import empty_world, service, submit
from tests.unit.scene import (
    FULL,
    KEYS,
    NONE_KNOWN,
    NOW,
    OFFER,
    as_job,
    job,
    listing,
    machine,
    member,
    name,
    node,
    offering,
    scene,
    spec,
    view,
    world_of,
)
from tests.unit.scene import J as States

HOLD_S = 900.0


def claim(name: str, low: int = 1, wanted: int = 0, has: int = 0, **more: Any) -> Claim:
    known: dict[str, Any] = {"owner": "ann", "priority": 0, "submitted_at": 0.0, "waiting_since": 0.0}
    node = more.pop("node", Amount(1, 1, 1.0))
    known |= {"kept": node.times(has), "node": node, "reserved": has >= low, "pausable": True}
    return Claim(name, min_nodes=low, wanted=wanted or low, **(known | more))


def nodes(claims: list[Claim], now: float = 0.0, **rules: Any) -> dict[str, int]:
    return {name: each.nodes for name, each in admit(claims, QueueRules(**rules), now, HOLD_S).items()}


def test_a_higher_priority_comes_first_then_the_user_who_has_least_then_the_older_job() -> None:
    claims = [
        claim("has", has=2, owner="ann", wanted=2),
        claim("anns", owner="ann", submitted_at=1.0),
        claim("late", owner="bob", submitted_at=9.0),
        claim("later", owner="bob", submitted_at=10.0),
        claim("urgent", owner="ann", submitted_at=20.0, priority=1),
    ]
    found = [nodes(claims, cluster=Cap(gpus=2 + count)) for count in (1, 2, 3, 4)]
    began = [[name for name, count in each.items() if count and name != "has"] for each in found]
    assert began == [
        ["urgent"],
        ["late", "urgent"],
        ["late", "later", "urgent"],
        ["anns", "late", "later", "urgent"],
    ]


def test_a_gang_gets_all_that_it_needs_or_nothing_and_others_may_use_the_rest() -> None:
    claims = [claim("gang", 4, submitted_at=1.0), claim("small", 1, submitted_at=2.0)]
    assert nodes(claims, cluster=Cap(nodes=3)) == {"gang": 0, "small": 1}
    assert nodes(claims, cluster=Cap(nodes=4)) == {"gang": 4, "small": 0}
    assert nodes(claims, now=HOLD_S, cluster=Cap(nodes=3)) == {"gang": 0, "small": 1}, "it could never start"
    claims.append(claim("runs", has=1))
    assert nodes(claims, now=HOLD_S - 1, cluster=Cap(nodes=4)) == {"gang": 0, "small": 1, "runs": 1}
    assert nodes(claims, now=HOLD_S, cluster=Cap(nodes=4)) == {"gang": 0, "small": 0, "runs": 1}


def test_jobs_that_move_share_what_is_left_once_all_others_have_what_they_want() -> None:
    def moves(name: str, **more: Any) -> Claim:
        return claim(name, 2, 2, 2, **({"ahead": 4, "ahead_node": Amount(1, 1, 2.0)} | more))

    def ahead(*claims: Claim, **rules: Any) -> list[int]:
        return [each.ahead for each in admit(claims, QueueRules(**rules), 0.0, HOLD_S).values()]

    first, second = moves("first"), moves("second", submitted_at=1.0)
    assert ahead(first, second, cluster=Cap(nodes=10)) == [4, 2]
    assert ahead(first, second, job=Cap(nodes=5)) == [3, 3]
    assert ahead(first, second, cluster=Cap(usd_per_hour=15.0)) == [4, 1]
    assert ahead(first, second, claim("other", wanted=3, has=1), cluster=Cap(nodes=10)) == [3, 0, 0]
    assert ahead(first, second, claim("waits", 7), cluster=Cap(nodes=10)) == [0, 0, 0], "it is for those that wait"
    under_way = moves("first", moving=Amount(3, 3), ahead=1)
    assert ahead(under_way, second, cluster=Cap(nodes=8)) == [1, 0]


def test_the_min_of_all_comes_before_the_desired_of_any_which_users_share() -> None:
    claims = [claim("a", 1, 8), claim("b", 1, 8, submitted_at=1.0), claim("c", 1, 8, owner="bob", submitted_at=2.0)]
    assert nodes(claims, cluster=Cap(nodes=3)) == {"a": 1, "b": 1, "c": 1}
    assert nodes(claims, cluster=Cap(nodes=8)) == {"a": 3, "b": 1, "c": 4}
    assert nodes([claim("pairs", 2, 8, step=2)], cluster=Cap(nodes=5)) == {"pairs": 4}
    waiting = [claim("a", 1, 8, has=2), claim("b", 4, submitted_at=1.0)]
    assert nodes(waiting, cluster=Cap(nodes=5)) == {"a": 2, "b": 0}, "what b waits for is left for it"


def test_a_job_that_trains_gets_back_what_it_lost_before_others_begin() -> None:
    lost = claim("lost", 2, has=1, reserved=True, submitted_at=5.0)
    assert nodes([claim("new", 1, priority=9), lost], cluster=Cap(nodes=2)) == {"new": 0, "lost": 2}


@pytest.mark.parametrize(
    ("rules", "reason", "starts_when"),
    [
        (
            {"user": Cap(gpus=8)},
            "needs 4 × V100; 2 of 8 are left in ann's limit",
            "other jobs of ann release 2 GPUs, or the operator raises queue.user gpus",
        ),
        (
            {"users": {"ann": Cap(nodes=7)}},
            "needs 4 nodes; 1 of 7 is left in ann's limit",
            "other jobs of ann release 3 nodes, or the operator raises queue.users.ann nodes",
        ),
        (
            {"cluster": Cap(usd_per_hour=9.0)},
            "needs $4.00 per hour; $3.00 of $9.00 is left in the cluster's limit",
            "other jobs release $1.00 per hour, or the operator raises queue.cluster usd_per_hour",
        ),
        (
            {"job": Cap(nodes=3)},
            "needs 4 nodes; 3 of 3 are left in the limit of one job",
            "the operator raises queue.job nodes",
        ),
    ],
)
def test_a_job_that_waits_says_its_place_why_and_what_would_let_it_start(
    rules: dict[str, Any], reason: str, starts_when: str
) -> None:
    claims = [
        claim("runs", 6, has=6),
        claim("waits", 4, submitted_at=1.0, kind="V100"),
        claim("more", 5, submitted_at=2.0),
    ]
    found = admit(claims, QueueRules(**rules), 0.0, HOLD_S)["waits"]
    assert (found.nodes, found.place, found.reason, found.starts_when) == (0, 1, reason, starts_when)
    assert admit(claims, QueueRules(**rules), 0.0, HOLD_S)["more"].place == 2


def test_a_machine_without_a_price_is_beyond_every_limit_of_dollars() -> None:
    claims = [claim("job", node=Amount(1, 1, None)), claim("other", submitted_at=1.0)]
    found = admit(claims, QueueRules(Cap(usd_per_hour=5.0)), HOLD_S, HOLD_S)
    assert (found["job"].nodes, found["job"].reason) == (
        0,
        "no price is known for its machines, and the cluster's limit is in dollars",
    )
    assert found["other"] == Admission(1, 1.0, needs_price=True)


def test_jobs_of_lower_priorities_pause_where_that_makes_room_and_no_more_of_them_than_needed() -> None:
    low = [
        claim(name, 2, has=2, priority=p, submitted_at=t)
        for name, p, t in (("a", 0, 1.0), ("b", 0, 2.0), ("c", -5, 0.0))
    ]
    high = claim("high", 3, priority=5, submitted_at=9.0)
    rules = QueueRules(Cap(nodes=6), preempt=True)
    assert {name: each.pause_for for name, each in admit([*low, high], rules, 0.0, HOLD_S).items()} == {
        "a": "",
        "b": "high",
        "c": "high",
        "high": "",
    }
    pausing = [replace(each, leaving=True, wanted=0) if each.job in {"b", "c"} else each for each in low]
    assert not any(each.pause_for for each in admit([*pausing, high], rules, 0.0, HOLD_S).values())
    kept = [replace(each, pausable=False) for each in low]
    assert not any(each.pause_for for each in admit([*kept, high], rules, 0.0, HOLD_S).values())
    alike = [*low, replace(high, priority=-5)]
    assert not any(each.pause_for for each in admit(alike, rules, 0.0, HOLD_S).values())
    never = [*low, replace(high, min_nodes=7, wanted=7)]
    assert not any(each.pause_for for each in admit(never, rules, 0.0, HOLD_S).values())


def test_only_jobs_pause_whose_room_the_other_can_use_and_it_is_left_for_that_one() -> None:
    claims = [
        claim("anns", 2, has=2, submitted_at=1.0),
        claim("bobs", 2, has=2, priority=-5, owner="bob", submitted_at=2.0),
        claim("small", 1, owner="cid", submitted_at=3.0),
        claim("high", 2, priority=5, submitted_at=9.0),
    ]
    rules = QueueRules(Cap(nodes=6), Cap(nodes=2), preempt=True)
    pausing = {name: each.pause_for for name, each in admit(claims, rules, 0.0, HOLD_S).items() if each.pause_for}
    assert pausing == {"anns": "high"}, "ann's limit is reached, which bob's job has no part in"
    claims[0] = replace(claims[0], leaving=True, wanted=0)
    rules = QueueRules(Cap(nodes=5), preempt=True)
    assert nodes(claims, cluster=Cap(nodes=5)) == {"anns": 2, "bobs": 2, "small": 1, "high": 0}
    found = admit(claims, rules, 0.0, HOLD_S)
    assert (found["small"].nodes, found["small"].pause_for, found["bobs"].pause_for) == (0, "", "")
    assert found["small"].reason == "job high waits first for what is left in the cluster's limit"


def test_what_a_waiting_job_costs_to_decide_does_not_grow_with_the_others_that_wait() -> None:
    counted = 0

    class Counted(Amount):
        def times(self, count: int) -> Amount:
            nonlocal counted
            counted += 1
            return super().times(count)

        def plus(self, other: Amount) -> Amount:
            nonlocal counted
            counted += 1
            return super().plus(other)

    def decided(waiting: int) -> int:
        nonlocal counted
        counted = 0
        claims = [claim(f"waits-{number}", kept=Counted(), going=Counted()) for number in range(waiting)]
        assert nodes([claim("has", has=4, wanted=4), *claims], cluster=Cap(nodes=4), preempt=True)["has"] == 4
        return counted

    assert decided(200) == 2 * decided(100)


def test_jobs_that_no_cloud_lets_ask_come_last_and_keep_nothing_for_themselves_that_others_need() -> None:
    refused = claim("refused", 2, priority=9, can_ask=False)
    able = claim("able", 2, 4, submitted_at=1.0)
    assert nodes([refused, able], cluster=Cap(nodes=3)) == {"refused": 0, "able": 2}, "it still waits before `desired`"
    assert nodes([refused, able], cluster=Cap(nodes=5)) == {"refused": 2, "able": 3}
    late = claim("late", 1, submitted_at=2.0)
    assert nodes([refused, able, late], now=HOLD_S, cluster=Cap(nodes=3)) == {"refused": 0, "able": 2, "late": 1}
    low = claim("low", 2, has=2)
    found = admit([refused, low], QueueRules(Cap(nodes=2), preempt=True), HOLD_S, HOLD_S)
    assert not found["low"].pause_for


def test_a_job_that_waits_for_its_users_limit_keeps_nothing_from_others() -> None:
    claims = [
        claim("runs", has=3),
        claim("waits", 3, submitted_at=1.0),
        claim("bobs", 2, owner="bob", submitted_at=2.0),
    ]
    found = admit(claims, QueueRules(Cap(nodes=5), Cap(nodes=4)), HOLD_S, HOLD_S)
    assert (found["waits"].nodes, found["bobs"].nodes) == (0, 2)
    assert found["waits"].reason == "needs 3 nodes; 1 of 4 is left in ann's limit"


caps = st.builds(
    Cap,
    nodes=st.none() | st.integers(0, 12),
    gpus=st.none() | st.integers(0, 24),
    usd_per_hour=st.none() | st.floats(0.5, 20.0),
)


@st.composite
def some_claims(draw: Any) -> list[Claim]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        low = draw(st.integers(1, 4))
        wanted = low + draw(st.integers(0, 4))
        node = Amount(1, draw(st.integers(0, 3)), draw(st.none() | st.floats(0.1, 3.0)))
        has = draw(st.integers(0, wanted))
        more = {"priority": draw(st.integers(-1, 1)), "owner": draw(st.sampled_from(["ann", "bob"]))}
        more |= {"submitted_at": draw(st.floats(0, 10)), "waiting_since": draw(st.floats(0, 2000))}
        more |= {"going": node.times(draw(st.integers(0, 2)))}
        found.append(claim(f"job-{number}", low, wanted, has, node=node, **more))
    return found


@given(some_claims(), caps, caps, caps, st.booleans())
def test_nothing_goes_beyond_a_limit_and_no_gang_gets_a_part(
    claims: list[Claim], cluster: Cap, user: Cap, each_job: Cap, preempt: bool
) -> None:
    rules = QueueRules(cluster, user, job=each_job, preempt=preempt)
    found = admit(claims, rules, 2000.0, HOLD_S)
    assert found == admit(list(reversed(claims)), rules, 2000.0, HOLD_S), "the order of the input decides nothing"
    before: dict[Any, Amount] = {}
    after: dict[Any, Amount] = {}
    scopes = {}
    for each in claims:
        granted = found[each.job].nodes - each.kept.nodes
        assert granted >= 0
        assert found[each.job].nodes <= max(each.wanted, each.kept.nodes)
        assert not granted or found[each.job].nodes >= each.min_nodes, "all that it needs to train, or nothing"
        assert (found[each.job].nodes < each.min_nodes) == bool(found[each.job].place)
        for scope in rules.scopes(each.owner, each.job):
            scopes[scope.id] = scope
            before[scope.id] = before.get(scope.id, Amount()).plus(each.kept).plus(each.going)
            after[scope.id] = after.get(scope.id, Amount()).plus(each.kept).plus(each.going)
            after[scope.id] = after[scope.id].plus(each.node.times(granted))
    for key, scope in scopes.items():
        use, old = after[key], before[key]
        if use == old:
            continue
        assert scope.cap.nodes is None or use.nodes <= max(scope.cap.nodes, old.nodes)
        assert scope.cap.gpus is None or use.gpus <= max(scope.cap.gpus, old.gpus)
        if scope.cap.usd_per_hour is not None:
            assert (use.usd_per_hour or 0) <= max(scope.cap.usd_per_hour, old.usd_per_hour or 0) + 1e-6


# -- in a plan ---------------------------------------------------------------------------------------------


def limited(**caps: Cap) -> Rules:
    return Rules(leftovers_s=1e9, queue=QueueRules(**caps))  # type: ignore[arg-type]


def test_no_more_nodes_are_requested_than_are_left_and_the_sentence_says_why() -> None:
    after = scene(member(1), record=job(4), rules=limited(cluster=Cap(nodes=2)))
    assert len(after.new) == 1
    assert "needs 1 node; 0 of 2 are left in the cluster's limit" in after.sentence
    after = scene(record=job(2, States.QUEUED, min_nodes=2), rules=limited(cluster=Cap(nodes=1)))
    assert (after.new, after.job.state) == ([], JobState.QUEUED)
    assert "number 1 in the queue: needs 2 nodes; 1 of 1 is left in the cluster's limit" in after.sentence


def test_a_job_claims_what_it_keeps_and_pays_for_all_that_it_has() -> None:
    record = job(3, spec=spec(resources={"gpu": "V100", "gpus_per_node": 2}), owner="ann")
    known = view(record, [member(1), member(2, drain_requested=True)])
    found = claim_of(world_of(known, rules=limited(cluster=Cap(nodes=9))), known, NOW)
    assert (found.kept, found.node, found.kind) == (Amount(1, 2, 1.0), Amount(1, 2, 0.5), "V100")
    assert (found.wanted, found.reserved, found.owner) == (3, True, "ann")
    assert found.going == Amount(1, 2), "it bills until it has gone"


@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.DRAINING, NodeState.LOST, NodeState.TERMINATING])
def test_what_will_leave_counts_until_it_has_gone(state: NodeState) -> None:
    notice = NoticeRecord(NOW + 60, NOW - 5, "aws")
    leaves = node(2, state, notice=notice, retry_at=NOW + 9)
    running, ending = machine(2), machine(2, InstanceState.STOPPING)
    for most, listed, asked in ((2, running, 0), (3, running, 1), (2, ending, 1)):
        known = listing(machine(1), listed)
        after = scene(member(1), leaves, record=job(2), rules=limited(cluster=Cap(nodes=most)), listed=known)
        assert len(after.new) == asked


def test_a_node_of_which_it_is_known_only_now_that_it_will_leave_gives_no_room_away() -> None:
    said = {name(2): Notice(name(2), NOW + 60, NOW - 1, "aws")}
    after = scene(member(1), member(2), notices=said, record=job(2), rules=limited(cluster=Cap(nodes=2)))
    assert after.node(2).doomed
    assert after.new == []


def test_no_job_pauses_for_room_that_is_about_to_be_free() -> None:
    low = claim("low", 2, has=2)
    high = claim("high", 2, has=1, priority=5, reserved=True, going=Amount(1, 1))
    rules = QueueRules(Cap(nodes=4), preempt=True)
    found = admit([low, high], rules, 0.0, HOLD_S)
    assert (found["high"].nodes, found["low"].pause_for) == (1, "")
    assert admit([low, replace(high, going=Amount())], rules, 0.0, HOLD_S)["high"].nodes == 2


def claimed(record: JobRecord, *members: NodeRecord, volatile: Mapping[str, Any] | None = None) -> Claim:
    known = view(record, members)
    return claim_of(world_of(known, rules=limited(cluster=Cap(nodes=9)), volatile=volatile), known, NOW)


def test_what_a_job_lost_is_kept_for_it_and_nothing_for_one_that_begins_again() -> None:
    trained = (Transition(NOW - 9, States.RUNNING, States.WAITING, "1 node left, 2 needed"),)
    lost = job(2, States.WAITING, min_nodes=2, history=trained, state_since=NOW - 9)
    assert claimed(lost).reserved
    assert not claimed(replace(lost, state_since=NOW - 9999)).reserved
    resumed = job(2, States.STARTING, min_nodes=2, state_since=NOW - 9, limits={"trained_s": 99.0})
    assert not claimed(resumed).reserved, "who pauses and resumes does not come first by that"
    assert claimed(resumed, member(1)).reserved


def test_a_job_may_ask_until_all_its_offers_are_refused_or_its_bootstraps_fail() -> None:
    queued = job(2, States.QUEUED, min_nodes=2)
    assert claimed(queued).can_ask
    assert not claimed(queued, volatile=FULL).can_ask
    assert claimed(queued, volatile=FULL | NONE_KNOWN).can_ask, "its offers are not read yet"
    assert not claimed(replace(queued, bootstraps=replace(queued.bootstraps, retry_at=NOW + 60))).can_ask
    assert claimed(job(1), member(1), volatile=FULL).can_ask, "it wants no more"


def test_a_job_that_was_paused_for_another_is_not_paused_again_at_once() -> None:
    assert claimed(job(1), member(1)).pausable
    assert not claimed(job(1, queue={"displaced_at": NOW - 60}), member(1)).pausable
    assert claimed(job(1, queue={"displaced_at": NOW - 3600}), member(1)).pausable


def test_no_machine_is_requested_that_has_more_gpus_than_were_counted() -> None:
    small, large = replace(OFFER, gpus=1), replace(OFFER, instance_type="large", gpus=4, usd_per_hour=0.6)
    asked = node(1, NodeState.REQUESTED, offer=small)
    refused = LaunchDone(asked.id, small, NoCapacity(Scope.TYPE_IN_ZONE, 60.0, "no more small"))
    for cap, requested in ((None, ["large"]), (9, []), (1, [])):
        after = scene(
            asked,
            record=job(1, States.STARTING),
            rules=limited(cluster=Cap(nodes=9, gpus=cap)),
            volatile=offering(small, large),
            outcomes=[refused],
        )
        assert [each.offer.instance_type for each in after.new] == requested


def test_a_job_that_goes_on_and_finds_the_limit_reached_says_so() -> None:
    after = scene(record=job(2, States.STARTING, min_nodes=2), rules=limited(cluster=Cap(nodes=1)))
    assert after.job.reason == "the operator's limits leave too little: `spotsupctl queue` says more"


def test_a_job_whose_claim_cannot_be_made_requests_nothing_and_keeps_no_other_from_it() -> None:
    broken = view(job(4), [member(1)])
    other = as_job(view(job(4), [member(1)]), "other")
    world = world_of(broken, other, rules=limited(cluster=Cap(nodes=9)))
    none = cast("tuple[Any, ...]", (None,))
    offers = {
        "other": world.volatile.offers["job"],
        "job": replace(world.volatile.offers["job"], offers=none),
    }
    decided, _ = plan(replace(world, volatile=replace(world.volatile, offers=offers)), {}, KEYS, NOW)
    launches = [
        action.node.job for commit in decided.commits for action in commit.actions if isinstance(action, Launch)
    ]
    assert launches == ["other"] * 3
    assert "(what job claims)" in decided.undecided


# -- what people see ---------------------------------------------------------------------------------------


def test_the_queue_lists_jobs_in_order_with_what_each_needs_and_what_would_let_it_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    large = spec(resources={"gpu": "V100", "gpus_per_node": 4}, priority=3)
    queued = as_job(view(job(2, States.QUEUED, min_nodes=2, spec=large, owner="ann"), []), "large")
    displaced = as_job(
        view(job(2, States.PAUSED, pause={"by": "priority"}, queue={"displaced_by": "large"}), []), "small"
    )
    starting = as_job(view(job(2, States.STARTING), []), "starts")
    views = [displaced, queued, starting, as_job(view(job(1), [member(1)]), "runs")]
    admissions = {
        "large": Admission(0, place=1, reason="needs 8 × V100; 2 of 8 are left", starts_when="6 are released"),
        "starts": Admission(2),
        "small": Admission(0, place=2, reason="?", starts_when="?"),
    }
    rows = queue_rows(views, admissions, lambda name: f"{name} asks", NOW)
    assert [(row["place"], row["job"], row["reason"]) for row in rows] == [
        (None, "starts", "starts asks"),
        (1, "large", "needs 8 × V100; 2 of 8 are left"),
        (2, "small", "?"),
    ]
    assert (rows[1]["nodes"], rows[1]["gpus"], rows[1]["gpu"], rows[1]["owner"]) == (2, 8, "V100", "ann")
    assert rows[1]["starts_when"] == "6 are released"
    (alone,) = queue_rows([displaced], {}, lambda _: "", NOW)
    assert alone["reason"] == "large has a higher priority, and there is too little for both; it goes on by itself"
    show_queue(rows)
    shown = capsys.readouterr().out
    assert "2 nodes, 8 × V100" in shown
    assert shown.index("starts asks") < shown.index("6 are released")
    show_queue([])
    assert capsys.readouterr().out == "no job waits\n"


# -- at submit ---------------------------------------------------------------------------------------------


def test_limits_are_read_from_the_configuration() -> None:
    tables = {"cluster": {"gpus": 64}, "user": {"nodes": 4}, "users": {"ann": {"usd_per_hour": 2.5}}, "preempt": True}
    rules = parse_config({"queue": tables}, "spotsupd.toml").rules().queue
    assert rules.cluster == Cap(gpus=64)
    assert [each.cap for each in rules.scopes("ann", "job")[1:2]] == [Cap(usd_per_hour=2.5)]
    assert [each.cap for each in rules.scopes("bob", "job")[1:2]] == [Cap(nodes=4)]
    assert rules.preempt
    with pytest.raises(UsageError, match="gpu"):
        parse_config({"queue": {"cluster": {"gpu": 3}}}, "spotsupd.toml")


def test_a_job_of_too_high_a_priority_or_without_a_price_for_a_limit_is_refused() -> None:
    with pytest.raises(CommandRefusedError, match=r"its priority is 9, and queue.max_priority of spotsupd.toml is 5"):
        check_admissible(spec(priority=9), "ann", QueueRules(max_priority=5))
    check_admissible(spec(priority=5), "ann", QueueRules(max_priority=5))
    unpriced = Quote(1, (replace(OFFER, usd_per_hour=None),), known=True, warnings=())
    check_prices_known(unpriced, QueueRules(Cap(nodes=1)))
    with pytest.raises(CommandRefusedError, match="cannot be kept: no price is known for small in region-1"):
        check_prices_known(unpriced, QueueRules(Cap(usd_per_hour=1.0)))


def test_the_api_serves_the_queue() -> None:
    world = empty_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    submit(world, "job", 2, 2, 2, owner="ann")
    app = create_app(service(world), lambda: world.daemon.loop.status, world.clock, "0")

    async def read() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=(PEER, 0)), base_url="http://spotsupd"
        ) as client:
            found: list[dict[str, Any]] = (await client.get("/v1/queue")).json()
            return found

    world.run(30.0)
    (row,) = asyncio.run(read())
    assert (row["job"], row["owner"], row["nodes"]) == ("job", "ann", 2)
    assert "no capacity" in row["reason"]
