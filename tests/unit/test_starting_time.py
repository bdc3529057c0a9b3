"""`start_after`: as it is written, in the record, in the queue, and what the planner makes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.api.queue import queue_rows
from supervisor.cli.submission import prepare
from supervisor.errors import UsageError
from supervisor.market.admission import Cap, QueueRules
from supervisor.model import JobRecord, JobState
from supervisor.planner.queue import claim_of
from supervisor.planner.world import Rules
from supervisor.spec import parse_spec
from supervisor.starting_time import MAX_AHEAD_S, starts_at
from tests.unit.scene import NOW, job, scene, view, world_of
from tests.unit.test_bench_network import NO_OPTIONS

AT = datetime(2026, 12, 24, 22, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["2026-12-24T22:00Z", "2026-12-24 23:00+01:00", "2026-12-24T17:00:00-05:00"])
def test_a_time_has_a_time_zone_and_one_in_the_past_is_at_once(text: str) -> None:
    assert starts_at(text, AT - 1) == AT
    assert starts_at(text, AT) == starts_at("", AT) == 0.0
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
        starts_at("2026-12-24T22:00Z", AT - MAX_AHEAD_S - 1)


def test_a_job_file_may_have_it_without_quotes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("run: train.py\nname: later\nnodes: 1\nstart_after: 2026-12-24T22:00:00Z\n")
    assert prepare([str(tmp_path / "job.yaml")], NO_OPTIONS).spec["start_after"] == "2026-12-24T22:00:00Z"


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
