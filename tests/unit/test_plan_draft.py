"""A draft: one job's decision in progress, and how much of it one transaction takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.events import EventKind
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import Terminate
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import is_complete
from supervisor.planner.world import Rules
from tests.unit.scene import KEYS, NOW, N, draft_of, job, member, name, names, node, view, world_of


def test_nodes_come_oldest_first() -> None:
    alike = member(2, created_at=member(3).created_at)
    draft = draft_of(member(3), member(10), member(1), alike, node(4, N.READY))
    assert [each.id for each in draft.in_states(N.MEMBER)] == list(names(1, 2, 3, 10))


@pytest.mark.parametrize(
    ("alerts", "kind", "most"),
    [(True, EventKind.NOTICE, 51), (True, EventKind.SCALED, 102), (False, EventKind.NOTICE, 102)],
)
def test_a_draft_is_full_before_a_transaction_is(alerts: bool, kind: EventKind, most: int) -> None:
    draft = draft_of(member(1), rules=Rules(alerts=alerts))
    for _ in range(most):
        draft.add_event(kind, "text")
    assert not draft.full
    draft.add_event(kind, "text")
    assert draft.full


def test_a_node_whose_record_is_deleted_is_in_the_draft_no_more() -> None:
    draft = draft_of(member(1), node(2, N.GONE))
    draft.delete_node(draft.nodes[name(2)])
    assert set(draft.nodes) == {name(1)}


@pytest.mark.parametrize(
    ("others", "complete"),
    [
        ([member(2)], True),
        ([node(2, N.READY)], True),
        ([node(2, N.BOOTSTRAPPING)], False),
        ([node(2, N.SUSPECT)], False),
        ([member(2, drain_requested=True)], False),
        ([], False),
    ],
)
def test_a_job_is_complete_when_all_desired_nodes_are_there_and_stay(others: list[NodeRecord], complete: bool) -> None:
    assert is_complete(draft_of(member(1), *others)) is complete


def test_what_is_under_way_or_decided_is_busy() -> None:
    draft = draft_of(member(1))
    assert not draft.busy("end:i-1")
    draft.request_action(Terminate("local", "i-1", name(1)))
    assert draft.busy("end:i-1")
    assert not draft.busy("end:i-2")


WIDE = "語"  # three bytes


@pytest.mark.parametrize(
    ("alerts", "kind", "events", "nodes", "full"),
    [
        (False, EventKind.LOG_TAIL, 28, 0, False),
        (False, EventKind.LOG_TAIL, 30, 0, True),
        (False, EventKind.NOTICE, 45, 0, False),
        (True, EventKind.NOTICE, 45, 0, True),  # each is written a second time, as an alert
        (False, EventKind.NOTICE, 0, 70, False),
        (False, EventKind.NOTICE, 0, 85, True),
        (False, EventKind.LOG_TAIL, 10, 70, True),
    ],
)
def test_long_texts_fill_a_draft_sooner(alerts: bool, kind: EventKind, events: int, nodes: int, full: bool) -> None:
    draft = draft_of(*(member(n) for n in range(nodes)), rules=Rules(alerts=alerts))
    for each in list(draft.nodes.values()):
        draft.set_node(replace(each, error=9999 * WIDE))
    for _ in range(events):
        draft.add_event(kind, 9999 * WIDE)
    assert draft.full is full


def test_a_record_that_changes_often_is_written_once() -> None:
    draft = draft_of(member(1))
    for _ in range(200):
        draft.set_node(replace(member(1), error=9999 * WIDE))
    assert not draft.full


# -- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "characters"), [(EventKind.NODE_FAILED, 2000), (EventKind.CONSOLE_TAIL, 6000), (EventKind.LOG_TAIL, 6000)]
)
def test_an_events_text_is_cut_and_the_end_of_a_log_later(kind: EventKind, characters: int) -> None:
    draft = draft_of(member(1))
    draft.add_event(kind, 9999 * "x", detail=9999 * "x", count=5)
    (event,) = draft.commit().events
    assert len(event.text) == characters
    assert (len(str(event.data["detail"])), event.data["count"]) == (200, 5)


def test_a_nodes_error_is_cut_and_without_control_characters() -> None:
    error = draft_of(member(1)).set_node(replace(member(1), error="\x1b[2J" + 9999 * "x")).error
    assert len(error) == 2000
    assert "\x1b" not in error


# -- other jobs --------------------------------------------------------------------------------------------


def test_one_other_job_that_has_trained_and_cannot_bootstrap_is_enough() -> None:
    well, failing = job(1), job(1, bootstraps={"failures": 1})

    def others_fail(**jobs: JobRecord) -> bool:
        world = world_of(*(view(replace(record, name=called), []) for called, record in jobs.items()))
        return Draft(world, world.jobs["job"], {}, KEYS, NOW).others_fail_to_bootstrap()

    assert others_fail(job=well, second=failing, third=well)
    assert not others_fail(job=well, second=well, third=well)
    assert not others_fail(job=failing, second=well), "a job's own failures prove nothing of others"
