"""Whatever a stolen node writes costs its own job, within its limits, and changes nothing for others (P3, P11, P16)."""

from __future__ import annotations

from functools import cache

import pytest

from supervisor.events import EventKind
from tests.sim.stolen import EVIL, LATE_S, MOST, Course, play
from tests.sim.stolen_forgeries import FORGERIES

pytestmark = pytest.mark.long

# A decision takes a fraction of a tick, on a busy computer, too.
TICK_S = 0.5
# The alerts of one job within four minutes, at most: a message in which somebody looks for another's.
MAX_ALERTS = 100


@cache
def undisturbed() -> Course:
    """What others have where nobody forges."""
    return play(lambda _: None)


def test_without_a_thief_the_others_live_through_all_that_is_compared() -> None:
    course = undisturbed()
    kinds = {each.partition(" ")[0] for each in course.decided}
    assert kinds >= {
        *(EventKind.NOTICE, EventKind.NODE_UNHEALTHY, EventKind.NODE_LOST, EventKind.TAKEN_OVER, EventKind.KEPT_WARM),
        *("Launch", "Bootstrap", "Clean", "Terminate"),
    }
    assert (course.most, course.left, course.failures) == (2, 0, {})


@pytest.mark.parametrize("name", FORGERIES)
def test_a_stolen_node_costs_no_more_than_its_limits_and_changes_nothing_for_others(name: str) -> None:
    expected, course = undisturbed(), play(FORGERIES[name])
    assert course.most <= MOST
    assert course.billed_s <= MOST * course.lasted_s
    assert course.left == 0, "what a user cancels ends"
    assert differences(expected.decided, course.decided) == []
    assert differences(expected.machines, course.machines) == []
    assert course.failures == {}
    assert course.slowest_tick_s < TICK_S
    assert sum(event.job == EVIL for event in course.world.sent) <= MAX_ALERTS


def differences(expected: dict[str, list[float]], found: dict[str, list[float]]) -> list[str]:
    """What was decided, or was there, in one of two worlds alone, or much later than in the other."""
    alone = [f"{key} {expected.get(key, ())} {found.get(key, ())}" for key in sorted(expected.keys() ^ found.keys())]
    for key in sorted(expected.keys() & found.keys()):
        before, after = expected[key], found[key]
        if len(before) != len(after) or any(abs(a - b) > LATE_S for a, b in zip(before, after, strict=True)):
            alone.append(f"{key} {before} {after}")
    return alone
