"""Who is in the next round: properties over generated views, and case by case."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from spotsup_trainer.rendezvous.membership import (
    Broken,
    Close,
    Finish,
    Over,
    Stay,
    Wait,
    Yield,
    has_finished,
    is_behind,
    next_round,
    standing,
    target,
    writer,
)
from spotsup_trainer.rendezvous.view import Rules, View, bounds, live, unhealthy
from spotsup_trainer.wire import Member, Result

from tests.unit.members import LONG_AFTER, close, failure, hint, member, round_of, view

NODES = "abcdef"


@st.composite
def views(draw: st.DrawFn) -> View:
    """Any view, also one that no honest history leads to."""
    current = None
    if draw(st.booleans()):
        chosen = draw(st.lists(st.sampled_from(NODES), unique=True, min_size=1))
        current = round_of(chosen, number=draw(st.integers(1, 3)), app_failures=draw(st.integers(0, 2)))
    number = current.number if current else 0
    members = []
    for node in draw(st.sets(st.sampled_from(NODES))):
        failed = draw(st.sampled_from([None, failure(number)]))
        members.append(
            member(
                node,
                draw(st.sampled_from(["waiting", "waiting", "running", "leaving", "done", "stopping"])),
                draw(st.integers(0, number)),
                incarnation=f"{node}{draw(st.sampled_from('112'))}",
                failure=failed,
                parked=draw(st.booleans()),
                stalled_since=draw(st.sampled_from([0.0, 5.0])),
                unhealthy=draw(st.sampled_from(["", "", "", "Xid 79"])),
            )
        )
    minimum, more = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    drawn = None
    if draw(st.booleans()):
        named = "".join(draw(st.permutations(NODES)))
        end = draw(st.integers(0, 6))
        drawn = hint(named[:end], minimum, minimum + more, spares=named[end : end + draw(st.integers(0, 3))])
    return view(
        *members,
        rules=Rules(minimum, minimum + more, app_failures=draw(st.sampled_from([None, 0, 1]))),
        round=current,
        hint=drawn,
        tombstones=frozenset(draw(st.sets(st.sampled_from(NODES), max_size=2))),
        result=draw(st.sampled_from([None, None, None, Result("failure", "cancelled", 1)])),
        changed_at=draw(st.sampled_from([0.0, 10.0])),
        grace_until=draw(st.sampled_from([-math.inf, 20.0])),
    )


@given(views(), st.floats(0, 30))
def test_a_round_is_never_too_big_nor_too_small_and_has_only_those_who_wait_for_it(of: View, now: float) -> None:
    decision = next_round(of, now, 5.0)
    if not isinstance(decision, Close):
        return
    formed = decision.round
    minimum, maximum = bounds(of)
    nodes = formed.nodes()
    assert minimum <= len(nodes) <= maximum
    assert len(set(nodes)) == len(nodes)
    assert of.result is None
    assert formed.number > (of.round.number if of.round else 0)
    for chosen in formed.members:
        found = of.members[chosen.node]
        assert chosen.node not in of.tombstones
        assert (found.state, found.incarnation) == ("waiting", chosen.incarnation)
        assert of.hint is None or chosen.node in (*of.hint.members, *of.hint.spares)
    assert of.hint is None or len(nodes) <= len(of.hint.members)


@given(views())
def test_survivors_keep_their_order_and_newcomers_come_after_them(of: View) -> None:
    chosen = [m.node for m in target(of)]
    before = of.round.nodes() if of.round else ()
    survivors = [node for node in chosen if node in before]
    assert survivors == [node for node in before if node in survivors]
    newcomers = [node for node in chosen if node not in before]
    assert chosen == survivors + newcomers
    order: Iterable[str] = (*of.hint.members, *of.hint.spares) if of.hint else sorted(NODES)
    assert newcomers == [node for node in order if node in newcomers]


@given(views())
def test_survivors_keep_their_ranks_against_newcomers(of: View) -> None:
    chosen = {m.node for m in target(of)}
    before = set(of.round.nodes()) if of.round else set()
    going = {n for n, m in live(of).items() if m.state in {"leaving", "stopping"}} | unhealthy(of)
    left_out = live(of).keys() - going - chosen
    if of.hint is not None:
        left_out &= set(of.hint.members)
    assert not (left_out & before and chosen - before)


@given(views(), st.permutations(NODES), st.integers(1, 6), st.floats(20, 30))
def test_a_round_closes_when_all_hinted_members_wait(of: View, order: list[str], count: int, now: float) -> None:
    hinted = "".join(order[:count])
    expected = set(hinted) - of.tombstones
    assume(expected)
    ready = replace(
        of,
        members={node: member(node, last_round=9) for node in expected},
        hint=hint(hinted, len(expected)),
        rules=replace(of.rules, app_failures=None),
        result=None,
        changed_at=now,
    )
    assert set(close(ready, now).nodes()) == expected


@given(views(), st.floats(0, 30))
def test_failures_are_counted_only_where_the_same_members_all_wait_again(of: View, now: float) -> None:
    decision = next_round(of, now, 0.0)
    before = of.round.app_failures if of.round else 0
    if isinstance(decision, Close):
        after = decision.round.app_failures
        same = of.round is not None and {(m.node, m.incarnation) for m in decision.round.members} == {
            (m.node, m.incarnation) for m in of.round.members
        }
        blamed = [m for m in of.members.values() if m.failure and of.round and m.failure.round == of.round.number]
        assert after == before + (1 if same and any(m.node in decision.round.nodes() for m in blamed) else 0)
        assert not unhealthy(of) & set(decision.round.nodes())
        assert of.rules.app_failures is None or after == before or after <= of.rules.app_failures
    if isinstance(decision, Finish):
        assert of.rules.app_failures is not None
        assert before + 1 > of.rules.app_failures


@given(views(), st.floats(0, 30))
def test_no_member_yields_for_less_than_the_minimum_unless_a_member_leaves(of: View, now: float) -> None:
    current = of.round or round_of("ab")
    decision = standing(of, current, current.nodes()[0], now)
    left = {"leaving", "waiting", "stopping"}
    leaving = [m for m in of.members.values() if m.state in left and m.node in current.nodes()]
    if isinstance(decision, Yield) and not leaving:
        assert len(target(of)) >= bounds(of)[0]
        assert {m.node for m in target(of)} != set(current.nodes())


def test_without_a_hint_a_round_closes_after_nothing_changed_for_a_while() -> None:
    of = view(member("a"), member("b"), changed_at=10.0)
    assert next_round(of, 10.1, 0.0) == Wait("more nodes may join", 10.3)
    assert close(of, 10.31).nodes() == ("a", "b")


def test_a_full_round_closes_at_once() -> None:
    assert close(view(member("a"), member("b"), rules=Rules(1, 2), changed_at=10.0), now=10.0).nodes() == ("a", "b")


def test_who_writes_first_is_known_while_the_others_still_stop() -> None:
    current = round_of("cab")
    of = view(member("a", last_round=1), member("b", "running", last_round=1), member("c", last_round=1), round=current)
    waits = next_round(of, LONG_AFTER, 0.0)
    assert waits == Wait("b must stop first")
    assert writer(waits) == "c"
    assert writer(Close(round_of("ba"))) == "b"
    assert writer(next_round(view(), LONG_AFTER, 0.0)) == writer(Finish(Result("success", "", 1))) == ""


def test_a_hinted_member_that_has_not_come_is_waited_for_a_second_but_not_one_that_was_lost() -> None:
    of = view(member("a"), member("b"), hint=hint("abc"), changed_at=10.0)
    assert next_round(of, 10.9, 0.0) == Wait("more nodes may join", 11.0)
    assert close(of, 11.0).nodes() == ("a", "b")
    assert close(replace(of, tombstones=frozenset("c")), 10.0).nodes() == ("a", "b")
    stopped = view(member("a", last_round=1), member("b", last_round=1), hint=hint("abc"), changed_at=10.0)
    assert close(replace(stopped, round=round_of("abc")), 10.0).nodes() == ("a", "b")


def test_a_running_member_is_waited_for_without_limit() -> None:
    of = view(member("a", last_round=1), member("b", "running", 1), round=round_of("abc"), hint=hint("ab"))
    decision = next_round(of, LONG_AFTER, 0.0)
    assert isinstance(decision, Wait)
    assert decision.until == math.inf


def test_the_last_round_must_have_stopped_though_its_members_go_elsewhere() -> None:
    """c is dropped, and may hold the checkpoint's last file."""
    parked = [member(node, last_round=1, parked=True) for node in "ab"]
    of = view(*parked, member("c", "running", 1), round=round_of("abc"), hint=hint("ab"))
    assert isinstance(next_round(of, LONG_AFTER, 0.0), Wait)
    leaving = member("c", "leaving", 1)
    assert isinstance(next_round(view(*parked, leaving, round=round_of("abc"), hint=hint("ab")), 9.0, 0.0), Wait)
    left = replace(leaving, parked=True)
    assert close(view(*parked, left, round=round_of("abc"), hint=hint("ab")), 9.0).nodes() == ("a", "b")


