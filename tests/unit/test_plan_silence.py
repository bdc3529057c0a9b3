"""When silent nodes are held, kept, asked or given up: one moment at a time (P4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Ended, Result

from provisioners.base import InstanceState
from supervisor.events import EventKind
from supervisor.model import NodeRecord
from supervisor.planner.actions import AskDone, AskNode, Terminate
from supervisor.planner.world import JobView, Rules
from tests.unit.scene import (
    NOW,
    Decided,
    J,
    N,
    as_job,
    decide,
    hint_of,
    job,
    listing,
    machine,
    member,
    name,
    node,
    round_of,
    scene,
    view,
    world_of,
)

RULES = Rules(leftovers_s=1e9)


def silent(number: int, seconds: float = 30.0, **changes: Any) -> NodeRecord:
    """A node that has been suspected for so long."""
    return node(number, N.SUSPECT, state_since=NOW - seconds, **{"has_joined": True} | changes)


def of_ten(*suspects: NodeRecord, heard: int = 0, **more: Any) -> Decided:
    """A job of ten nodes, or of `heard` and the suspects, all in one round."""
    members = [member(number) for number in range(1, (heard or 10 - len(suspects)) + 1)]
    numbers = [int(each.id.rpartition("-")[2]) for each in (*members, *suspects)]
    known = {"record": job(len(numbers), max_nodes=64), "round": round_of(*numbers)}
    after = scene(*members, *suspects, **{**known, "hint": hint_of(*numbers, high=64), **more})
    assert after.plan.undecided == {}
    return after


def job_of(heard: int, silent_ones: int, called: str = "job", record: Any = None, **more: Any) -> JobView:
    """A job whose nodes are all in one round; the silent ones are 50, 51, …"""
    nodes = [member(n) for n in range(1, heard + 1)] + [silent(50 + n) for n in range(silent_ones)]
    numbers = [int(each.id.rpartition("-")[2]) for each in nodes]
    known: dict[str, Any] = {"round": round_of(*numbers), "hint": hint_of(*numbers, high=64)} | more
    found: JobView = as_job(view(record or job(len(nodes), max_nodes=64), nodes, **known), called)
    return found


def lost(after: Decided) -> list[str]:
    return [event.node for event in after.events if event.kind is EventKind.NODE_LOST]


def test_more_than_one_and_more_than_a_tenth_that_fell_silent_within_a_minute_are_held() -> None:
    assert lost(of_ten(silent(50))) == [name(50)]
    two_of_ten = of_ten(silent(50), silent(51))
    assert (lost(two_of_ten), two_of_ten.does(Terminate), two_of_ten.does(AskNode), two_of_ten.hint) == (
        [],
        [],
        [],
        None,
    )
    assert lost(of_ten(silent(50), silent(51), heard=18)) == [name(50), name(51)], "two of twenty are a tenth"
    assert lost(of_ten(silent(50), silent(51), heard=17)) == []
    assert lost(of_ten(silent(50), silent(51, 90.0))) == []
    assert lost(of_ten(silent(50), silent(51, 90.1))) == [name(50), name(51)]
    assert lost(of_ten(silent(50), silent(51, 90.1), heard=1)) == [name(50), name(51)], "one is not many, of few nodes"


@pytest.mark.parametrize(
    ("ours", "other", "held"),
    [
        (job_of(17, 2), job_of(40, 0), True),  # more than a tenth of their job
        (job_of(18, 2), job_of(40, 0), False),
        (job_of(9, 1), job_of(8, 1), True),  # more than a tenth of all, though they are one in each job
        (job_of(9, 1), job_of(9, 1), False),
        (job_of(9, 1), job_of(0, 3), True),
        (job_of(9, 1), job_of(0, 3, result=Result("success", "", 1)), False),  # its nodes end in order
        (job_of(9, 1), job_of(0, 3, record=job(3, J.SUCCEEDED)), False),
    ],
)
def test_a_tenth_of_a_job_or_of_all_jobs_that_have_not_ended(ours: JobView, other: JobView, held: bool) -> None:
    over = job_of(3, 0, "over", job(3, J.CANCELLED))
    after = decide(world_of(ours, as_job(other, "other"), over))
    assert after.plan.undecided == {}
    assert (name(50) in lost(after)) is not held


def test_a_tenth_counts_nodes_that_should_be_heard_only() -> None:
    pending = [node(number, N.PENDING) for number in range(20, 40)]
    members = [member(number) for number in range(1, 9)]
    assert lost(scene(*members, *pending, silent(50), silent(51), record=job(30, max_nodes=64))) == []
    ended = {name(51): Ended(name(51), "failure", 1, "boom", NOW)}
    assert lost(of_ten(silent(50), silent(51), exits=ended)) == [name(50), name(51)]
    unlisted = listing(*(machine(n) for n in range(1, 9)), machine(50))
    assert lost(of_ten(silent(50), silent(51), listed=unlisted)) == [], "a listing may lack it, and it works"


@pytest.mark.parametrize("state", [InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED])
def test_what_its_provider_ended_is_not_silent(state: InstanceState) -> None:
    ended = listing(*(machine(n) for n in (1, 2, 3, 50)), machine(51, state))
    assert lost(of_ten(silent(50), silent(51), heard=3, listed=ended)) == [name(50), name(51)]


def test_what_the_provider_ended_is_lost_also_among_many_that_are_silent() -> None:
    listed = listing(*(machine(n) for n in range(50, 55)), machine(55, InstanceState.TERMINATED), machine(1))
    many = [silent(number) for number in range(50, 56)]
    assert lost(of_ten(*many, heard=1, listed=listed)) == [name(55)]


def test_a_new_leader_takes_all_that_are_silent_for_one_group() -> None:
    apart = (silent(50, 500.0), silent(51, 100.0))
    assert lost(of_ten(*apart)) == [name(50), name(51)]
    assert lost(of_ten(*apart, timers_paused_until=NOW - 25.0)) == []


def test_after_a_hold_a_suspicion_begins_anew() -> None:
    def after(held_s_ago: float, asked_s_ago: float = 0.5) -> list[str]:
        answers = {name(50): AskDone(name(50), NOW - asked_s_ago, "connection refused")}
        return lost(of_ten(silent(50, 900.0), volatile={"held_at": {name(50): NOW - held_s_ago}, "answers": answers}))

    assert after(19.9) == []
    assert after(20.0) == [name(50)]
    assert after(20.0, asked_s_ago=20.1) == [], "it was not asked since"


def test_when_silent_nodes_were_held_and_what_they_answered_is_known_until_they_are_heard() -> None:
    together = of_ten(silent(50), silent(51)).volatile
    assert together.held_at == {name(50): NOW, name(51): NOW}
    assert set(together.answers) == {name(50), name(51)}
    known = {"held_at": {name(n): NOW - 9 for n in (2, 50)}, "answers": dict(together.answers)}
    left = of_ten(silent(50, 900.0), volatile=known)
    assert lost(left) == []
    assert left.volatile.held_at == {name(50): NOW - 9}
    assert set(left.volatile.answers) == {name(50)}
    over = of_ten(volatile={"held_at": left.volatile.held_at, "answers": left.volatile.answers}).volatile
    assert (over.held_at, over.answers) == ({}, {})


@pytest.mark.parametrize(
    ("answer", "given_up"),
    [
        (AskDone(name(50), NOW - 1, "connection refused"), True),
        (AskDone(name(50), NOW - 1, agent_runs=True, written_s_ago=60.0), False),
        (AskDone(name(50), NOW - 1, agent_runs=True, written_s_ago=-60.0), False),
        (AskDone(name(50), NOW - 1, agent_runs=True, written_s_ago=60.1), True),
        (AskDone(name(50), NOW - 1, agent_runs=False, written_s_ago=1.0), True),
        (AskDone(name(50), NOW - 30, "connection refused"), True),
        (AskDone(name(50), NOW - 40, "connection refused"), False),
        (AskDone(name(50), 0.0, "an action failed unexpectedly"), False),
        (None, False),
    ],
)
def test_a_single_silent_node_is_given_up_by_its_own_answer(answer: AskDone | None, given_up: bool) -> None:
    after = of_ten(silent(50), volatile={"answers": {name(50): answer} if answer else {}})
    assert (lost(after) == [name(50)]) is given_up


@pytest.mark.parametrize(
    ("answer", "why"),
    [({"error": "connection refused"}, "over SSH: connection refused"), ({}, "no step advances on it")],
)
def test_the_loss_of_a_silent_node_says_what_was_found(answer: dict[str, Any], why: str) -> None:
    after = of_ten(silent(50), volatile={"answers": {name(50): AskDone(name(50), NOW - 1, **answer)}})
    assert after.events[0].text == f"lost {name(50)}: silent for 20 s, and {why}"


def test_a_silent_node_is_asked_at_once_again_soon_and_seldom_while_its_steps_advance() -> None:
    def asks(seconds: float, **answer: Any) -> bool:
        answers = {name(50): AskDone(name(50), NOW - seconds, **answer)}
        return bool(of_ten(silent(50, 5.0), volatile={"answers": answers}).does(AskNode))

    asked = of_ten(silent(50, 0.0), volatile={"answers": {}}).does(AskNode)
    assert [(each.node.id, each.node.state) for each in asked] == [(name(50), N.SUSPECT)]
    assert (asks(5.0, error="hung"), asks(4.9, error="hung")) == (True, False)
    advancing: dict[str, Any] = {"agent_runs": True, "written_s_ago": 1.0}
    assert (asks(RULES.silence.ask_again_s, **advancing), asks(RULES.silence.ask_again_s - 1, **advancing)) == (
        True,
        False,
    )
    assert of_ten(silent(50, 0.0), volatile={"answers": {}}, busy=frozenset({f"ask:{name(50)}"})).does(AskNode) == []


def test_a_listing_that_is_older_than_the_suspicion_is_no_evidence() -> None:
    machines = [machine(number) for number in (*range(1, 10), 50)]
    assert lost(of_ten(silent(50), listed=listing(*machines, listed_at=NOW - 30.0))) == []
    assert lost(of_ten(silent(50), listed=listing(*machines, listed_at=NOW - 29.9))) == [name(50)]


def test_a_user_may_give_up_what_is_held() -> None:
    asked = {"drain_requested": True, "needs_replacement": True}
    assert lost(of_ten(silent(50, **asked), silent(51), silent(52))) == [name(50)]
    assert lost(of_ten(silent(50, 20.0, **asked), silent(51), silent(52))) == [name(50)]
    assert lost(of_ten(silent(50, 19.0, **asked), silent(51), silent(52))) == []


def test_a_launcher_that_cannot_reach_the_rendezvous_while_many_are_silent_gets_its_time_again() -> None:
    late = node(60, N.BOOTSTRAPPING, bootstrapped=True, ready_by=NOW - 1)
    assert of_ten(late, silent(50), silent(51), heard=8).node(60).ready_by == NOW + RULES.ready_timeout_s
    assert of_ten(late, silent(50), heard=8).state(60) is not N.BOOTSTRAPPING


# -- what people are told ----------------------------------------------------------------------------------


def reports(after: Decided) -> list[str]:
    return [event.text for event in after.events if event.kind in {EventKind.SILENCE, EventKind.SILENCE_ENDED}]


@pytest.mark.parametrize(
    ("since", "reported", "told"),
    [
        (0.0, 0.0, False),  # it begins now
        (NOW - 19.9, 0.0, False),
        (NOW - 20.0, 0.0, True),
        (NOW - 20.0, NOW - 599.0, False),  # the last one was told of just before
        (NOW - 20.0, NOW - 600.0, True),
        (NOW - 5000.0, NOW - 3599.0, False),
        (NOW - 5000.0, NOW - 3600.0, True),
        (NOW - 700.0, NOW - 700.0, False),  # a wrong clock's times, both clamped
    ],
)
def test_people_are_told_once_it_has_lasted_and_reminded(since: float, reported: float, told: bool) -> None:
    record = job(10, max_nodes=64, silence={"since": since, "reported_at": reported})
    after = of_ten(silent(50), silent(51), record=record)
    assert after.job.silence.since == (since or NOW)
    assert after.job.silence.reported_at == (NOW if told else reported)
    assert len(reports(after)) == told
    if told:
        (event,) = after.events
        assert event.kind is EventKind.SILENCE
        assert event.text == (
            "2 of 10 nodes are silent: network? What is silent is kept until it is heard, its cloud says that it "
            "ended, or you run `spotsupctl drain NODE`. It may train on: look at its way to etcd"
        )
        assert bool(after.plan.warnings) == (reported >= since > 0), "once people have been told"
        again = of_ten(silent(50), silent(51), record=after.job)
        assert again.plan.warnings == ("silent nodes of job are kept: `spotsupctl status job` says why",)


def test_a_silent_node_whose_cloud_is_not_listed_is_a_sentence_for_people() -> None:
    listed = listing(*(machine(number) for number in (*range(1, 10), 50)), listed_at=NOW - 31, error="403")
    record = job(10, max_nodes=64, silence={"since": NOW - 20.0})
    (text,) = reports(of_ten(silent(50), listed=listed, record=record))
    assert text == (
        f"{name(50)} is silent, and local was not listed since: 403. What is silent is kept until it is heard, its "
        "cloud says that it ended, or you run `spotsupctl drain NODE`"
    )


def test_people_who_were_told_are_told_of_the_end() -> None:
    def after(reported_at: float, *suspects: NodeRecord) -> Decided:
        record = job(10, max_nodes=64, silence={"since": NOW - 100, "reported_at": reported_at})
        return of_ten(*suspects, record=record)

    for reported_at in (NOW - 80, NOW - 100):
        assert reports(after(reported_at)) == ["all nodes of job are heard again, or known to have ended"]
    assert reports(after(NOW - 80, silent(50, 5.0))) == [
        "of the silent nodes of job, all but 1 are heard again, or known to have ended"
    ]
    assert reports(after(NOW - 800)) == []
    assert after(NOW - 800).job.silence.since == 0.0


def test_the_sentence_says_why_a_silent_node_is_kept() -> None:
    advancing = AskDone(name(50), NOW - 1, agent_runs=True, written_s_ago=1.0)
    kept = of_ten(silent(50), volatile={"answers": {name(50): advancing}})
    assert f"{name(50)} is silent, and its steps advance: it cannot reach etcd" in kept.sentence
    asked = of_ten(silent(50), volatile={"answers": {}})
    assert f"{name(50)} is silent, and is asked over SSH" in asked.sentence
    assert "is asked over SSH" in of_ten(silent(50, 20.0), volatile={"answers": {}}).sentence
    assert "is asked over SSH" not in of_ten(silent(50, 19.9), volatile={"answers": {}}).sentence
    listed = listing(*(machine(number) for number in (*range(1, 10), 50)), listed_at=NOW - 31, error="403")
    assert f"{name(50)} is silent, and local was not listed since: 403" in of_ten(silent(50), listed=listed).sentence
    unanswered = replace(listed, error="")
    assert "local was not listed since: no answer yet" in of_ten(silent(50), listed=unanswered).sentence


@pytest.mark.parametrize(
    ("ours", "others", "sentence"),
    [
        (job_of(8, 2), 0, "8 of 10 nodes train (round 1); 2 of 10 nodes are silent: network?"),
        (job_of(3, 1), 2, "1 of 4 nodes is silent, and 2 of other jobs: network?"),
        (job_of(1, 1), 1, "1 of 2 nodes is silent, and 1 of other jobs: network?"),
        (job_of(0, 1), 1, "1 of 1 node is silent, and 1 of other jobs: network?"),
    ],
)
def test_the_sentence_says_how_many_are_silent(ours: JobView, others: int, sentence: str) -> None:
    assert sentence in decide(world_of(ours, job_of(1, others, "other"))).sentence


def test_a_job_keeps_its_state_and_its_hint_while_kept_nodes_may_train() -> None:
    everyone = [silent(number) for number in range(1, 11)]
    after = scene(
        *everyone, record=job(10, max_nodes=64), round=round_of(*range(1, 11)), hint=hint_of(*range(1, 11), high=64)
    )
    assert (after.job.state, after.hint, after.released) == (job().state, None, set())
    moved_on = of_ten(silent(50), silent(51), round=round_of(*range(1, 9), number=2))
    assert moved_on.hint is not None
    assert moved_on.hint.members == tuple(name(number) for number in range(1, 9))


def test_times_of_a_silence_that_are_far_in_the_future_are_clamped() -> None:
    ahead = job(10, max_nodes=64, silence={"since": NOW + 86400, "reported_at": NOW + 86400})
    after = of_ten(silent(50), silent(51), record=ahead)
    assert (after.job.silence.since, after.job.silence.reported_at) == (NOW, NOW)


def test_time_in_which_kept_nodes_are_silent_counts_as_training_only_if_their_steps_advance() -> None:
    def counts(**answer: Any) -> bool:
        record = job(1, limits={"training_since": NOW - 1000})
        volatile = {"answers": {name(50): AskDone(name(50), NOW - 1, **answer)}}
        listed = listing(machine(50), listed_at=NOW - 60)
        known: dict[str, Any] = {"record": record, "round": round_of(50), "hint": hint_of(50), "listed": listed}
        return scene(silent(50), volatile=volatile, **known).job.limits.training_since > 0

    assert counts(agent_runs=True, written_s_ago=1.0)
    assert not counts(error="connection refused")
