"""What a new user meets in the first hour: bad input, odd sentences, and a daemon that says the same thing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioners.base import Market, Offer
from supervisor.api.jobs.views import node_rows
from supervisor.errors import UsageError
from supervisor.model import JobState
from supervisor.planner.world import JobView
from supervisor.runtime.loop import Status
from supervisor.spec import parse_spec
from tests.unit.quoting import Stub, api, spec
from tests.unit.scene import job, member, name, round_of
from tests.unit.test_boundaries import FakeJournal, loop_with

OFFER = Offer("local", "r", "a", "small", Market.SPOT, 0.25)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"env": {"LR": True}}, "`env.LR` is True; write a text, in quotes"),
        ({"nodes": "two"}, "'two' is not a number; write `nodes: 4`, or a mapping with min, desired and max"),
        ({"nodes": 1000}, "`nodes`: it is 1000, and can be 1 to 64"),
        ({"resources": "8xH100"}, "`resources` is '8xH100'; write a mapping with keys such as gpu, gpus_per_node"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec({"name": "job", "nodes": 1, "run": "t.py", **keys})
    assert sentence in str(caught.value)


def test_numbers_in_env_are_texts() -> None:
    assert parse_spec({"name": "job", "nodes": 1, "run": "t.py", "env": {"LR": 0.1}}).env == {"LR": "0.1"}


def test_a_price_above_the_limit_is_named_with_the_minimum() -> None:
    cheap = spec(nodes=1, limits={"usd_per_hour": 0.1})
    (warning,) = api(local=Stub(lambda _: (OFFER,))).post("/v1/check", json=cheap).json()["warnings"]
    assert warning == (
        "`limits.usd_per_hour` is 0.1, and the job's minimum (1 node) costs 0.25 per hour now: the job waits for lower "
        "prices"
    )


def test_a_member_is_in_the_newest_round() -> None:
    known = JobView(job(1), 1, {name(1): member(1)}, {})
    assert node_rows(replace(known, round=round_of(2, number=2)), 0.0)[0]["reason"] != "in round 2"
    assert node_rows(replace(known, round=round_of(1, number=2)), 0.0)[0]["reason"] == "in round 2"


def test_a_job_that_was_just_stored_is_not_described_by_the_headline() -> None:
    leads = Status(0.0, "watching 0 jobs", {}, {})
    assert leads.about("job") == "stored; the daemon takes it up within seconds"
    assert replace(leads, headline="standby; b leads").about("job") == "standby; b leads"
    assert replace(leads, sentences={"job": "finished"}).about("job") == "finished"


def test_a_daemon_that_starts_again_logs_no_job_that_had_ended() -> None:
    over = replace(job(1), state=JobState.SUCCEEDED, reason="exit code 0", ended_at=1.0)
    with capture_logs() as lines:
        loop_with(FakeJournal({"job": JobView(over, 1, {}, {})}))
    assert [line["event"] for line in lines if "finished" in line["event"]] == []
