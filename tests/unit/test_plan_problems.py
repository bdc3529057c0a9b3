"""Problems that last: machines that no cloud ends, clouds that do not answer or are not configured any more; who is
told of them, when, and how often (P15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from provisioners.base import Coverage, InstanceState, Leftover, LeftoverKind
from supervisor.alerts.routes import Channel
from supervisor.events import EventKind, Level
from supervisor.model import JobState, NodeRecord, Transition
from supervisor.planner.actions import LeftoversDone, Terminate, TerminateDone
from supervisor.planner.cloud_problems import UNENDED_S, UNLISTED_S, UNREMOVED_S
from supervisor.planner.job_problems import job_problems
from supervisor.planner.orphans import absorb_leftovers
from supervisor.planner.outcomes import MAX_BACKOFF_S
from supervisor.planner.problems import GROWN_S, REMINDER_S, report
from supervisor.planner.world import (
    CloudView,
    Denial,
    LeftoversView,
    Problem,
    Reminder,
    Rules,
    Sighting,
    SilentRegion,
    VolatileState,
)
from tests.unit.scene import (
    NOW,
    OFFER,
    OWNER,
    Decided,
    N,
    decide,
    job,
    listing,
    machine,
    member,
    name,
    node,
    scene,
    view,
    world_of,
)

QUIET = Rules(leftovers_s=1e9)


def problem(kind: EventKind = EventKind.NOT_LISTED, since: float = 0.0, **changes: Any) -> Problem:
    return replace(Problem(kind, "aws", since, "it does not answer", over="it answers"), **changes)


def told(found: list[Problem], before: Mapping[str, Reminder], now: float) -> tuple[list[str], Mapping[str, Reminder]]:
    commits, after, _ = report(world_of(), VolatileState(reminders=before), found, now)
    return [event.text for commit in commits for event in commit.events], after.reminders


def test_a_problem_is_told_once_it_has_lasted_then_ever_more_seldom_then_that_it_is_over() -> None:
    known: Mapping[str, Reminder] = {}
    lasting, times = problem(after_s=300.0), []
    for now in range(0, 30 * 3600, 60):
        texts, known = told([lasting], known, float(now))
        times += [now] * len(texts)
    assert times[0] == 300
    assert [round((later - before) / REMINDER_S) for before, later in pairwise(times)] == [
        1,
        2,
        4,
        8,
    ]
    assert told([], known, 2e5) == (["it answers"], {})
    assert told([], {}, 2e5) == ([], {}), "nothing is over of which nobody was told"


def test_two_of_one_cloud_that_end_at_once_are_two_events() -> None:
    """etcd refuses a transaction that has a key twice."""
    both = [problem(), problem(EventKind.ACCESS_DENIED)]
    _, known = told(both, {}, 0.0)
    (over,), _, _ = report(world_of(), VolatileState(reminders=known), [], 60.0)
    assert len({event.id for event in over.events}) == 2


def test_one_that_ends_before_it_is_told_is_no_news() -> None:
    _, known = told([problem(after_s=300.0)], {}, 299.0)
    assert told([], known, 301.0) == ([], {})


def test_one_that_grows_is_told_sooner_and_one_that_shrinks_is_not() -> None:
    _, known = told([problem(members=frozenset("ab"))], {}, 0.0)
    assert told([problem(members=frozenset("a"))], known, GROWN_S)[0] == []
    assert told([problem(members=frozenset("abc"))], known, GROWN_S - 1)[0] == []
    texts, known = told([problem(members=frozenset("bc"))], known, GROWN_S)
    assert (len(texts), known["not-listed-aws"].members) == (1, frozenset("abc"))


# -- machines that no cloud ends --------------------------------------------------------------------------------------

STUCK = replace(
    node(3, N.TERMINATING, instance_id="i-3"), state_since=NOW - UNENDED_S, retry_at=NOW + 60, error="denied"
)


def ending(*nodes: NodeRecord, now: float = NOW, **more: Any) -> Decided:
    """One plan with two members and these, all of which their cloud lists."""
    machines = [machine(number) for number in (1, 2, 3, 4, 5)]
    listed = more.pop("listed", replace(listing(*machines), listed_at=now, attempted_at=now))
    outcomes = more.pop("outcomes", [])
    members = [member(1), member(2)]
    world = world_of(view(job(2), [*members, *nodes]), volatile={"clouds": {"local": listed}}, rules=QUIET, **more)
    return decide(world, *outcomes, now=now)


def test_a_machine_that_a_cloud_refuses_to_end_is_a_problem_with_its_price_and_what_to_do() -> None:
    after = ending(STUCK)
    (event,) = after.events
    assert (event.kind, event.job) == (EventKind.NOT_ENDED, "")
    assert event.text.startswith("1 machine of local does not end (i-3), the first since ")
    assert ": denied. Give spotsup the permission" in event.text
    assert f"${OFFER.usd_per_hour:.2f} an hour" in event.text
    assert after.plan.warnings == (event.text,), "the daemon's headline says it for as long"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"state_since": NOW - UNENDED_S + 1}, InstanceState.RUNNING),
        ({}, InstanceState.STOPPING),
        ({}, InstanceState.TERMINATED),
    ],
)
def test_one_that_ends_or_has_not_had_the_time_is_none(changes: dict[str, Any], state: InstanceState) -> None:
    after = ending(replace(STUCK, **changes), listed=listing(machine(1), machine(2), machine(3, state)))
    assert EventKind.NOT_ENDED not in after.event_kinds


def test_one_that_a_cloud_says_it_ends_and_still_lists_is_said_so() -> None:
    (event,) = ending(replace(STUCK, error="")).events
    assert "local accepts each request, and still lists them as running" in event.text


def test_so_is_an_orphan() -> None:
    seen = Sighting(NOW - 2000, 1, 0.0, "local", NOW, ended_at=NOW - UNENDED_S, asked_at=NOW - 9)
    listed = listing(machine(1), machine(2), machine(9, node="other-x-1"))
    after = scene(member(1), member(2), listed=listed, rules=QUIET, volatile={"sightings": {"i-9": seen}})
    assert after.event_kinds == [EventKind.NOT_ENDED]
    assert "cost money" in after.events[0].text, "its price is not known"


def test_an_end_that_is_refused_is_asked_for_ever_more_seldom() -> None:
    waits, at, tried = [], NOW, node(3, N.TERMINATING, instance_id="i-3", state_since=NOW)
    while at < NOW + 3600:
        after = ending(tried, now=at, outcomes=[TerminateDone(name(3), "i-3", error="denied")])
        tried = after.node(3)
        waits.append(tried.retry_at - at)
        at = tried.retry_at
    assert len(waits) < 40, "an hour of one machine; it was one call every two seconds"
    assert waits == sorted(waits)
    assert waits[-1] <= MAX_BACKOFF_S * 1.2
    due = ending(replace(tried, retry_at=at), now=at)
    assert due.does(Terminate) == [Terminate("local", "i-3", name(3))]


def test_two_machines_are_not_asked_for_at_the_same_time() -> None:
    at = [
        ending(
            replace(node(number, N.TERMINATING, instance_id=f"i-{number}"), state_since=NOW - 600),
            outcomes=[TerminateDone(name(number), f"i-{number}", error="denied")],
        ).node(number).retry_at
        for number in (3, 4, 5)
    ]  # fmt: skip
    assert len(set(at)) == 3


def test_what_a_machine_left_behind_and_cannot_be_removed_is_a_problem() -> None:
    disk = Leftover("vol-1", LeftoverKind.DISK, OWNER, "other-x-1", "region-1")
    seen = Sighting(NOW - 9000, 1, ended_at=NOW - UNREMOVED_S)
    view = LeftoversView({disk.id: disk}, {disk.id: seen}, NOW - 1)
    after = scene(member(1), member(2), rules=QUIET, volatile={"leftovers": {"local": view}})
    assert after.event_kinds == [EventKind.NOT_ENDED]
    assert "cannot be removed" in after.events[0].text


# -- clouds -----------------------------------------------------------------------------------------------------------


def test_a_cloud_that_is_not_listed_is_a_problem_and_one_that_is_again_is_told() -> None:
    view = CloudView(listed_at=NOW - UNLISTED_S, attempted_at=NOW - 5, error="503 Service Unavailable")
    after = scene(member(1), member(2), listed=view, rules=QUIET)
    (event,) = after.events
    assert event.kind is EventKind.NOT_LISTED
    assert "503 Service Unavailable. Until it does, no silent node is replaced" in event.text
    again = scene(
        member(1),
        member(2),
        listed=replace(view, listed_at=NOW),
        rules=QUIET,
        volatile={"reminders": after.volatile.reminders},
    )
    assert [each.text for each in again.events] == ["local says again which machines run"]


def test_regions_that_are_not_listed_are_one_problem_that_grows() -> None:
    silent = {"east": SilentRegion(NOW - UNLISTED_S, "503"), "west": SilentRegion(NOW - 10, "504")}
    view = CloudView(listed_at=NOW, attempted_at=NOW, silent=silent)
    after = scene(member(1), member(2), listed=view, rules=QUIET)
    (event,) = after.events
    assert event.kind is EventKind.NOT_LISTED
    assert "which machines run in east: 503. Until it does, no silent node there is replaced" in event.text
    grown = replace(view, silent={each: SilentRegion(NOW - GROWN_S, "503") for each in silent})
    known = {key: replace(each, at=NOW - GROWN_S) for key, each in after.volatile.reminders.items()}
    again = scene(member(1), member(2), listed=grown, rules=QUIET, volatile={"reminders": known})
    assert ["run in east, west: 503" in each.text for each in again.events] == [True]
    over = scene(member(1), member(2), listed=CloudView(listed_at=NOW), rules=QUIET, volatile={"reminders": known})
    assert [each.text for each in over.events] == ["local says again which machines run in each region"]


def test_it_is_not_said_twice_where_it_denies_everything() -> None:
    view = CloudView(listed_at=NOW - 900, attempted_at=NOW - 5, error="expired")
    volatile = {"denials": {"local": Denial("expired", NOW - 900, NOW - 5)}}
    after = scene(member(1), member(2), listed=view, rules=QUIET, volatile=volatile)
    assert after.event_kinds == [EventKind.ACCESS_DENIED]


def test_it_is_not_said_twice_where_it_answers_for_another_account() -> None:
    of_another = CloudView({}, NOW - 900, NOW - 5, foreign="account-1", coverage=Coverage("account-2"))
    after = scene(member(1), member(2), listed=of_another, rules=QUIET)
    assert after.event_kinds == [EventKind.LISTING_DOUBTED]


@pytest.mark.parametrize("foreign", ["", "account-1"])
def test_another_account_is_asked_to_end_nothing(foreign: str) -> None:
    listed = CloudView({}, NOW - 900, NOW - 5, foreign=foreign, coverage=Coverage("account-2"))
    record = job(state=JobState.CANCELLED)
    after = scene(member(1), node(2, N.TERMINATING), record=record, listed=listed, rules=QUIET)
    assert bool(after.does(Terminate)) is not bool(foreign)


def test_a_cloud_that_left_the_configuration_while_machines_run_there_is_a_problem() -> None:
    elsewhere = replace(member(2), offer=replace(OFFER, cloud="gcp"))
    after = scene(member(1), elsewhere, rules=QUIET)
    (event,) = [each for each in after.events if each.kind is EventKind.CLOUD_MISSING]
    assert event.text.startswith(
        "spotsupd.toml of the leading daemon has no gcp any more, and 1 machine of job may run"
    )
    assert event.text in after.plan.warnings


def test_a_request_of_which_a_cloud_does_not_say_what_became_of_it_is_a_problem() -> None:
    asked = replace(
        node(3, N.REQUESTED, launch_unknown=True), state_since=NOW - UNENDED_S, retry_at=NOW + 1, error="not authorized"
    )
    after = scene(member(1), member(2), asked, record=job(3), rules=QUIET)
    (event,) = [each for each in after.events if each.kind is EventKind.LAUNCH_UNCLEAR]
    assert event.text.startswith("local does not say whether it launched machines for job-u-3, the first since ")
    assert ": not authorized. They may run and cost money" in event.text
    early = replace(asked, state_since=NOW - UNENDED_S + 1)
    assert EventKind.LAUNCH_UNCLEAR not in scene(member(1), early, record=job(2), rules=QUIET).event_kinds
    unlisted = CloudView(listed_at=NOW - UNLISTED_S, attempted_at=NOW - 5, error="503")
    after = scene(member(1), member(2), asked, record=job(3), listed=unlisted, rules=QUIET)
    assert EventKind.LAUNCH_UNCLEAR not in after.event_kinds, "that it does not answer at all is said already"


def test_a_cloud_that_does_not_say_what_was_left_behind_is_a_problem_after_an_hour() -> None:
    before, texts, machines = VolatileState(), [], (machine(1), machine(2))
    for at in (0.0, 300.0, 3599.0, 3600.0):
        before = replace(before, clouds={"local": listing(*machines, listed_at=NOW + at)})
        before = absorb_leftovers(before, LeftoversDone("local", NOW + at, error="ec2:DescribeVolumes is not allowed"))
        view_of_it = before.leftovers["local"]
        world = world_of(
            view(job(), [member(1), member(2)]),
            volatile={"leftovers": {"local": view_of_it}, "clouds": {"local": listing(*machines, listed_at=NOW + at)}},
            rules=QUIET,
        )
        after = decide(world, now=NOW + at)
        texts.append([event.text for event in after.events])
    assert texts[:3] == [[], [], []]
    assert "ec2:DescribeVolumes is not allowed. Until it does, none is removed" in texts[3][0]
    assert absorb_leftovers(before, LeftoversDone("local", NOW)).leftovers["local"].failing_since == 0.0
    away = absorb_leftovers(before, LeftoversDone("local", NOW + 3600.0 + UNLISTED_S, error="503"))
    assert away.leftovers["local"].failing_since == 0.0, "it lists no machines either, of which people are told"


# -- jobs -------------------------------------------------------------------------------------------------------------


def test_people_are_reminded_of_steps_that_hang_and_of_checkpoints_that_fail() -> None:
    """Each was told when it began, as an event of its job: hang/rule.py, checkpoints/rule.py."""
    hangs = job(2, hang={"since": NOW - 3600.0}, checkpoints={"problem": "disk full", "problem_at": NOW - 3600.0})
    world = replace(world_of(view(hangs, [member(1), member(2)]), rules=QUIET), timers_paused_until=0.0)
    found = list(job_problems(world))
    assert [each.kind for each in found] == [EventKind.STEPS_HANG, EventKind.CHECKPOINTS_FAILING]
    assert f"its machines cost ${2 * (OFFER.usd_per_hour or 0):.2f} an hour" in found[0].text
    assert "disk full" in found[1].text
    _, _, headline = report(world_of(), VolatileState(), found, NOW - 3000.0)
    assert headline == tuple(each.text for each in found), "the daemon's status has them before people are reminded"
    times: list[float] = []
    known: Mapping[str, Reminder] = {}
    for minute in range(24 * 60):
        texts, known = told(found[:1], known, NOW - 3600.0 + 60.0 * minute)
        times += [minute / 60] * len(texts)
    assert [round(each) for each in times] == [1, 2, 4, 8, 16]


def test_the_channels_of_a_job_hear_of_its_problems() -> None:
    of_job = problem(since=-5.0, job="resnet")
    rules = Rules(alerts=True, channels=(Channel(level=Level.OFF, jobs={"resnet": Level.INFO}),))
    world = replace(world_of(), rules=rules)
    (commit,), after, _ = report(world, VolatileState(), [of_job, problem(since=-5.0, cause="gcp")], 0.0)
    assert [each.job for each in commit.alerts] == ["resnet"]
    assert [each.job for each in commit.events] == ["", ""], "they are the cluster's own events"
    (over,), _, _ = report(world, after, [], 60.0)
    assert [each.job for each in over.alerts] == ["resnet"]


def test_spares_that_cannot_be_bootstrapped_one_after_the_other_are_a_problem() -> None:
    failed = [
        replace(
            node(number, N.GONE, error="the package index is away\nmore"),
            history=(Transition(NOW, N.BOOTSTRAPPING, N.FAILED, "away"),),
        )
        for number in range(3, 8)
    ]
    record = replace(job(2), spare_nodes=1)

    def found(*nodes: NodeRecord, **messages: Any) -> list[Problem]:
        return list(job_problems(world_of(view(record, [member(1), member(2), *nodes], **messages), rules=QUIET)))

    (one,) = found(*failed)
    assert one.text == (
        "job has no spare: 5 in a row could not be bootstrapped, and each try is paid for. The last error: the package "
        "index is away"
    )
    assert found(*failed[1:]) == []
    assert found(*failed, replace(node(8, N.GONE), has_joined=True)) == [], "one worked since"


def test_problems_of_other_parts_of_the_daemon_are_told_alike() -> None:
    outside = (problem(EventKind.TASK_FAILING, cause="backup", since=NOW - 4000.0, after_s=3600.0),)
    after = scene(member(1), member(2), rules=QUIET, outside=outside)
    assert after.event_kinds == [EventKind.TASK_FAILING]
    assert outside[0].text in after.plan.warnings
