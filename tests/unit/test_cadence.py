"""When a Session begins its next checkpoint."""

from __future__ import annotations

import pytest
from spotsup_trainer.session.cadence import DEFAULT_S, MAX_DEFAULT_S, Cadence


def started(
    *,
    every_steps: int | None = None,
    every_s: float | None = None,
    keep_every: int | None = None,
    at_once: bool = False,
) -> Cadence:
    cadence = Cadence(every_steps, every_s, keep_every)
    cadence.start(0, 0.0, at_once=at_once)
    return cadence


def test_without_an_interval_copies_take_two_percent_of_the_time_at_most() -> None:
    cadence = started()
    assert cadence.every_s == DEFAULT_S
    cadence.copied(1.0)
    assert cadence.every_s == DEFAULT_S
    for _ in range(3):
        cadence.copied(3.0)
    assert cadence.every_s == 150.0
    cadence.begun(1, 1000.0)
    assert not cadence.is_due(2, 1149.0)
    assert cadence.is_due(2, 1150.0)


def test_one_slow_copy_among_fast_ones_does_not_count() -> None:
    cadence = started()
    for took_s in (0.1, 0.1, 500.0, 0.1, 0.1):
        cadence.copied(took_s)
    assert cadence.every_s == DEFAULT_S


def test_however_long_copies_take_there_is_one_every_half_an_hour() -> None:
    cadence = started()
    cadence.copied(3600.0)
    assert cadence.every_s == MAX_DEFAULT_S


@pytest.mark.parametrize("every_steps", [None, 5])
def test_an_interval_that_a_person_gave_stays(every_steps: int | None) -> None:
    cadence = started(every_steps=every_steps, every_s=10.0)
    cadence.copied(30.0)
    assert cadence.every_s == 10.0


def test_a_clock_that_was_set_back_does_not_delay_the_next_one() -> None:
    cadence = started(every_s=10.0)
    cadence.begun(3, 1000.0)
    assert not cadence.is_due(4, 1005.0)
    assert cadence.is_due(4, 500.0)
    cadence.copied(-500.0)
    assert cadence.every_s == 10.0


def test_there_is_never_a_second_one_of_the_same_step() -> None:
    assert not started(at_once=True, every_steps=1).is_due(0, 1e9)


def test_what_is_in_memory_only_is_written_after_the_first_step() -> None:
    cadence = started(at_once=True, every_steps=100)
    assert cadence.is_due(1, 0.0)
    cadence.begun(1, 0.0)
    assert not cadence.is_due(2, 0.0)


def test_those_to_be_kept_come_besides() -> None:
    cadence = started(every_s=1e9, keep_every=10)
    cadence.begun(8, 0.0)
    assert [step for step in range(9, 13) if cadence.is_due(step, 0.0)] == [10, 11, 12]


@pytest.mark.parametrize(("every_steps", "every_s"), [(0, None), (None, -1.0)])
def test_what_is_no_interval_is_refused(every_steps: int | None, every_s: float | None) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        started(every_steps=every_steps, every_s=every_s)


def test_it_says_when() -> None:
    assert str(started(every_steps=5000)) == "every 5,000 steps"
    assert str(started(every_steps=5, every_s=60.0)) == "every 5 steps or 60 s"
    assert str(started()) == "every 60 s, or less often where copies would take more than 2% of the time"