def test_a_member_that_has_not_noticed_its_round_yet_is_not_ready_for_another() -> None:
    stale = view(member("a"), member("b"), member("c"), round=round_of("ab"))
    assert isinstance(next_round(stale, LONG_AFTER, 0.0), Wait)
    noticed = view(member("a", last_round=1), member("b", last_round=1), member("c"), round=round_of("ab"))
    assert close(noticed).nodes() == ("a", "b", "c")


def test_after_an_outage_of_etcd_a_missing_member_may_come_back() -> None:
    current = round_of("ab")
    of = view(member("a", "running", 1), round=current, grace_until=20.0)
    assert standing(of, current, "a", 19.0) == Stay()
    assert standing(of, current, "a", 20.0) == Broken("b is lost", "lost")
    waiting = view(member("a", last_round=1), round=current, grace_until=20.0)
    assert next_round(waiting, 19.0, 0.0) == Wait("b may reconnect after the etcd outage", 20.0)
    buried = replace(of, tombstones=frozenset("b"))
    assert standing(buried, current, "a", 19.0) == Broken("b is gone", "lost")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (member("b", "running", 1), Stay()),
        (member("b", "done", 1), Stay()),
        (member("b", "leaving", 1), Yield("b leaves")),
        (member("b", "waiting", 1, parked=True), Yield("b leaves")),
        (member("b", "waiting", 1), Broken("b has stopped: its round broke", "stopped")),
        (
            member("b", "waiting", 1, failure=failure(1)),
            Broken("b has stopped: its program failed", "stopped"),
        ),
        (member("b", "waiting", 0), Stay()),
        (member("b", "stopping", 1), Broken("b has stopped: its round broke", "stopped")),
        (member("b", "stopping", 1, parked=True), Yield("b leaves")),
        (member("b", "running", 1, incarnation="b2"), Broken("the launcher of b has restarted", "lost")),
        (None, Broken("b is lost", "lost")),
    ],
)
def test_what_a_peer_does_to_the_round(other: Member | None, expected: object) -> None:
    current = round_of("ab")
    members = [member("a", "running", 1)] + ([other] if other else [])
    assert standing(view(*members, round=current), current, "a", LONG_AFTER) == expected


