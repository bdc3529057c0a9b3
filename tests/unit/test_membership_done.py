"""A node whose ranks have all ended well: its loss breaks nothing, unless it hosts the round's store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.rendezvous.membership import (
    Broken,
    Finish,
    Over,
    Stay,
    Yield,
    gone,
    has_finished,
    next_round,
    standing,
)
from spotsup_trainer.rendezvous.view import View
from spotsup_trainer.wire import Done, Member

from tests.unit.members import LONG_AFTER, close, failure, hint, member, round_of, view

ABC = round_of("abc")


def done(*nodes: str, number: int = 1, incarnation: str = "1") -> dict[str, Done]:
    return {node: Done(node, f"{node}{incarnation}", number, 5.0) for node in nodes}


def at_work(*more: Member, **changes: Any) -> View:
    """a works, b and c may be among `more`."""
    return view(member("a", "running", 1), *more, round=ABC, **changes)


@pytest.mark.parametrize(
    "of",
    [
        at_work(done=done("b", "c")),
        at_work(member("b", "done", 1), done=done("b", "c")),
        at_work(member("b", "done", 1), done=done("b", "c"), tombstones=frozenset("b")),
        at_work(member("b", "waiting", 1), done=done("b", "c")),
        at_work(member("b", "leaving", 1), done=done("b", "c")),
        at_work(member("b", incarnation="b2"), done=done("b", "c")),
        at_work(done=done("b", "c"), hint=hint("a", 2)),
    ],
)
def test_the_round_goes_on_without_a_done_member(of: View) -> None:
    assert standing(of, ABC, "a", LONG_AFTER) == Stay()
    assert has_finished(of, ABC)
    assert gone(of, ABC) == frozenset()


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (at_work(done=done("c")), Broken("b is lost", "lost")),
        (at_work(done=done("b", number=2) | done("c")), Broken("b is lost", "lost")),
        (at_work(done=done("b", incarnation="2") | done("c")), Broken("b is lost", "lost")),
        (at_work(member("b", "leaving", 1), done=done("c")), Yield("b leaves")),
    ],
)
def test_one_that_was_done_in_another_round_or_start_or_not_at_all_is_missed(of: View, expected: object) -> None:
    assert standing(of, ABC, "a", LONG_AFTER) == expected


def test_the_others_checkpoint_and_wait_where_the_job_pauses() -> None:
    pausing = at_work(member("b", "done", 1), done=done("b", "c"), hint=replace(hint("abc"), hold=True, reason="pause"))
    assert standing(pausing, ABC, "a", LONG_AFTER) == Yield("pause")


def test_one_that_hosts_the_store_is_missed_although_it_is_done() -> None:
    hosts = view(member("b", "running", 1), member("c", "done", 1), round=ABC, done=done("a", "c"))
    assert standing(hosts, ABC, "b", LONG_AFTER) == Broken("a is lost", "lost")
    assert gone(hosts, ABC) == frozenset("a")
    buried = replace(hosts, members={**hosts.members, "a": member("a", "done", 1)}, tombstones=frozenset("a"))
    assert standing(buried, ABC, "b", LONG_AFTER) == Broken("a is gone", "lost")


def test_the_last_to_end_ends_the_job_although_the_others_are_gone() -> None:
    over = standing(view(member("a", "done", 1, problem="late"), round=ABC, done=done("b", "c")), ABC, "a", 0.0)
    assert isinstance(over, Over)
    assert (over.result.outcome, over.result.problem) == ("success", "a: late")


def test_after_a_loss_of_another_all_that_are_there_run_again() -> None:
    stopped, rejoined = member("a", last_round=1), member("b", last_round=1)
    assert close(view(stopped, rejoined, round=ABC, done=done("b"), hint=hint("abc"))).nodes() == ("a", "b")
    assert close(view(stopped, round=ABC, done=done("b"), hint=hint("abc"))).nodes() == ("a",)
    few = next_round(view(stopped, round=ABC, done=done("b"), hint=hint("abc", 2)), LONG_AFTER, 0.0)
    assert getattr(few, "reason", "") == "1 of at least 2 nodes are here"


@pytest.mark.parametrize("there", [True, False])
def test_a_failure_of_those_that_work_on_is_the_programs_own(there: bool) -> None:
    failed = member("a", last_round=1, failure=failure(1, at=1.0))
    rest = [member("b", last_round=1)] if there else []
    of = view(failed, *rest, round=round_of("ab"), done=done("b"), hint=replace(hint("ab"), app_failures=0))
    decision = next_round(of, LONG_AFTER, 0.0)
    assert isinstance(decision, Finish), decision
    assert decision.result.message.startswith("the program failed once")


def test_a_done_host_that_has_to_leave_lets_the_others_checkpoint_first() -> None:
    leaves = member("a", "leaving", 1, parked=True)
    of = view(leaves, member("b", "running", 1), member("c", "done", 1), round=ABC, done=done("a", "c"))
    assert standing(of, ABC, "b", LONG_AFTER) == Yield("a leaves")
    stopped = [member(node, last_round=1, parked=True) for node in "bc"]
    assert close(view(leaves, *stopped, round=ABC, done=done("a", "c"))).nodes() == ("b", "c")
