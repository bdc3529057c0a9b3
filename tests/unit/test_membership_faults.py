"""Who is in the next round, and whether a round goes on, after losses, failures, hangs and silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_trainer.rendezvous.client import Snapshot
from spotsup_trainer.rendezvous.history import may_restart, rejoin_backoff_s, repeats
from spotsup_trainer.rendezvous.membership import Broken, Close, Finish, Stay, Wait, Yield, hangs, next_round, standing
from spotsup_trainer.rendezvous.view import Rules, View, unhealthy
from spotsup_trainer.wire import Failure, Loss, Member, Round, decode, encode

from tests.unit.members import LONG_AFTER, close, failure, hint, member, round_of, view

EARLY = failure(1, "OSError: /mnt/data-7/x is missing, at 0x7f00", after_s=1.2)


def test_losses_are_remembered_for_ten_minutes_and_not_more_than_16() -> None:
    waiting = [member(node, last_round=1) for node in "ab"]
    before = round_of("abc", recent_losses=(Loss("c", 100.0), Loss("c", 200.0)))
    decision = next_round(view(*waiting, round=before), LONG_AFTER, 700.0)
    assert isinstance(decision, Close)
    assert decision.round.recent_losses == (Loss("c", 200.0), Loss("c", 700.0))
    many = round_of("abc", recent_losses=(Loss("b", 0.0),) * 16)
    assert close(view(*waiting, round=many)).recent_losses == (Loss("b", 0.0),) * 15 + (Loss("c", 0.0),)
    # a restarted node was lost; one with a tombstone never comes back; one that leaves is not lost
    restarted = view(*waiting, member("c", incarnation="c2"), round=round_of("abc"))
    assert close(restarted).recent_losses == (Loss("c", 0.0),)
    assert close(replace(restarted, tombstones=frozenset("c"))).recent_losses == ()
    assert close(view(*waiting, member("c", "leaving", 1, parked=True), round=round_of("abc"))).recent_losses == ()


def test_a_node_that_was_lost_again_and_again_is_let_in_when_it_has_stayed_for_a_while() -> None:
    assert [rejoin_backoff_s(losses) for losses in (0, 1, 2, 3, 4, 7, 16)] == [0.0, 0.0, 0.0, 2.0, 4.0, 30.0, 30.0]
    thrice = (Loss("c", 0.0),) * 3
    current = round_of("ab", recent_losses=thrice)
    running = [member(node, "running", 1) for node in "ab"]
    of = view(*running, member("c"), round=current, hint=hint("abc"), since={"c": 10.0})
    assert standing(of, current, "a", 11.9) == Stay()
    assert standing(of, current, "a", 12.0) == Yield("c joins")
    # a member of the round stays in it
    joined = round_of("abc", recent_losses=thrice)
    within = view(*running, member("c", "running", 1), round=joined, since={"c": 10.0})
    assert standing(within, joined, "a", 10.0) == Stay()
    # it may be needed: then all wait, unless its losses are old
    stopped = [member(node, last_round=1) for node in "ab"]
    few = view(*stopped, member("c"), round=current, hint=hint("abc", 3), since={"c": 10.0})
    assert next_round(few, 11.0, 1.0) == Wait("2 of at least 3 nodes are here", 12.0)
    assert close(few, 12.0).nodes() == ("a", "b", "c")
    assert isinstance(next_round(few, 11.0, 600.0), Close)
    # a spare takes its place for so long
    third = round_of("abc", recent_losses=thrice[:2])
    spared = view(*stopped, member("c", incarnation="c4"), member("s"), round=third, hint=hint("abc", 2, spares="s"))
    assert close(replace(spared, since={"c": 10.0}), 11.0).nodes() == ("a", "b", "s")


def test_a_round_with_losses_is_read_as_it_was_written() -> None:
    formed = round_of("ab", recent_losses=(Loss("c", 1.5),))
    assert decode(Round, encode(formed)) == formed


def test_the_first_to_fail_is_blamed_and_the_job_ends_when_it_failed_too_often() -> None:
    torn = member("a", last_round=1, failure=failure(1, "connection reset", at=11.0))
    culprit = member("b", last_round=1, failure=failure(1, "boom", at=10.9))
    of = view(torn, culprit, rules=Rules(1, 4, app_failures=1), round=round_of("ab"))
    formed = close(of)
    assert (formed.app_failures, formed.last_failure) == (1, culprit.failure)
    decision = next_round(replace(of, round=round_of("ab", app_failures=1)), LONG_AFTER, 0.0)
    assert isinstance(decision, Finish)
    assert "failed 2 times, 1 allowed; last on b" in decision.result.message
    assert "boom" in decision.result.message


@pytest.mark.parametrize(
    ("second", "ends"),
    [
        (failure(2, "OSError: /mnt/other/y is missing, at 0x7f99", after_s=1.4), True),
        (failure(2, "OSError: /mnt/data-7/x is missing, at 0x7f00", after_s=31.0), False),
        (failure(2, "ValueError: another", after_s=1.2), False),
        (failure(2, EARLY.message, after_s=1.2, exit_code=2), False),
        (failure(2, EARLY.message, after_s=1.2, stepped=True), False),
        (failure(2, EARLY.message), False),  # by a launcher that does not say when
    ],
)
def test_the_second_failure_of_one_kind_soon_after_the_start_ends_the_job(second: Failure, ends: bool) -> None:
    of = view(member("a", last_round=2, failure=second), rules=Rules(1, 1, app_failures=9), round=round_of("a", 2))
    last = round_of("a", 2, app_failures=1, last_failure=EARLY)
    decision = next_round(replace(of, round=last), LONG_AFTER, 0.0)
    assert isinstance(decision, Finish if ends else Close)
    if isinstance(decision, Finish):
        expected = (
            "the program failed twice in the same way, 1.4 s after the start; last on a, local rank 0, exit code 1: "
        )
        assert decision.result.message.startswith(expected + "OSError: ")
    # not one after the other; killed, most likely for memory; any number is allowed
    before = replace(last, last_failure=replace(EARLY, round=0))
    assert isinstance(next_round(replace(of, round=before), LONG_AFTER, 0.0), Close)
    assert not repeats(replace(EARLY, exit_code=-9), replace(second, exit_code=-9))
    assert isinstance(next_round(replace(of, rules=Rules(1, 1), round=last), LONG_AFTER, 0.0), Close)


def test_workers_that_outlive_sigkill_hold_their_node_out_of_the_round_and_not_the_round() -> None:
    stopped = [member(node, last_round=1) for node in "ab"]
    of = view(*stopped, member("c", "stopping", 1), round=round_of("abc"), hint=hint("abc", 2), changed_at=10.0)
    assert close(of, 10.0).nodes() == ("a", "b")
    assert isinstance(next_round(replace(of, hint=hint("abc", 3)), LONG_AFTER, 0.0), Wait)
    spared = replace(of, members={**of.members, "s": member("s")}, hint=hint("abc", 2, spares="s"))
    assert close(spared, 10.0).nodes() == ("a", "b", "s")
    # once they are gone, it is welcome
    formed = round_of("ab", 2)
    running = [member(node, "running", 2) for node in "ab"]
    back = view(*running, member("c", last_round=1), round=formed, hint=hint("abc", 2))
    assert standing(back, formed, "a", 0.0) == Yield("c joins")
    assert (
        standing(replace(back, members={**back.members, "c": member("c", "stopping", 1)}), formed, "a", 0.0) == Stay()
    )


def test_steps_hang_when_no_rank_of_any_member_shows_life_and_a_day_has_three_new_rounds_for_that() -> None:
    current = round_of("ab")
    silent = [member(node, "running", 1, stalled_since=50.0) for node in "ab"]
    assert hangs(view(*silent), current)
    assert not hangs(view(silent[0], member("b", "running", 1)), current), "rank 0 may evaluate alone"
    assert not hangs(view(silent[0], member("b", "done", 1, stalled_since=50.0)), current)
    assert not hangs(view(silent[0]), current)
    stopped = [member(node, last_round=1, stalled_since=50.0) for node in "ab"]
    formed = close(view(*stopped, round=current))
    assert (formed.recent_hangs, formed.reason, formed.app_failures) == ((0.0,), "its steps hung", 0)
    again = close(view(*stopped, round=round_of("ab", recent_hangs=(-90_000.0, -80_000.0, -2.0, -1.0))))
    assert again.recent_hangs == (-2.0, -1.0, 0.0)
    assert [may_restart(again, at) for at in (0.0, 86_397.0, 86_399.0)] == [False, False, True]
    alive = [member("a", last_round=1), member("b", last_round=1, stalled_since=50.0)]
    assert close(view(*alive, round=current)).recent_hangs == ()
    assert close(view(member("c"), round=round_of("ab"))).recent_hangs == ()


@pytest.mark.parametrize("others", [[], [member("b", incarnation="b2")], [member("b", last_round=1), member("c")]])
def test_a_failure_is_not_the_programs_where_a_member_was_lost_replaced_or_joined(others: list[Member]) -> None:
    torn = member("a", last_round=1, failure=failure(1, "connection reset"))
    formed = close(view(torn, *others, rules=Rules(1, 4, app_failures=0), round=round_of("ab")))
    assert (formed.app_failures, formed.last_failure) == (0, None)


# -- members that only etcd cannot hear ---------------------------------------------------------------------


def cut_off(*, heard: str) -> View:
    """Of a round of a, b and c, b and c have no key any more; d waits outside."""
    here = (member("a", "running", 1), member("d"))
    return view(*here, round=round_of("abc"), hint=hint("abc", spares="d"), heard=frozenset(heard))


def test_a_round_goes_on_while_its_members_hear_those_that_have_no_key() -> None:
    assert standing(cut_off(heard="bc"), round_of("abc"), "a", LONG_AFTER) == Stay()
    assert standing(cut_off(heard="b"), round_of("abc"), "a", LONG_AFTER) == Broken("c is lost", "lost")


def test_a_tombstone_ends_the_round_also_of_a_member_that_is_heard() -> None:
    dead = replace(cut_off(heard="bc"), tombstones=frozenset("b"))
    assert standing(dead, round_of("abc"), "a", LONG_AFTER) == Broken("b is gone", "lost")


def test_nobody_forms_a_round_beside_members_that_are_heard() -> None:
    only_spare = replace(cut_off(heard="b"), members={"d": member("d")})
    assert next_round(only_spare, LONG_AFTER, 0.0) == Wait("b must stop first")
    assert close(replace(only_spare, heard=frozenset())).nodes() == ("d",)


# -- GPUs that cannot train ----------------------------------------------------------------------------------


def test_a_node_whose_gpus_died_leaves_the_round_and_the_program_is_not_blamed() -> None:
    """Also where another node's worker fails first: its peer's GPU hung in a collective."""
    torn = member("a", last_round=1, failure=failure(1, "NCCL timeout", at=10.0))
    dead = member("b", last_round=1, failure=failure(1, "CUDA error", at=10.1), unhealthy="Xid 79")
    rest = member("c", last_round=1)
    formed = close(view(torn, dead, rest, rules=Rules(1, 4, app_failures=0), round=round_of("abc")))
    assert (formed.nodes(), formed.app_failures) == (("a", "c"), 0)
    of = view(torn, dead, rules=Rules(2, 4, app_failures=0), round=round_of("ab"))
    assert next_round(of, LONG_AFTER, 0.0) == Wait("1 of at least 2 nodes are here; the GPUs of b are unhealthy")


def test_the_round_waits_for_a_node_that_is_still_checking_its_gpus() -> None:
    torn = member("a", last_round=1, failure=failure(1))
    checking = member("b", "running", last_round=1)
    decision = next_round(view(torn, checking, rules=Rules(1, 4, 0), round=round_of("ab")), LONG_AFTER, 0.0)
    assert decision == Wait("b must stop first")


def test_a_spare_takes_the_place_of_a_node_whose_gpus_died() -> None:
    dead = member("b", last_round=1, failure=failure(1), unhealthy="Xid 79")
    of = view(member("a", last_round=1), dead, member("s"), hint=hint("ab", 1, 2, spares="s"), round=round_of("ab"))
    assert close(of).nodes() == ("a", "s")


def test_a_spare_takes_its_place_also_where_its_stand_in_has_become_a_member_before_the_daemon_knows() -> None:
    # "s" stands in for "b"; the daemon does not know that, and puts "s" into the place of "a", which has a notice
    here = (member("a", "leaving", 2, parked=True), member("b", unhealthy="Xid 48"), member("s", last_round=2))
    second = round_of("as", number=2)
    of = view(*here, member("t"), hint=hint("bs", 1, 2, spares="t"), round=second)
    assert close(of).nodes() == ("s", "t")
    # a member that is only late has lost nothing, whatever ails a spare
    late = view(member("s", last_round=2), member("u", unhealthy="x"), member("t"), round=second)
    assert close(replace(late, hint=hint("bs", 1, 2, spares="ut"))).nodes() == ("s",)


def test_gpus_of_more_than_one_node_and_more_than_a_tenth_are_not_called_unhealthy() -> None:
    def of(ill: int, count: int) -> View:
        return view(*(member(chr(97 + n), unhealthy="x" if n < ill else "") for n in range(count)))

    assert len(unhealthy(of(1, 1))) == len(unhealthy(of(1, 30))) == 1
    assert len(unhealthy(of(3, 30))) == 3
    assert unhealthy(of(4, 30)) == unhealthy(of(2, 2)) == frozenset()


def test_a_verdict_that_is_not_believed_blames_nobody_and_each_further_round_waits_longer() -> None:
    def after(doubts: int, complaint: str = "ERR!") -> View:
        current = replace(round_of("ab"), app_failures=1, doubtful_failures=doubts)
        both = [member(node, last_round=1, failure=failure(1, at=50.0), unhealthy=complaint) for node in "ab"]
        return view(*both, rules=Rules(1, 4, app_failures=1), round=current)

    formed = close(after(0))
    assert (formed.app_failures, formed.doubtful_failures) == (1, 1)
    assert formed.reason == "the program failed on a, b, which may have unhealthy GPUs"
    waits = [next_round(after(doubts), 1.0, 51.0) for doubts in (0, 3, 99)]
    assert waits == [Wait("a node failed that may have unhealthy GPUs", due) for due in (2.0, 16.0, 60.0)]
    assert isinstance(next_round(after(3), 1.0, 49.0), Close)  # clocks that differ do not make it wait for long
    # once the GPUs are well again, the failures are the program's
    assert isinstance(next_round(after(99, complaint=""), LONG_AFTER, 0.0), Finish)


# -- progress ------------------------------------------------------------------------------------------------


def test_failures_start_anew_after_three_checkpoints() -> None:
    def next_one(current: Round, checkpoints: int, *, failed: bool = True) -> Round:
        here = [
            member("a", last_round=current.number, checkpoints=checkpoints),
            member("b", last_round=current.number, failure=failure(current.number) if failed else None),
        ]
        return close(view(*here, rules=Rules(1, 4, app_failures=3), round=current))

    first = next_one(round_of("ab"), 2)
    assert (first.app_failures, first.checkpoints) == (1, 0)
    moved = next_one(first, 2, failed=False)
    assert (moved.app_failures, moved.checkpoints) == (1, 2)
    assert next_one(moved, 0).app_failures == 2, "two are too few"
    assert next_one(moved, 1).app_failures == 1, "three over two rounds are enough"
    assert next_one(moved, 1, failed=False).app_failures == 0


@pytest.mark.parametrize(
    ("live", "grace_until", "known"), [(True, 9.0, True), (True, 10.0, True), (True, 11.0, False), (False, 9.0, False)]
)
def test_a_lost_peer_is_known_where_etcd_answers_and_has_for_a_while(
    live: bool, grace_until: float, known: bool
) -> None:
    seen = Snapshot(View(Rules(1, 2), {}, grace_until=grace_until), live=live)
    assert seen.shows_losses(10.0) is known


@pytest.mark.parametrize(("hours", "counted"), [(23.9, 3), (24.0, 1)])
def test_without_checkpoints_a_round_that_ran_for_a_day_is_progress(hours: float, counted: int) -> None:
    failed = member("a", last_round=1, failure=failure(1, at=hours * 3600))
    current = round_of("a", app_failures=2)
    assert close(view(failed, rules=Rules(1, 4, app_failures=3), round=current)).app_failures == counted
