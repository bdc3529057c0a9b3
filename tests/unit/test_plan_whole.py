"""A plan as a whole: all or nothing per job, what is kept and what is forgotten, and when nothing has to be decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Ended, Progress

from provisioners.base import Leftover, LeftoverKind, NoCapacity, Scope
from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing
from supervisor.billing import Purpose, RoundTimes
from supervisor.events import EventKind
from supervisor.model import JobRecord, NodeRecord, NoticeRecord
from supervisor.planner.actions import (
    Action,
    Bootstrap,
    Commit,
    FetchOffers,
    Find,
    Launch,
    LaunchDone,
    ListInstances,
    ListLeftovers,
    Remove,
    SendAlerts,
    Terminate,
)
from supervisor.planner.plan import plan
from supervisor.planner.quiescence import Steady, skipped
from supervisor.planner.world import Rules, World
from tests.unit.scene import (
    KEYS,
    MISSED,
    NOW,
    OFFER,
    OWNER,
    J,
    N,
    decide,
    hint_of,
    job,
    launcher,
    listing,
    member,
    name,
    names,
    node,
    offering,
    round_of,
    scene,
    view,
    world_of,
)

# -- actions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "key"),
    [
        (Launch(member(1)), f"node:{name(1)}"),
        (Find(member(1)), f"node:{name(1)}"),
        (Bootstrap(member(1), job()), f"node:{name(1)}"),
        (Terminate("local", "i-1", name(1)), "end:i-1"),
        (ListInstances("local"), "list:local"),
        (ListLeftovers("local"), "leftovers:local"),
        (Remove("local", Leftover("d-1", LeftoverKind.DISK, OWNER, "", "r")), "remove:d-1"),
        (FetchOffers("job", "local", ()), "offers:job"),
        (SendAlerts(Channel("ops"), Outgoing(())), "alerts:ops"),
    ],
)
def test_what_must_not_run_twice_at_once_has_one_key(action: Action, key: str) -> None:
    assert action.key == key


EVENT = scene(member(1)).events[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"job_record": job()},
        {"nodes": [member(1)]},
        {"delete_nodes": [name(1)]},
        {"put_keys": {"k": b""}},
        {"delete_keys": ["k"]},
        {"events": [EVENT]},
        {"actions": [ListInstances("local")]},
    ],
)
def test_a_commit_is_empty_only_where_nothing_is_written_or_done(changes: Mapping[str, Any]) -> None:
    assert Commit("job", {}).empty
    assert not Commit("job", {}, **changes).empty


# -- one commit per job ------------------------------------------------------------------------------------


def test_a_commit_is_guarded_by_all_that_it_changes() -> None:
    lost = node(2, N.LOST)
    after = scene(member(1), lost, record=job(1))
    assert after.commit.guards == {"job": 7, name(2): 3}
    assert after.commit.job_record is None, "the job itself is as it was"
    new = scene(member(1))
    assert new.commit.guards == {"job": 7, name(50): 0}
    assert new.commit.job_record == new.job


def test_a_job_whose_records_contradict_what_is_observed_is_left_as_it_is_and_others_are_not() -> None:
    odd = node(1, N.REQUESTED, instance_id="i-1")  # it has a machine, but none was granted
    jobs = [view(job(2), [odd]), view(replace(job(1, J.QUEUED), name="other", uid="other"), [])]
    world = world_of(*jobs, volatile={"clouds": {"local": listing(missed_at={name(1): MISSED})}})
    after = decide(world)
    refused = after.plan.undecided["job"]
    assert f"IllegalTransitionError: node {name(1)}: requested → lost" in refused.sentence
    assert after.sentence == refused.sentence
    assert [each.job for each in after.plan.commits] == ["other"]
    assert after.plan.steady_jobs == frozenset()
    assert after.plan.warnings == (), "it is the job's sentence, and no warning of the cluster"


def test_a_part_of_the_whole_whose_decision_fails_is_a_warning_and_the_jobs_are_decided() -> None:
    odd: Any = {"denials": {"local": None}}
    after = scene(member(1), volatile=odd)
    fault = after.plan.undecided["(problems)"]
    assert fault.sentence.startswith("(problems) is left as it is: deciding about it failed (AttributeError: ")
    assert fault.sentence in after.plan.warnings
    assert len(after.new) == 1


def test_jobs_are_planned_in_the_order_of_their_names() -> None:
    called = ["epsilon", "beta", "delta", "alpha", "gamma", "zeta", "eta", "theta"]
    world = world_of(*(view(replace(job(1, J.QUEUED), name=each, uid=each), []) for each in called))
    found, _ = plan(world, {}, KEYS, NOW)
    assert [each.job for each in found.commits] == list(found.sentences) == sorted(called)


def test_what_a_cloud_answers_is_written_to_the_journal_by_the_same_plan() -> None:
    full = LaunchDone(name(2), OFFER, NoCapacity(Scope.ZONE, 60.0, "full"))
    after = scene(member(1), node(2, N.REQUESTED), outcomes=[full])
    (commit,) = [each for each in after.plan.commits if each.capacity]
    assert (commit.job, commit.guards, commit.nodes) == ("", {}, ())
    assert commit.capacity
    assert [(each.scope, each.until, each.message) for each in commit.capacity.refusals] == [
        (Scope.ZONE, NOW + 60, "full")
    ]


def test_alerts_are_written_with_their_event_where_they_are_wanted() -> None:
    for alerts in (False, True):
        after = scene(member(1), node(2, N.SUSPECT), rules=Rules(alerts=alerts, leftovers_s=1e9))
        kinds = [each.kind for each in after.commit.alerts]
        assert EventKind.NODE_LOST in after.event_kinds
        assert kinds == ([EventKind.NODE_LOST] if alerts else [])


def test_events_are_numbered_and_named_for_ever() -> None:
    after = scene(member(1), record=job(3, next_event=41))
    assert [each.id for each in after.events] == ["job-u-000041", "job-u-000042"]
    assert after.job.next_event == 43
    assert {(each.job, each.at) for each in after.events} == {("job", NOW)}


@pytest.mark.parametrize(
    ("first", "following", "dropped", "kept"),
    [
        (1, 11, (), 1),
        (1, 12, (1,), 2),
        (1, 14, (1, 2, 3), 4),
        (4, 14, (), 4),
        (1, 500, tuple(range(1, 127)), 127),  # as many as one transaction takes
    ],
)
def test_old_events_are_dropped_with_each_commit(
    first: int, following: int, dropped: tuple[int, ...], kept: int
) -> None:
    rules = Rules(events_kept=10, leftovers_s=1e9)
    record = job(1, first_event=first, next_event=following)
    after = scene(member(1), node(2, N.FAILED, instance_id=""), record=record, rules=rules)
    assert list(after.commit.delete_events) == [f"job-u-{number:06d}" for number in dropped]
    assert after.job.first_event == kept
    assert 1 + len(after.commit.nodes) + len(after.commit.delete_events) <= 128


def test_only_events_that_are_in_the_journal_already_are_dropped() -> None:
    record = job(3, first_event=5, next_event=6)
    after = scene(member(1), record=record, rules=Rules(events_kept=1, leftovers_s=1e9))
    assert len(after.events) == 2
    assert list(after.commit.delete_events) == ["job-u-000005"]


def test_a_skipped_job_is_not_planned() -> None:
    world = world_of(view(job(3), [member(1)]), skipped=frozenset({"job"}))
    decided = decide(world)
    assert (decided.plan.commits, dict(decided.plan.sentences)) == ((), {})


def test_planning_clears_the_changed_jobs() -> None:
    assert (
        scene(member(1), member(2), volatile={"changed_jobs": frozenset({"job"})}).volatile.changed_jobs == frozenset()
    )


def test_what_one_job_learns_the_next_one_knows_in_the_same_plan() -> None:
    jobs = [replace(job(1, J.QUEUED), name=each, uid=each) for each in ("job", "other")]
    world = world_of(*(view(each, []) for each in jobs))
    assert len([each for commit in decide(world).plan.commits for each in commit.actions]) == 2


def test_the_same_input_is_the_same_plan_in_the_same_order() -> None:
    lost = [node(number, N.LOST) for number in (5, 3, 9, 4, 8, 1, 7)]
    after = scene(*lost, record=job(1, J.WAITING), volatile={"offers": {}})
    assert [each.id for each in after.commit.nodes] == list(names(1, 3, 4, 5, 7, 8, 9))
    assert list(after.commit.guards) == ["job", *names(1, 3, 4, 5, 7, 8, 9)]


# -- what is forgotten -------------------------------------------------------------------------------------


def test_the_oldest_records_of_nodes_that_are_gone_are_dropped_with_their_logs() -> None:
    gone = [node(n, N.GONE, launched_at=NOW - 7200, ended_at=NOW - 3600) for n in (5, 3, 4)]
    after = scene(member(1), member(2), *gone, rules=Rules(gone_kept=1, leftovers_s=1e9))
    assert list(after.commit.delete_nodes) == list(names(3, 4))
    assert list(after.commit.delete_keys) == [KEYS.logs("job", each) for each in names(3, 4)]
    assert after.job.billing.dropped_usd == 1.0, "what they cost stays with the job"
    assert set(after.commit.guards) == {"job", *names(3, 4)}
    assert scene(member(1), member(2), *gone, rules=Rules(gone_kept=3, leftovers_s=1e9)).plan.commits == ()
    died = [replace(each, unhealthy_at=NOW - 3599.0) for each in gone]
    rules = Rules(gone_kept=0, leftovers_s=1e9)
    assert scene(member(1), member(2), *died, rules=rules).plan.commits == (), "those whose GPUs died count for an hour"


def test_the_record_of_a_node_whose_place_is_empty_is_kept_so_that_its_job_is_not_scaling_up() -> None:
    lost = node(2, N.GONE, has_joined=True, needs_replacement=True)
    refused = [node(number, N.GONE, error="zone-a is full") for number in (4, 5, 6)]
    after = scene(member(1), member(3), lost, *refused, record=job(3), rules=Rules(gone_kept=2, leftovers_s=1e9))
    assert list(after.commit.delete_nodes) == [name(4)]
    assert after.sentence.startswith("2 of 3 nodes train")


def test_a_node_that_is_gone_only_now_may_be_forgotten_in_the_same_commit() -> None:
    after = scene(
        member(1), node(2, N.FAILED, instance_id=""), record=job(1), rules=Rules(gone_kept=0, leftovers_s=1e9)
    )
    assert ([each.id for each in after.commit.nodes], list(after.commit.delete_nodes)) == ([], [name(2)])


def test_leftover_messages_are_deleted_and_others_are_not() -> None:
    leftovers = tuple(key("job", name(2)) for key in (KEYS.tombstone, KEYS.notice, KEYS.ended))
    exits = {name(3): Ended(name(3), "left", 0, "", NOW)}
    nodes = [member(1), node(2, N.GONE), node(3, N.TERMINATING, retry_at=NOW + 9)]
    after = scene(*nodes, record=job(1), exits=exits, leftover_messages=leftovers)
    assert tuple(after.commit.delete_keys) == leftovers


def test_many_messages_and_records_are_deleted_in_parts() -> None:
    gone = [node(n, N.GONE) for n in range(1, 300)]
    for kept, leftovers in ((0, ()), (1000, tuple(KEYS.tombstone("job", each.id) for each in gone))):
        rules = Rules(gone_kept=kept, leftovers_s=1e9)
        after = scene(
            *gone, record=job(1, J.WAITING), rules=rules, leftover_messages=leftovers, volatile={"offers": {}}
        )
        written = 1 + len(after.commit.delete_keys) + len(after.commit.delete_nodes)
        assert 60 < written <= 128


# -- when nothing has to be decided ------------------------------------------------------------------------

SETTLED = [member(1), member(2)]
TRAINS = RoundTimes(phase=Purpose.USEFUL, since=NOW - 90, round=1, step=1, step_at=NOW - 90)
NO_OFFERS = {"volatile": offering()}


@pytest.mark.parametrize(
    ("nodes", "record", "messages", "steady"),
    [
        (SETTLED, job(2), {}, True),
        ([*SETTLED, node(3, N.READY)], job(2, spare_nodes=1), {"hint": hint_of(1, 2, spares=[3])}, True),
        ([*SETTLED, node(3, N.GONE)], job(2), {}, True),
        ([*SETTLED, node(3, N.TERMINATING, retry_at=NOW + 9)], job(2), {}, False),
        (SETTLED, job(2), {"members": {name(1): launcher(1, "running")}}, False),
        (SETTLED, job(2, billing={"rounds": TRAINS}), {"progress": Progress(1, 1, NOW, NOW)}, True),
        (
            SETTLED,
            job(2, checkpoints={"problem": "disk full", "problem_at": NOW}),
            {"progress": Progress(1, 1, NOW, NOW, checkpoint_problem="disk full")},
            False,
        ),
        (
            SETTLED,
            job(2, checkpoints={"problem": "disk full", "problem_at": NOW}),
            {"progress": Progress(1, 1, NOW, NOW)},
            False,
        ),
        (
            SETTLED,
            job(2, checkpoints={"problem_at": NOW}),
            {"progress": Progress(1, 1, NOW, NOW, checkpoint_problem="new")},
            False,
        ),
        ([], job(2, J.SUCCEEDED), {"hint": None}, True),
        ([node(1, N.GONE)], job(2, J.SUCCEEDED), {"hint": None}, True),
        ([node(1, N.TERMINATING, retry_at=NOW + 9)], job(2, J.SUCCEEDED), {}, False),
        (
            [],
            job(2, J.PAUSED, pause={"at": NOW - 9}),
            {"hint": hint_of(reason="the job is paused", hold=True)},
            True,
        ),
        (
            [node(1, N.TERMINATING, retry_at=NOW + 9)],
            job(2, J.PAUSED, pause={"at": NOW - 9}),
            {"hint": hint_of(reason="the job is paused", hold=True)},
            False,
        ),
        (
            SETTLED,
            job(2, pause={"at": NOW - 9}),
            {"hint": hint_of(1, 2, reason="the job is paused", hold=True)},
            False,
        ),
        ([member(1)], job(1), {"volatile": {"offers": {}}, "timers_paused_until": NOW}, True),
        (
            [member(1)],
            job(2, J.DEGRADED),
            {"volatile": offering(asked_at=NOW)},
            False,
        ),
        ([member(1, notice=NoticeRecord(NOW + 60, NOW, "x"))], job(1), NO_OFFERS, False),
        ([member(1, drain_requested=True), member(2)], job(2), NO_OFFERS, False),
        ([member(1), node(2, N.READY)], job(1, spare_nodes=1), {"members": {name(1): launcher(1, "running")}}, False),
        ([member(1)], job(1, spare_nodes=1), NO_OFFERS, False),
    ],
)
def test_a_job_is_steady_when_it_has_all_it_wants_and_nothing_is_under_way(
    nodes: list[NodeRecord], record: JobRecord, messages: Any, steady: bool
) -> None:
    assert scene(*nodes, record=record, **messages).plan.steady_jobs == (frozenset({"job"}) if steady else frozenset())


def test_a_job_with_a_commit_or_a_read_is_not_steady() -> None:
    assert scene(member(1), record=job(1, rounds={"gathering_since": NOW - 1})).plan.steady_jobs == frozenset()
    asks = scene(member(1), record=job(2, J.DEGRADED), volatile={"offers": {}})
    assert asks.plan.steady_jobs == frozenset()
    reads_prices = scene(*SETTLED, volatile=offering(OFFER, asked_at=0.0))
    assert (reads_prices.plan.commits, reads_prices.plan.steady_jobs) == ((), frozenset())


def skipped_now(world: World, steady: Mapping[str, Steady], *in_hand: str, now: float = NOW) -> frozenset[str]:
    return skipped(world, steady, in_hand, now)


def test_a_steady_job_is_skipped_until_its_view_changes_or_its_time_is_up() -> None:
    world = world_of(view(job(2), SETTLED))
    steady = {"job": Steady(world.jobs["job"], NOW)}
    assert skipped_now(world, steady) == {"job"}
    assert skipped_now(world, steady, now=NOW + world.rules.steady_s - 0.1) == {"job"}
    assert skipped_now(world, steady, now=NOW + world.rules.steady_s) == frozenset()
    assert skipped_now(world, {}) == frozenset()
    assert skipped_now(world, steady, name(9)) == {"job"}
    assert skipped_now(world, steady, name(9), name(2)) == frozenset()
    assert skipped_now(replace(world, unjournaled=frozenset({"other-u-9"})), steady) == {"job"}, "a message alone"
    assert skipped_now(replace(world, unjournaled=frozenset({name(9)})), steady) == frozenset(), "it may be its own"
    unlisted = replace(world, unjournaled=frozenset({"other-u-9"}), volatile=replace(world.volatile, clouds={}))
    assert skipped_now(unlisted, steady) == frozenset(), "it may be any machine"
    changed = replace(world, volatile=replace(world.volatile, changed_jobs=frozenset({"job"})))
    assert skipped_now(changed, steady) == frozenset()
    assert skipped_now(world_of(view(job(2), SETTLED)), steady) == frozenset(), "its keys were read again"
    assert skipped_now(replace(world, jobs={}), steady) == frozenset()


def test_progress_does_not_end_a_skip_but_a_checkpoint_problem_does() -> None:
    world = world_of(view(job(2), SETTLED))
    known = world.jobs["job"]
    steady = {"job": Steady(known, NOW)}
    for problem, sleeps in (("", True), ("disk full", False)):
        further = replace(known, progress=Progress(1, 99, NOW, NOW, checkpoint_problem=problem))
        assert bool(skipped_now(replace(world, jobs={"job": further}), steady)) is sleeps
    other = replace(known, nodes=dict(known.nodes), progress=Progress(1, 99, NOW, NOW))
    assert skipped_now(replace(world, jobs={"job": other}), steady) == frozenset()


def test_spares_are_ready_nodes_that_the_hint_names_as_such() -> None:
    nodes = [member(1), node(2, N.READY), node(3, N.READY), node(4, N.BOOTSTRAPPING), node(5, N.READY)]
    hint = hint_of(1, spares=[5, 4, 3, 1])
    assert view(job(1), nodes, hint=hint, round=round_of(1)).spares == names(5, 3)
    assert view(job(1), nodes, hint=hint, round=round_of(1, 5)).spares == names(3)
    assert view(job(1), nodes, hint=hint, round=None).spares == names(5, 3)
    assert view(job(1), nodes, hint=None).spares == ()


def test_an_earlier_job_of_a_name_is_called_by_its_run() -> None:
    known = view(job(1, run=3), [])
    assert (known.name, replace(known, past=True).name) == ("job", "job.3")