def test_a_member_that_the_round_moved_on_without_is_fenced() -> None:
    mine = round_of("ab")
    both = member("a", "running", 1), member("b", "running", 2)
    assert isinstance(standing(view(*both, round=round_of("b", 2)), mine, "a", 0.0), Broken)
    # an etcd that came back empty says nothing about us
    assert standing(view(*both), mine, "a", 0.0) == Stay()
    lost = standing(view(both[1], round=mine), mine, "a", 0.0)
    assert lost == Broken("a is lost", "lost")
    buried = standing(view(*both, round=mine, tombstones=frozenset("a")), mine, "a", 0.0)
    assert isinstance(buried, Broken)
    assert buried.cause == "moved"


def test_a_lonely_member_that_lost_its_lease_goes_on_until_another_round_is_formed() -> None:
    alone = round_of("a")
    assert standing(view(round=alone), alone, "a", LONG_AFTER) == Stay()
    assert standing(view(round=round_of("b", 2)), alone, "a", LONG_AFTER) == Broken(
        "round 2 was formed meanwhile", "moved"
    )
    buried = standing(view(round=alone, tombstones=frozenset("a")), alone, "a", LONG_AFTER)
    assert buried == Broken("a has a tombstone", "moved")


def test_a_round_that_etcd_lost_is_the_truth_and_goes_on() -> None:
    """Its data are gone, or those of an older backup."""
    current = round_of("ab", 7)
    running = [member(node, "running", 7) for node in "ab"]
    for found in (None, round_of("abc", 5)):
        of = view(*running, member("c"), round=found)
        assert is_behind(of, current)
        assert standing(of, current, "a", LONG_AFTER) == Stay()
        hinted = replace(of, hint=hint("bx"))
        assert is_behind(hinted, current)
        assert standing(hinted, current, "a", LONG_AFTER) == Stay()
        assert not is_behind(replace(of, result=Result("failure", "cancelled", 5)), current)
    assert not is_behind(view(*running, round=current), current)
    assert not is_behind(view(*running, round=round_of("c", 8)), current)
    # a member that is lost is so also then
    alone = view(running[0], round=None, grace_until=20.0)
    assert standing(alone, current, "a", 19.0) == Stay()
    assert standing(alone, current, "a", 20.0) == Broken("b is lost", "lost")


