"""After which silence a rank hangs."""

from __future__ import annotations

from spotsup_trainer.session.pace import Pace


def test_a_hang_is_ten_slow_steps_twice_the_longest_silence_and_five_minutes() -> None:
    pace = Pace()
    pace.alive(-1e6)  # before the first step: nothing is known yet
    now = 0.0
    for _ in range(400):
        now += 1.0
        pace.step(now)
    assert (pace.hangs_after_s, pace.max_step_s) == (300.0, 1.0)
    for _ in range(4):  # one in a hundred is slow: no evaluation of each epoch, but a step that is often slow
        pace.step(now := now + 40.0)
    assert pace.hangs_after_s == 300.0
    pace.step(now := now + 40.0)
    pace.step(now := now + 40.0)
    assert (pace.hangs_after_s, pace.max_step_s) == (400.0, 40.0)
    pace.alive(now := now + 250.0)
    assert pace.hangs_after_s == 500.0
    for _ in range(500):
        pace.step(now := now + 1.0)
    assert pace.hangs_after_s == 500.0, "an evaluation may come once a day"
    assert pace.max_step_s == 1.0, "a long step ago says nothing of the next"
