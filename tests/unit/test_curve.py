"""A job's training curve: true totals, measured pauses, and a few kilobytes whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import curve as curves
from supervisor.curve import MAX_PAUSES, MAX_POINTS, MAX_SPEEDS, Curve, Point, Seen, begun, extended, with_measured
from supervisor.journal.codec import dump, load
from supervisor.web.charts import charts
from supervisor.web.timeline import Window

BEGIN = 1_700_000_000.0


def seen(at: float, step: int, number: int = 1, nodes: int = 2, **more: Any) -> Seen:
    """Progress `at` seconds after the beginning; of a round that has just made its first step, or as `more` says."""
    first = more.pop("first_step_at", at)
    cause = more.pop("cause", "re-formed")
    known = {"samples": 32 * step, "epoch": 0, "loss": 1.0, "usd": 0.001 * at} | more
    return Seen(
        Point(BEGIN + at, step, known["samples"], known["epoch"], known["loss"], nodes, known["usd"], known.get("gpu")),
        number,
        BEGIN + first,
        cause,
    )


def curve_of(*found: Seen, watched: bool = True) -> Curve:
    made = begun(found[0])
    for each in found[1:]:
        made = extended(made, each, watched=watched)
    return made


def test_speed_is_counted_by_number_of_nodes_from_the_first_step_of_a_round_to_its_last() -> None:
    made = curve_of(
        seen(0, 1), seen(10, 21), seen(20, 41),
        seen(50, 42, 2, nodes=4), seen(60, 82, 2, nodes=4),
        seen(90, 83, 3), seen(100, 103, 3),
    )  # fmt: skip
    two, four = made.speeds
    assert (two.nodes, two.seconds, two.steps, two.samples) == (2, 30.0, 60, 1920)
    assert (four.nodes, four.seconds, four.steps, four.samples) == (4, 10.0, 40, 1280)


def test_a_pause_lasts_from_the_last_step_of_a_round_to_the_first_of_the_next() -> None:
    made = curve_of(
        seen(0, 1), seen(10, 11),
        seen(14, 13, 2, first_step_at=12.5, cause="preempted"),
        seen(20, 20, 2),
        seen(50, 21, 3, first_step_at=50, cause="lost"),
    )  # fmt: skip
    assert [(each.seconds, each.cause, each.round) for each in made.pauses] == [
        (2.5, "preempted", 2),
        (30.0, "lost", 3),
    ]
    assert {each.cause: (each.pauses, each.seconds) for each in made.totals} == {
        "preempted": (1, 2.5),
        "lost": (1, 30.0),
    }


def test_a_pause_that_no_daemon_watched_has_no_length_and_does_not_count() -> None:
    made = curve_of(seen(0, 1), seen(3600, 500, 4, first_step_at=3000, cause="lost"), watched=False)
    (pause,) = made.pauses
    assert pause.seconds is None
    assert made.totals[0].seconds == 0.0
    assert made.speeds == (), "what happened between the two is not known"


def test_what_a_node_measured_of_a_pause_is_taken_over_also_of_one_that_was_not_watched() -> None:
    made = curve_of(seen(0, 1), seen(10, 11), seen(15, 12, 2, cause="lost"), seen(20, 13, 2))
    made = extended(made, seen(90, 14, 3, cause="lost"), watched=False)
    found = with_measured(made, {2: 4.815, 3: 60.004, 9: 1.0})
    assert [each.seconds for each in found.pauses] == [4.82, 60.0]
    assert found.totals == (("lost", 2, 64.82),)
    assert with_measured(found, {2: 4.815, 3: 60.004}) is found


def test_late_and_repeated_messages_change_nothing() -> None:
    made = curve_of(seen(0, 1), seen(10, 11), seen(20, 12, 2))
    for late in (seen(20, 12, 2), seen(15, 11, 1), seen(25, 11, 2), seen(30, 12, 2)):
        assert extended(made, late, watched=True) is made


def test_the_newest_epoch_is_noted_with_what_was_spent_until_it_was_complete() -> None:
    made = curve_of(
        seen(0, 1, epoch=3), seen(10, 2, epoch=4, usd=1.0), seen(20, 3, epoch=4, usd=2.0), seen(30, 4, epoch=5, usd=3.0)
    )
    assert made.first_epoch == 3
    assert made.last_epoch == (5, BEGIN + 30, 3.0)


def test_weeks_of_training_with_thousands_of_rounds_take_few_kilobytes() -> None:
    made = begun(seen(0, 1))
    at = 0.0
    for number in range(1, 3001):
        for _ in range(3):
            at += 200.0
            new = seen(
                at, int(at), number, nodes=1 + number % 200, loss=-1.2345678e-12, usd=123456.789, cause="preempted"
            )
            made = extended(made, new, watched=True)
    assert len(made.points) <= MAX_POINTS
    assert len(made.pauses) == MAX_PAUSES
    assert len(made.speeds) == MAX_SPEEDS
    assert sum(each.pauses for each in made.totals) == 2999
    raw = dump(made)
    assert len(raw) < 24 * 1024
    assert load(Curve, raw, "key") == made
    gaps = [two.at - one.at for one, two in zip(made.points, made.points[1:], strict=False)]
    assert min(gaps) >= made.distance_s / 4
    assert max(gaps) <= 4 * made.distance_s, "points lie evenly over the whole time"


@given(
    st.lists(
        st.tuples(
            st.floats(0, 2e11),
            st.integers(0, 2**53),
            st.integers(0, 2**53),
            st.integers(-(2**53), 2**53),
            st.none() | st.floats(allow_nan=False, allow_infinity=False),
            st.integers(1, 5),
            st.sampled_from(["lost", "joined"]),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_whatever_nodes_report_times_go_forwards_and_the_record_can_be_read(found: list[tuple[Any, ...]]) -> None:
    made = None
    for at, step, samples, epoch, loss, number, cause in found:
        new = Seen(Point(at, step, samples, epoch, loss, 3, 1.0), number, at, cause)
        made = begun(new) if made is None else extended(made, new, watched=True)
    assert made is not None
    times = [each.at for each in made.points]
    assert times == sorted(times)
    assert all(each.seconds >= 0 and each.steps >= 0 and each.samples >= 0 for each in made.speeds)
    assert all(each.seconds is not None and each.seconds >= 0 for each in made.pauses)
    assert load(Curve, dump(made), "key") == made


@pytest.mark.parametrize("bound", ["MAX_POINTS", "MAX_PAUSES", "MAX_SPEEDS"])
def test_the_bounds_are_small(bound: str) -> None:
    assert getattr(curves, bound) <= 128


def test_how_busy_gpus_were_is_kept_with_each_point_and_cannot_be_more_than_all() -> None:
    made = curve_of(seen(0, 1), seen(10, 2, gpu=87.2345), seen(20, 3, gpu=900.0), seen(30, 4, gpu=-1.0))
    assert [point.gpu for point in made.points] == [None, 87.2, 100.0, 0.0]


def test_the_timeline_has_how_busy_gpus_were_where_that_is_known() -> None:
    window = Window(BEGIN, BEGIN + 100)
    with_gpus = {each.name: each for each in charts(curve_of(seen(0, 1, gpu=40.0), seen(10, 2, gpu=87.0)), window)}
    assert with_gpus["GPU use"].newest == "87"
    assert "GPU use" not in [each.name for each in charts(curve_of(seen(0, 1), seen(10, 2)), window)]
