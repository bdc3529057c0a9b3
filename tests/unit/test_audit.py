"""The audit: what the final weights have seen, and what the interruptions cost."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.session.audit import AuditError, Line, RoundChange, analyse, parse
from spotsup_trainer.session.sampler import Cursor, Part, Plan, Step, steps

PLAN = Plan(length=20, global_batch=6, seed=3)  # steps of 6, 6, 6, 2


@cache
def steps_of(rank: int, world: int) -> list[Step]:
    """More than any test takes: a tenth of a second."""
    return list(steps(PLAN, Cursor(), Part(rank, world), 50, None))


def rounds(*spans: tuple[int, int, int]) -> list[Line]:
    """The lines of rounds (world, first step, last step); a step takes 1 s, a change of rounds 10 s."""
    lines, now = [], 0.0
    for number, (world, first, last) in enumerate(spans, start=1):
        now += 10
        for rank in range(world):
            for step in range(first, last + 1):
                mine = steps_of(rank, world)[step - 1]
                counted = tuple(mine.counted)
                lines.append(Line(now + step - first, number, rank, world, step, mine.epoch, counted, 1 / step))
        now += last - first
    return lines


def test_rounds_that_begin_where_the_last_one_ended() -> None:
    report = analyse(rounds((3, 1, 5), (2, 6, 7), (4, 8, 13)), samples=20, global_batch=6)
    assert report.changes == (RoundChange(1, 2, 0, 10.0), RoundChange(2, 3, 0, 10.0))
    assert (report.samples_repeated, report.samples_missed) == (0, 0)
    assert (report.steps, report.samples) == (13, 3 * 20 + 6)
    assert [(span.world, span.first_step, span.last_step) for span in report.rounds] == [
        (3, 1, 5),
        (2, 6, 7),
        (4, 8, 13),
    ]
    assert report.loss_first > report.loss_last


def test_lost_steps_are_done_again_and_not_repeated_samples() -> None:
    # the third round falls back behind the second's beginning
    report = analyse(rounds((3, 1, 9), (2, 5, 8), (3, 3, 6)), samples=20, global_batch=6)
    assert [change.steps_lost for change in report.changes] == [5, 6]
    assert (report.samples_repeated, report.samples_missed, report.steps) == (0, 0, 6)


@given(st.data())
def test_any_rounds_of_the_sampler_are_exact(data: st.DataObject) -> None:
    spans, last = [], 0
    for _ in range(data.draw(st.integers(1, 5))):
        first = data.draw(st.integers(1, last + 1))
        last = first + data.draw(st.integers(0, 9))
        spans.append((data.draw(st.integers(1, 7)), first, last))
    report = analyse(rounds(*spans), samples=20, global_batch=6)
    assert (report.samples_repeated, report.samples_missed, report.steps) == (0, 0, last)
    assert report.samples == sum((6, 6, 6, 2)[step % 4] for step in range(last))


def test_a_hole_in_the_history_is_missed_samples() -> None:
    report = analyse(rounds((2, 1, 3), (2, 5, 6)), samples=20, global_batch=6)
    assert (report.samples_repeated, report.samples_missed) == (0, 2)
    lines = [line for line in rounds((2, 1, 3)) if (line.rank, line.step) != (1, 2)]
    assert analyse(lines, samples=20, global_batch=6).samples_missed == 3


def test_samples_of_another_order_are_repeated_and_missed() -> None:
    wrong = [
        Line(line.t, line.round, line.rank, line.world, line.step, line.epoch, (0,) * len(line.indices), line.loss)
        if line.step == 2
        else line
        for line in rounds((1, 1, 4))
    ]
    report = analyse(wrong, samples=20, global_batch=6)
    # sample 0 may be one of step 2's own six
    assert report.samples_repeated == report.samples_missed
    assert report.samples_repeated in {5, 6}


def test_an_epoch_that_does_not_fit_its_step_is_refused() -> None:
    with pytest.raises(AuditError, match=r"step 5 of round 1 has epoch 1, but .* epoch 0"):
        analyse(rounds((1, 1, 5)), samples=30, global_batch=6)


def test_no_lines_at_all_are_refused() -> None:
    with pytest.raises(AuditError, match="no audit lines"):
        analyse([], samples=20, global_batch=6)


def test_parse_leaves_out_only_a_last_line_that_was_cut_off() -> None:
    whole = {"t": 1.5, "round": 1, "rank": 0, "world": 2, "step": 1, "epoch": 0, "indices": [4, 2], "loss": 3.0}
    text = json.dumps(whole) + "\n"
    assert parse(text + text[:20]) == [Line(1.5, 1, 0, 2, 1, 0, (4, 2), 3.0)]
    assert parse(text[:20]) == []
    with pytest.raises(AuditError, match=r"line 1 is not an audit line"):
        parse(text[:20] + "\n" + text)
    with pytest.raises(AuditError, match=r"line 1 .*step"):
        parse(text.replace("step", "stop"))
