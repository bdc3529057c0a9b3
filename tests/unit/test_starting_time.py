"""`start_after` and `schedule`: as they are written, in the record, in the queue, and what is made of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.api.jobs.queue import queue_rows
from supervisor.cli.submission import prepare
from supervisor.errors import UsageError
from supervisor.features.queue.rule import claim_of
from supervisor.market.admission import Cap, QueueRules
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.world import JobView, Rules
from supervisor.runtime.renewals import renewed
from supervisor.spec import parse_spec
from supervisor.starting_time import MAX_AHEAD_S, starts_at
from tests.unit.scene import NOW, job, member, node, scene, spec, view, world_of

AT = datetime(2026, 12, 24, 22, tzinfo=UTC).timestamp()
DAY_S = 86400.0


@pytest.mark.parametrize("text", ["2026-12-24T22:00Z", "2026-12-24 23:00+01:00", "2026-12-24T17:00:00-05:00"])
def test_a_time_has_a_time_zone_and_one_in_the_past_is_at_once(text: str) -> None:
    assert starts_at(text, "", AT - 1) == AT
    assert starts_at(text, "", AT) == starts_at("", "", AT) == 0.0
    assert parse_spec({"name": "later", "nodes": 1, "run": "train.py", "start_after": text}).start_after == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-12-24 22:00", "does not say in which time zone; write 2026-12-24T22:00Z"),
        ("tonight", "is not a time; write one such as 2026-12-24T22:00Z"),
    ],
)
def test_what_is_no_moment_is_refused_with_one_that_is(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="`start_after`") as refused:
        parse_spec({"name": "later", "nodes": 1, "run": "train.py", "start_after": text})
    assert said in str(refused.value)


def test_a_time_that_is_years_ahead_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="`start_after` is 2026-12-24 22:00:00 UTC, more than a year ahead"):
        starts_at("2026-12-24T22:00Z", "", AT - MAX_AHEAD_S - 1)


def test_a_schedule_begins_at_its_next_time_from_start_after_on() -> None:
    assert starts_at("", "0 22 * * *", AT - 3600) == AT
    assert starts_at("", "0 22 * * *", AT) == AT + DAY_S
    assert starts_at("2026-12-24T22:00Z", "0 22 * * *", AT - 3 * DAY_S) == AT
    assert starts_at("2026-12-24T22:00:01Z", "0 22 * * *", AT - 3 * DAY_S) == AT + DAY_S


@pytest.mark.parametrize("cron", ["nightly", "0 22 * *", "0 0 31 2 *"])
def test_a_schedule_that_is_none_is_refused(cron: str) -> None:
    with pytest.raises(UsageError, match="`schedule`"):
        parse_spec({"name": "later", "nodes": 1, "run": "train.py", "schedule": cron})


def scheduled(state: JobState, *nodes: NodeRecord, **more: Any) -> JobView:
    known = spec(schedule="0 22 * * *")
    return view(job(2, state, spec=known, owner="ann", run=3, code_sha256="c0de", **more), nodes)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_job_with_a_schedule_is_submitted_again_once_no_machine_is_left(state: JobState) -> None:
    assert renewed(scheduled(state, member(1)), AT) is None
    old = scheduled(state, node(1, NodeState.GONE))
    made = renewed(old, AT)
    assert made is not None
    new, event = made
    assert (new.name, new.owner, new.run, new.code_sha256) == ("job", "ann", 4, "c0de")
    assert (new.state, new.starts_at, new.limits.trained_s) == (JobState.QUEUED, AT + DAY_S, 0.0)
    assert new.task_id != old.record.task_id
    assert event.text == "job is submitted again by its schedule; it begins at 2026-12-25 22:00:00 UTC"
    assert event.id.startswith(new.task_id)


@pytest.mark.parametrize(
    "over",
    [
        scheduled(JobState.CANCELLED),
        scheduled(JobState.SUCCEEDED, cancel_requested=True),
        scheduled(JobState.RUNNING),
        view(job(2, JobState.SUCCEEDED), []),
    ],
)
def test_a_job_that_was_cancelled_runs_or_has_no_schedule_is_not(over: JobView) -> None:
    assert renewed(over, AT) is None


def test_a_job_file_may_have_it_without_quotes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("run: train.py\nname: later\nnodes: 1\nstart_after: 2026-12-24T22:00:00Z\n")
    assert prepare([str(tmp_path / "job.yaml")], {}).spec["start_after"] == "2026-12-24T22:00:00Z"


def waiting(starts_at: float = NOW + 60.0) -> JobRecord:
    return job(2, JobState.QUEUED, starts_at=starts_at)


def test_nothing_is_requested_before_its_time_and_all_from_then_on() -> None:
    before = scene(record=waiting())
    assert (before.new, before.job.state) == ([], JobState.QUEUED)
    assert "it begins at " in before.sentence
    assert len(scene(record=waiting(NOW)).new) == 2


def test_it_claims_nothing_before_and_waits_in_the_queue_from_then_on() -> None:
    known = view(waiting(), [])
    rules = Rules(queue=QueueRules(cluster=Cap(nodes=2)))
    assert claim_of(world_of(known, rules=rules), known, NOW).wanted == 0
    later = claim_of(world_of(known, rules=rules), known, NOW + 60.0)
    assert (later.wanted, later.submitted_at, later.waiting_since) == (2, NOW + 60.0, NOW + 60.0)


def test_the_queue_says_when_it_begins() -> None:
    (row,) = queue_rows([view(waiting(), [])], {}, lambda _: "", NOW)
    assert row["place"] is None
    assert row["reason"] == row["starts_when"]
    assert row["reason"].startswith("it begins at ")
