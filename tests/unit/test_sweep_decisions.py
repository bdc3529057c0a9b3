"""Sweeps, without a world: what they expand to, and who starts next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.sweep import axis
from supervisor.errors import SchemaError, UsageError
from supervisor.journal.codec import dump, load
from supervisor.sweep import (
    MAX_MEMBERS,
    Decided,
    Member,
    Result,
    Seen,
    SweepRecord,
    decide,
    expand,
    member_spec,
)

BASE = {"name": "s", "nodes": 1, "run": "train.py --epochs 3"}


def sweep(count: int = 4, parallel: int = 2, **changes: Any) -> SweepRecord:
    members = tuple(Member(number, (("seed", number),)) for number in range(1, count + 1))
    return replace(SweepRecord("s", "abcde", "ann", BASE, "0" * 64, 1.0, parallel, members), **changes)


def seen(state: str = "running", step: int = 0, loss: float | None = None, *, cancelling: bool = False) -> Seen:
    ended = state in ("succeeded", "failed", "cancelled")
    return Seen(ended, state != "paused", cancelling, Result(state, step, loss, 1.0, 60.0))


def numbers(members: tuple[Member, ...]) -> list[int]:
    return [each.number for each in members]


# -- what it expands to --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("lr=0.1,0.01", "lr", ["0.1", "0.01"]),
        ("seed=1..3", "seed", [1, 2, 3]),
        ("shift=-1..1", "shift", [-1, 0, 1]),
        ("nodes.desired=2,4", "nodes.desired", [2, 4]),
        ("env.LR=0.10,none", "env.LR", ["0.10", "none"]),
    ],
)
def test_values_are_written_in_a_row_or_as_a_range(text: str, name: str, values: list[Any]) -> None:
    assert axis(text) == (name, values)


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "seed=3..1", "seed=1..5000"])
def test_values_that_cannot_be_right_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        axis(text)


def test_all_combinations_are_made_the_last_key_changing_fastest() -> None:
    points = expand([("lr", ("0.1", "0.01")), ("seed", (1, 2))])
    assert points[:2] == ((("lr", "0.1"), ("seed", 1)), (("lr", "0.1"), ("seed", 2)))
    assert len(points) == 4


@pytest.mark.parametrize(
    "axes", [[], [("a", ())], [("a", (1,)), ("a", (2,))], [("a b", (1,))], [("a", tuple(range(MAX_MEMBERS + 1)))]]
)
def test_a_sweep_that_cannot_be_right_is_refused(axes: Any) -> None:
    with pytest.raises(UsageError):
        expand(axes)


def test_a_parameter_is_an_argument_or_a_key_of_the_job_file() -> None:
    made = member_spec(BASE, "s-1", (("lr", "0.1"), ("note", "two words"), ("nodes.desired", 4), ("env.X", "y")))
    assert made == {
        "name": "s-1",
        "nodes": 4,
        "run": "train.py --epochs 3 --lr 0.1 --note 'two words'",
        "env": {"X": "y"},
    }
    assert BASE == {"name": "s", "nodes": 1, "run": "train.py --epochs 3"}, "the others have their own"


def test_a_sweep_survives_its_storage() -> None:
    stored = sweep(members=(Member(1, (("a", 1.5), ("b", True)), created=True),))
    assert load(SweepRecord, dump(stored), "") == stored


# -- who starts next -----------------------------------------------------------------------------------------


def test_as_many_run_as_are_allowed_at_a_time() -> None:
    assert numbers(decide(sweep(), {}).start) == [1, 2]
    assert numbers(decide(sweep(), {1: seen()}).start) == [2]
    assert numbers(decide(sweep(), {1: seen("succeeded"), 2: seen()}).start) == [3]
    assert numbers(decide(sweep(), {1: seen(), 2: seen("paused")}).start) == [3], "a paused one has no machines"


def test_one_whose_job_is_gone_does_not_start_again() -> None:
    after = decide(sweep(2), {1: seen(), 2: seen()}).record
    found = decide(after, {2: seen()})
    assert found.start == ()
    assert found.record.members[0].result == Result("unknown", 0, None, 0.0, 0.0)


def test_a_cancelled_sweep_starts_none_and_cancels_those_that_run() -> None:
    found = decide(sweep(cancel_requested=True), {1: seen(), 2: seen(cancelling=True), 3: seen("failed")})
    assert (found.start, numbers(found.cancel)) == ((), [1])
    ended = {1: seen("cancelled"), 2: seen("cancelled"), 3: seen("failed")}
    assert decide(found.record, ended).record.over


def test_the_best_is_that_of_the_lowest_loss_that_has_not_failed() -> None:
    jobs = {1: seen("succeeded", 9, 0.3), 2: seen("failed", 9, 0.1), 3: seen("succeeded", 9, 0.2), 4: seen("cancelled")}
    record = decide(sweep(), jobs).record
    assert record.over
    assert record.best is not None
    assert record.best.number == 3


def by_accuracy(value: float | None, step: int = 0, state: str = "running") -> Seen:
    found = seen(state, step, 0.5)
    return replace(found, result=replace(found.result, value=value))


def test_a_metric_takes_the_place_of_the_loss_and_its_highest_value_may_be_the_best() -> None:
    named = sweep(3, 3, metric="accuracy", mode="max")
    jobs = {
        1: by_accuracy(0.7, 9, "succeeded"),
        2: by_accuracy(0.9, 9, "succeeded"),
        3: by_accuracy(None, 9, "succeeded"),
    }
    best = decide(named, jobs).record.best
    assert best is not None
    assert best.number == 2
    lowest = decide(replace(named, mode="min"), jobs).record.best
    assert lowest is not None
    assert lowest.number == 1, "one without a value is never the best"


def test_a_sweep_of_before_there_were_metrics_is_read() -> None:
    stored = json.loads(
        dump(sweep(1, 1, members=(Member(1, (("a", 1),), result=Result("succeeded", 3, 0.5, 1.0, 2.0)),)))
    )
    del stored["metric"], stored["mode"], stored["members"][0]["result"]["value"]
    found = load(SweepRecord, json.dumps(stored).encode(), "")
    assert found.best == found.members[0]


def test_a_sweep_that_ended_its_worst_early_is_read_and_goes_on_with_all() -> None:
    stored = json.loads(dump(sweep(2, 2, members=(Member(1, (("a", 1),), created=True), Member(2, (("a", 2),))))))
    stored["early_stop"] = {"first_step": 100, "factor": 3}
    stored["members"][0] |= {"rungs": [0.5], "stopped": "loss 0.5 is number 2 of 2 at step 100; 1 goes on"}
    found = load(SweepRecord, json.dumps(stored).encode(), "")
    decided = decide(found, {1: seen(step=300, loss=9.0)})
    assert (numbers(decided.start), decided.cancel) == ([2], ())
    with pytest.raises(SchemaError, match="it has `later`"):
        load(SweepRecord, json.dumps(stored | {"later": 1}).encode(), "")


STATES = st.sampled_from(["queued", "running", "paused", "succeeded", "failed", "cancelled"])
JOBS = st.dictionaries(
    st.integers(1, 6),
    st.builds(seen, STATES, st.integers(0, 2000), st.none() | st.floats(0, 10), cancelling=st.booleans()),
)


@given(JOBS, st.integers(1, 8), st.booleans())
def test_never_more_than_allowed_and_none_twice(jobs: Mapping[int, Seen], parallel: int, cancelled: bool) -> None:
    found: Decided = decide(sweep(6, parallel, cancel_requested=cancelled), jobs)
    active = sum(each.active and not each.ended for each in jobs.values())
    assert len(found.start) <= max(0, parallel - active)
    assert not set(numbers(found.start)) & jobs.keys()
    again = decide(found.record, jobs)
    assert (again.record, again.start, again.cancel) == (found.record, found.start, found.cancel), "it changes nothing"
