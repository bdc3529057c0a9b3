"""`finish_by` and `work`: as they are written, the rule of Uniform Progress, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Progress

from provisioners.base import Market, NoCapacity, Scope
from supervisor.api.jobs.views import job_row
from supervisor.billing import Booking, Purpose, RoundTimes
from supervisor.deadlines import Work, finish_by_at, work_of
from supervisor.errors import UsageError
from supervisor.events import EventKind
from supervisor.features.deadline.rule import as_text, deadline_of, pace_of
from supervisor.market.capacity import CapacityMemory
from supervisor.market.deadline import Deadline
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import Launch
from supervisor.runtime.renewals import renewed
from supervisor.spec import parse_spec
from tests.unit.scene import (
    NOW,
    OFFER,
    Decided,
    J,
    N,
    job,
    member,
    node,
    offering,
    round_of,
    scene,
    spec,
    view,
)

H = 3600.0
ON_DEMAND = replace(OFFER, market=Market.ON_DEMAND, usd_per_hour=1.5)
KEYS = {"name": "due", "nodes": 1, "run": "train.py", "market": "spot-then-on-demand"}


# -- as it is written --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("finish_by", "at"), [("90m", 5400.0), ("52h", 52 * H), ("1.5d", 36 * H)])
def test_a_duration_counts_from_when_the_job_may_begin(finish_by: str, at: float) -> None:
    parse_spec(KEYS | {"finish_by": finish_by, "work": "1h"})
    assert finish_by_at(finish_by, "1h", 0.0, NOW) == NOW + at
    assert finish_by_at(finish_by, "1h", NOW + 60, NOW) == NOW + 60 + at
    assert finish_by_at("", "", 0.0, NOW) == 0.0


def test_work_is_a_time_or_a_number_of_steps() -> None:
    assert work_of("48h") == Work(seconds=48 * H)
    assert work_of("90000 steps") == Work(steps=90000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finish_by": "52h"}, "`finish_by` needs `work`: `48h`, the time"),
        ({"work": "48h"}, "`work` says what has to be done by `finish_by`: write both, or neither"),
        (
            {"finish_by": "52h", "work": "48h", "market": "spot"},
            "cannot be kept where spot machines are the last resort: write `market",
        ),
        ({"finish_by": "52h", "work": "48h", "checkpoints": "none"}, "needs checkpoints, as a preempted job would"),
        ({"finish_by": "52h", "work": "48h", "kind": "data"}, "a data job has no checkpoints"),
        (
            {"finish_by": "2026-12-24T22:00Z", "work": "4h", "schedule": "0 22 * * *"},
            "with `schedule`, `finish_by` is a duration",
        ),
        ({"finish_by": "52x", "work": "48h"}, "is no duration; write one such as 90m, 52h or 3d, or a time such as"),
        ({"finish_by": "2026-12-24T22:00", "work": "48h"}, "does not say in which time zone"),
        ({"finish_by": "0h", "work": "48h"}, "no time at all"),
        ({"finish_by": "52h", "work": "much"}, "'much' is no amount of work; write `48h`"),
        ({"finish_by": "52h", "work": "0 steps"}, "is no amount of work"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_spec(KEYS | changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("finish_by", "work", "said"),
    [
        ("40h", "48h", "48.0 h of `work` do not fit into the 40.0 h until `finish_by`"),
        ("1970-01-01T00:00Z", "90 steps", "is not after the job begins"),
        ("500d", "48h", "more than a year ahead"),
    ],
)
def test_a_deadline_that_cannot_be_met_is_refused_at_submit(finish_by: str, work: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        finish_by_at(finish_by, work, 0.0, NOW)
    assert said in str(refused.value)


def test_each_run_of_a_schedule_has_its_own_deadline() -> None:
    keys = {"schedule": "0 22 * * *", "finish_by": "8h", "work": "4h", "market": "spot-then-on-demand"}
    over = job(1, J.SUCCEEDED, spec=spec(**keys), deadline={"finish_by": NOW - 5})
    found = renewed(view(over, []), NOW)
    assert found is not None
    assert found[0].deadline.finish_by == found[0].starts_at + 8 * H


# -- the rule ----------------------------------------------------------------------------------------------


def due(done_h: float, *, total_h: float = 48.0, by_h: float = 60.0, switch_h: float = 0.25) -> Deadline:
    """It began at 0."""
    return Deadline(0.0, by_h * H, total_h * H, done_h * H, switch_h * H)


def test_spot_is_waited_for_while_the_job_is_not_behind_even_progress_by_more_than_a_change_over() -> None:
    assert not due(8.0).needs_on_demand(10 * H)
    assert not due(7.76).needs_on_demand(10 * H)
    assert due(7.74).needs_on_demand(10 * H)
    assert not due(0.0).needs_on_demand(0.0)


def test_no_risk_is_taken_once_the_time_that_can_be_lost_is_nearly_used_up() -> None:
    late = due(47.0)  # an hour is left, and far more is done than even progress
    assert not late.needs_on_demand(58.4 * H)
    assert late.needs_on_demand(58.5 * H)
    assert late.may_go_back(58.2 * H)
    assert not late.may_go_back(58.25 * H)


def test_it_is_missed_once_no_machines_could_be_fast_enough() -> None:
    assert not due(47.0).is_missed(59 * H)
    missed = due(47.0)
    assert missed.is_missed(59.1 * H)
    assert missed.needs_on_demand(59.1 * H)
    assert missed.may_go_back(59.1 * H), "it pays no more than a job without a deadline"
    assert not due(48.0).is_missed(61 * H)


@pytest.mark.parametrize(("done_h", "at_h"), [(8.0, 10.3125), (47.0, 58.5)])
def test_it_is_known_until_when_spot_is_waited_for(done_h: float, at_h: float) -> None:
    found = due(done_h)
    assert found.needed_at(10 * H) == pytest.approx(at_h * H)
    assert not found.needs_on_demand(at_h * H - 1)
    assert found.needs_on_demand(at_h * H + 1)
    assert found.needed_at(at_h * H + 1) == at_h * H + 1


# -- how far a job is --------------------------------------------------------------------------------------


def trained(number: int, useful_h: float, **changes: Any) -> NodeRecord:
    """A node that is booked to now."""
    billing = replace(
        member(number).billing, booked_to=NOW, in_round=True, purpose=Purpose.UNKNOWN,
        bookings=(Booking("1970-01", Purpose.USEFUL, useful_h * H, 1.0), Booking("1970-01", Purpose.LOST, 9.9, 1.0)),
    )  # fmt: skip
    return member(number, **({"billing": billing} | changes))


def due_job(desired: int = 1, work: str = "48h", **changes: Any) -> JobRecord:
    """Begun at NOW - 10 h, due at NOW + 50 h."""
    keys: dict[str, Any] = {"market": "spot-then-on-demand", "finish_by": "60h", "work": work}
    keys["nodes"] = {"min": 1, "desired": desired, "max": 4}
    times = RoundTimes(since=NOW, round=1, phase=Purpose.PAUSE)
    known: dict[str, Any] = {
        "spec": spec(**keys),
        "submitted_at": NOW - 10 * H,
        "deadline": {"finish_by": NOW + 50 * H},
        "billing": {"rounds": times},
    }
    return job(desired, **(known | changes))


def test_work_in_hours_counts_useful_time_of_all_its_nodes() -> None:
    found = deadline_of(due_job(2), [trained(1, 8.0), trained(2, 4.0)], None, NOW)
    assert found is not None
    assert (found.begins_at, found.finish_by) == (NOW - 10 * H, NOW + 50 * H)
    assert (found.total_s, found.done_s) == (48 * H, 6 * H)
    scaled = deadline_of(replace(due_job(2), desired_nodes=4), [trained(1, 8.0), trained(2, 4.0)], None, NOW)
    assert scaled is not None
    assert (scaled.total_s, scaled.done_s) == (24 * H, 3 * H), "twice as many nodes need half the time"


def test_work_in_steps_counts_them_at_their_measured_pace() -> None:
    record = due_job(work="1000 steps")
    assert deadline_of(record, [member(1)], None, NOW) is None
    young = Progress(1, 20, NOW, NOW - 30, first_step=1)
    assert pace_of(record, young) == 0.0
    steady = Progress(1, 101, NOW, NOW - 6000, first_step=1, checkpoint_step=60, checkpoint_every_s=300.0)
    found = deadline_of(record, [member(1)], steady, NOW)
    assert found is not None
    assert (found.total_s, found.done_s) == (60_000.0, 101 * 60.0)
    nobody = deadline_of(
        replace(record, deadline=replace(record.deadline, pace_s=60.0)), [node(1, N.LOST)], steady, NOW
    )
    assert nobody is not None
    assert nobody.done_s == 60 * 60.0, "what no checkpoint has is made again"
    assert scene(member(1), record=record, progress=steady).job.deadline.pace_s == 60.0


# -- what is done about it ---------------------------------------------------------------------------------


def missing(done_h: float, **changes: Any) -> Decided:
    """It has no node; spot has none, on-demand has some."""
    refused = NoCapacity(Scope.TYPE_IN_ZONE, 180.0, "zone-a is full")
    full = CapacityMemory().remember(OFFER, refused, NOW - 10, spare=False)
    spent = replace(trained(9, done_h), state=N.GONE, ended_at=NOW - 20)
    record = due_job(state=J.WAITING, **changes)
    return scene(spent, record=record, volatile=offering(OFFER, ON_DEMAND) | {"capacity": full}, round=round_of(9))


def test_on_demand_is_asked_for_only_once_the_deadline_needs_it() -> None:
    waits = missing(8.0)
    assert waits.does(Launch) == []
    assert "zone-a is full; on-demand from " in waits.sentence
    assert [each.node.offer.market for each in missing(7.0).does(Launch)] == [Market.ON_DEMAND]
    assert missing(7.0, deadline={}).does(Launch), "without a deadline it pays at once"


def test_on_demand_nodes_are_left_for_spot_only_while_spot_may_be_lost() -> None:
    def with_spot_back(due_in_h: float) -> list[bool]:
        dear = trained(1, 47.0, offer=ON_DEMAND, state_since=NOW - 2000, created_at=NOW - 2000)
        record = due_job(state_since=NOW - 2000, deadline={"finish_by": NOW + due_in_h * H})
        return [each.ahead for each in scene(dear, record=record, volatile=offering(OFFER, ON_DEMAND)).new]

    assert with_spot_back(2.0) == [True]
    assert with_spot_back(1.4) == []


def test_people_are_told_once_that_a_deadline_cannot_be_met_and_status_says_so() -> None:
    record = due_job(deadline={"finish_by": NOW + 39 * H})
    late = scene(trained(1, 8.0), record=record)
    (event,) = [each for each in late.events if each.kind is EventKind.DEADLINE_MISSED]
    assert "40.0 h of training are left, and 39.0 h; it trains on" in event.text
    assert "it cannot finish by" in late.sentence
    again = scene(trained(1, 8.0), record=late.job)
    assert EventKind.DEADLINE_MISSED not in again.event_kinds
    more = scene(trained(1, 8.0), record=replace(late.job, desired_nodes=4))
    assert not more.job.deadline.missed, "with more nodes it can"


def test_status_says_whether_it_will_be_met() -> None:
    def text(record: JobRecord) -> str:
        found = job_row(view(record, [trained(1, 8.0)]), "", NOW)["deadline"]
        assert found is not None
        return found["text"]

    record = due_job()
    assert text(record).endswith(": will be met: 17% done, 40.0 h of training left, 10.0 h to spare")
    assert text(replace(record, deadline=replace(record.deadline, finish_by=NOW + 39 * H))).endswith(
        "left, 60 min too much"
    )
    assert "the pace of its steps is not known yet" in text(due_job(work="90 steps"))
    over = replace(
        record, state=J.SUCCEEDED, ended_at=NOW - 60, deadline=replace(record.deadline, finish_by=NOW + 2 * H)
    )
    assert as_text(over, None, NOW).endswith(": finished 2.0 h before")
    assert as_text(replace(over, state=J.FAILED), None, NOW).endswith("UTC")
    assert job_row(view(job(1), []), "", NOW)["deadline"] is None