def test_a_round_of_an_older_job_of_the_same_name_is_over() -> None:
    current = round_of("ab", 7)
    running = [member(node, "running", 7) for node in "ab"]
    of = view(*running, member("c", "running", 1), hint=hint("c"))
    assert not is_behind(of, current)
    assert standing(of, current, "a", 0.0) == Stay()
    moved = standing(replace(of, round=round_of("c")), current, "a", 0.0)
    assert moved == Broken("round 1 was formed meanwhile", "moved")


def test_without_its_hint_a_round_admits_no_node_until_the_daemon_could_write_it_again() -> None:
    current = round_of("ab")
    of = view(*(member(node, "running", 1) for node in "ab"), member("s"), round=current, grace_until=20.0)
    assert standing(of, current, "a", 19.0) == Stay()
    assert standing(of, current, "a", 20.0) == Yield("s joins")
    assert standing(replace(of, hint=hint("abs")), current, "a", 0.0) == Yield("s joins")


def test_numbers_of_rounds_go_on_where_etcd_lost_them() -> None:
    assert close(view(member("a", last_round=7), member("b"), round=None)).number == 8
    assert close(view(member("a", last_round=7), member("b", last_round=2), round=round_of("b", 2))).number == 8


def test_a_newcomer_is_welcome_when_hinted_and_waiting() -> None:
    current = round_of("ab")
    running = [member(node, "running", 1) for node in "ab"]
    of = view(*running, member("c"), round=current, hint=hint("ab"))
    assert standing(of, current, "a", LONG_AFTER) == Stay()
    assert standing(replace(of, hint=hint("abc")), current, "a", 0.0) == Yield("c joins")
    # no member stops for a node that is not ready yet
    assert standing(replace(of, hint=hint("abd")), current, "a", LONG_AFTER) == Stay()
    # nor when the program is about to end
    ending = view(running[0], member("b", "done", 1), member("c"), round=current, hint=hint("abc"))
    assert standing(ending, current, "a", LONG_AFTER) == Stay()


def test_a_spare_takes_the_place_of_a_member_that_is_lost_or_leaves_and_of_no_other() -> None:
    current = round_of("abc")
    stopped = [member(node, last_round=1) for node in "ab"]
    spares = [member(node) for node in "st"]
    of = view(*stopped, *spares, round=current, hint=hint("abc", 2, spares="st"))
    assert close(of, 0.0).nodes() == ("a", "b", "s")
    leaving = member("c", "leaving", 1, parked=True)
    assert close(view(*stopped, leaving, *spares, round=current, hint=of.hint), 0.0).nodes() == ("a", "b", "s")
    # no member is lost: they wait
    running = [member(node, "running", 1) for node in "abc"]
    assert standing(view(*running, *spares, round=current, hint=of.hint), current, "a", LONG_AFTER) == Stay()
    # a newcomer that is only late has lost nothing
    late = view(*stopped, *spares, round=round_of("ab"), hint=hint("abd", 2, spares="st"))
    assert [m.node for m in target(late)] == ["a", "b"]


