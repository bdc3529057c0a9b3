"""Problems that last: machines that no cloud ends, clouds that do not answer or are not configured any more; who is
told of them, when, and how often (P15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from provisioners.base import InstanceState, Leftover, LeftoverKind
from supervisor.events import EventKind
from supervisor.model import NodeRecord
from supervisor.planner.actions import Terminate, TerminateDone
from supervisor.planner.cloud_problems import UNENDED_S, UNLISTED_S, UNREMOVED_S
from supervisor.planner.outcomes import MAX_BACKOFF_S
from supervisor.planner.problems import GROWN_S, REMINDER_S, Problem, report
from supervisor.planner.world import CloudView, Denial, LeftoversView, Reminder, Rules, Sighting, VolatileState
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


def problem(since: float = 0.0, **changes: Any) -> Problem:
    return replace(Problem(EventKind.NOT_LISTED, "aws", since, "it does not answer", over="it answers"), **changes)


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


def test_it_is_not_said_twice_where_it_denies_everything() -> None:
    view = CloudView(listed_at=NOW - 900, attempted_at=NOW - 5, error="expired")
    volatile = {"denials": {"local": Denial("expired", NOW - 900, NOW - 5)}}
    after = scene(member(1), member(2), listed=view, rules=QUIET, volatile=volatile)
    assert after.event_kinds == [EventKind.ACCESS_DENIED]


def test_a_cloud_that_left_the_configuration_while_machines_run_there_is_a_problem() -> None:
    elsewhere = replace(member(2), offer=replace(OFFER, cloud="gcp"))
    after = scene(member(1), elsewhere, rules=QUIET)
    (event,) = [each for each in after.events if each.kind is EventKind.CLOUD_MISSING]
    assert event.text.startswith(
        "spotsupd.toml of the leading daemon has no gcp any more, and 1 machine of job may run"
    )
    assert event.text in after.plan.warnings
