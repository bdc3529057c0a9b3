"""A wall clock that jumps: for a moment, and for good."""

from __future__ import annotations

import time

import pytest

from supervisor.runtime.clock import ACCEPTED_AFTER_S, SystemClock


class Hands:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0
        self.clock = SystemClock(lambda: self.wall, lambda: self.steady)

    def pass_(self, seconds: float) -> float:
        """Let time pass; returns how far the clock is then."""
        self.wall += seconds
        self.steady += seconds
        return self.clock.now() - 1_000_000.0


@pytest.mark.parametrize("jump_s", [-86400.0, -90.0, 90.0, 86400.0])
def test_a_short_jump_is_ignored(jump_s: float) -> None:
    hands = Hands()
    assert hands.pass_(10.0) == pytest.approx(10.0)
    hands.wall += jump_s
    for second in range(11, int(ACCEPTED_AFTER_S)):
        assert hands.pass_(1.0) == pytest.approx(second)
    hands.wall -= jump_s
    assert hands.pass_(ACCEPTED_AFTER_S) == pytest.approx(2 * ACCEPTED_AFTER_S - 1)
    hands.wall += jump_s
    assert hands.pass_(1.0) == pytest.approx(2 * ACCEPTED_AFTER_S), "another jump starts its own minute"


def test_a_jump_that_lasts_is_accepted() -> None:
    hands = Hands()
    hands.wall += 3600.0
    assert hands.pass_(1.0) == pytest.approx(1.0)
    assert hands.pass_(ACCEPTED_AFTER_S) == pytest.approx(3600.0 + ACCEPTED_AFTER_S + 1.0)


def test_a_clock_that_is_slewed_is_followed() -> None:
    hands = Hands()
    for _ in range(100):
        hands.wall += 0.2
        hands.pass_(1.0)
    assert hands.clock.now() == pytest.approx(hands.wall)


class Shifted:
    """A wall clock that is off by `by_s`."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def now(self) -> float:
        """UNIX seconds."""
        return time.time() + self.by_s