def test_a_spare_that_stands_in_stays_until_the_daemon_or_the_late_member_says_otherwise() -> None:
    current = round_of("abs", 2)
    running = [member(node, "running", 2) for node in "abs"]
    of = view(*running, member("t"), round=current, hint=hint("abc", 2, spares="st"))
    for gone in (frozenset[str](), frozenset("c")):
        assert standing(replace(of, tombstones=gone), current, "a", LONG_AFTER) == Stay()
    # the next loss takes the next spare, be it of a member or of the one that stands in
    for lost in "bs":
        left = {node: m for node, m in of.members.items() if node != lost}
        expected = (*sorted({*"abs"} - {lost}), "t")
        assert tuple(m.node for m in target(replace(of, members=left))) == expected
    back = view(*running, member("c"), round=current, hint=of.hint)
    assert standing(back, current, "a", 0.0) == Yield("c joins")


def test_scaling_down_yields_but_not_below_the_minimum() -> None:
    current = round_of("abc")
    running = [member(node, "running", 1) for node in "abc"]
    of = view(*running, round=current, hint=replace(hint("ab", 2), reason="scaled to 2"))
    assert standing(of, current, "c", 0.0) == Yield("without c: scaled to 2")
    assert standing(replace(of, hint=hint("ab", 3)), current, "c", 0.0) == Stay()


def test_all_done_is_success_and_a_result_ends_everything() -> None:
    current = round_of("ab")
    done = view(*(member(node, "done", 1) for node in "ab"), round=current)
    decision = standing(done, current, "a", 0.0)
    assert isinstance(decision, Over)
    assert decision.result.outcome == "success"
    cancelled = Result("failure", "cancelled", 1)
    assert standing(replace(done, result=cancelled), current, "a", 0.0) == Over(cancelled)


def test_what_people_should_know_of_done_workers_is_in_the_result() -> None:
    current = round_of("ab")
    of = view(member("a", "done", 1), member("b", "done", 1, problem="local rank 1 " + "x" * 999), round=current)
    over = standing(of, current, "a", 0.0)
    assert isinstance(over, Over)
    assert over.result.problem.startswith("b: local rank 1 xxx")
    assert len(over.result.problem) == 400
    assert not has_finished(view(member("a", "running", 1)), current)
    assert has_finished(view(member("a", "running", 1), member("b", "done", 1)), current)


# -- multiples -----------------------------------------------------------------------------------------------


@given(views(), st.integers(1, 4), st.floats(0, 30))
def test_a_round_has_a_multiple_of_the_nodes_that_the_job_wants(of: View, n: int, now: float) -> None:
    wanted = replace(
        of, rules=replace(of.rules, multiple_of=n), hint=of.hint and replace(of.hint, multiple_of=n), result=None
    )
    decision = next_round(wanted, now, 0.0)
    assert not isinstance(decision, Close) or len(decision.round.members) % n == 0


def test_the_node_that_is_one_too_many_waits_and_a_running_round_does_not_stop_for_it() -> None:
    pairs = Rules(2, 6, multiple_of=2)
    three = view(*(member(node, last_round=1) for node in "abc"), rules=pairs, round=round_of("abcd"))
    formed = close(three)
    assert formed.nodes() == ("a", "b")
    running = [member(node, "running", last_round=2) for node in "ab"]
    waiting = view(*running, member("c", last_round=1), rules=pairs, round=formed)
    assert standing(waiting, formed, "a", LONG_AFTER) == Stay()
    fourth = replace(waiting, members={**waiting.members, "d": member("d")})
    assert standing(fourth, formed, "a", LONG_AFTER) == Yield("c, d joins")
