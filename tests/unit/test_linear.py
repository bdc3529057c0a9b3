"""The judge of histories accepts those that some order explains, and rejects the others."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.chaos.linear import NEVER, Call, TooLongError, linearisable
from tests.chaos.registers import Answer, Kind, Op, Register, step, verdict

pytestmark = pytest.mark.long


def call(began: float, ended: float, kind: Kind, answer: Answer, value: int = 0, submission: str = "s") -> Call[Op]:
    """`kind` about job j."""
    return Call(Op(kind, "j", answer, value, submission), began, ended)


def read(began: float, ended: float, value: int, *, cancelled: bool = False) -> Call[Op]:
    return Call(Op("read", "j", "done", value, cancelled=cancelled), began, ended)


SUBMITTED = call(0, 1, "submit", "done", 2)
GOOD = {
    "nothing": [],
    "one after the other": [SUBMITTED, call(2, 3, "scale", "done", 4), read(5, 6, 4), call(7, 8, "cancel", "done")],
    "a scale that overlaps the submission": [call(0, 5, "submit", "done", 2), call(1, 2, "scale", "done", 3)],
    "two at the same time, the later answer is not the later effect": [
        SUBMITTED,
        call(2, 9, "scale", "done", 3),
        call(3, 8, "scale", "done", 4),
        read(10, 11, 3),
    ],
    "a lost answer that took effect late": [
        SUBMITTED,
        call(2, NEVER, "scale", "none", 7),
        read(3, 4, 2),
        read(5, 6, 7),
    ],
    "a lost answer without an effect": [SUBMITTED, call(2, NEVER, "cancel", "none"), read(3, 4, 2)],
    "a submission that is sent again": [SUBMITTED, call(2, 3, "submit", "done", 2), read(4, 5, 2)],
    "a cancelled job's name, in use for a while": [
        SUBMITTED,
        call(2, 3, "cancel", "done"),
        call(4, 5, "submit", "refused", 5, "t"),
        call(6, 7, "submit", "done", 5, "t"),
        read(8, 9, 5),
    ],
    "a command for a job that another submits meanwhile": [
        call(0, 9, "submit", "done", 2),
        call(1, 2, "scale", "not found", 3),
    ],
}
BAD = {
    "an acknowledged scale is lost": [SUBMITTED, call(2, 3, "scale", "done", 4), read(5, 6, 2)],
    "an acknowledged submission is lost": [SUBMITTED, call(2, 3, "scale", "not found", 4)],
    "an acknowledged cancel is lost": [SUBMITTED, call(2, 3, "cancel", "done"), read(4, 5, 2)],
    "a name is given twice": [SUBMITTED, call(2, 3, "submit", "done", 3, "t")],
    "a free name is refused": [call(0, 1, "submit", "refused", 2)],
    "a value that was never written": [SUBMITTED, read(2, 3, 8)],
    "a value that comes back": [
        SUBMITTED,
        call(2, 3, "scale", "done", 4),
        call(4, 5, "scale", "done", 6),
        read(6, 7, 4),
    ],
    "two readers see two orders": [
        SUBMITTED,
        call(2, 9, "scale", "done", 3),
        call(2, 9, "scale", "done", 4),
        *(read(10, 11, 3), read(12, 13, 4)),
    ],
    "a lost answer takes effect before it was asked for": [
        SUBMITTED,
        read(2, 3, 7),
        call(4, NEVER, "scale", "none", 7),
    ],
    "a lost answer takes effect twice": [
        SUBMITTED,
        call(2, NEVER, "scale", "none", 7),
        *(read(3, 4, 7), call(5, 6, "scale", "done", 5), read(7, 8, 7)),
    ],
    "a scale within bounds is refused": [SUBMITTED, call(2, 3, "scale", "refused", 4)],
    "a scale beyond bounds is done": [SUBMITTED, call(2, 3, "scale", "done", 99)],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_that_an_order_explains(name: str) -> None:
    assert linearisable(GOOD[name], None, step)
    assert verdict(GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_no_order_explains(name: str) -> None:
    assert not linearisable(BAD[name], None, step)
    assert len(verdict(BAD[name])) == 1


def test_small_histories_are_judged_as_by_trying_every_order() -> None:
    """Against the definition: some order respects the times and explains each answer."""
    rng = random.Random(6)
    verdicts = []
    for _ in range(200):
        history = [SUBMITTED]
        for _ in range(rng.randint(1, 4)):
            began, value = rng.randint(0, 6), rng.randint(1, 3)
            kind, answer = rng.choice([("scale", "done"), ("scale", "none"), ("read", "done"), ("cancel", "done")])
            ended = NEVER if answer == "none" else began + rng.randint(0, 4)
            history.append(call(began, ended, kind, answer, value))  # type: ignore[arg-type]
        verdicts.append(linearisable(history, None, step))
        assert verdicts[-1] == _by_definition(history), history
    assert 20 < sum(verdicts) < 180


def _by_definition(history: list[Call[Op]]) -> bool:
    lost = [each for each in history if each.ended == NEVER]
    kept = [each for each in history if each.ended != NEVER]
    for count in range(len(lost) + 1):
        for done in itertools.combinations(lost, count):
            for order in itertools.permutations([*kept, *done]):
                late = (b.ended < a.began for i, a in enumerate(order) for b in order[i + 1 :])
                if not any(late) and _explains(order):
                    return True
    return False


def _explains(order: tuple[Call[Op], ...]) -> bool:
    states: set[Register | None] = {None}
    for each in order:
        states = {after for state in states for after in step(state, each.op)}
    return bool(states)


def test_a_history_with_too_many_orders_is_not_accepted() -> None:
    many = [call(0, 1, "submit", "done", 2), *(call(2, 99, "scale", "done", number % 9 + 1) for number in range(40))]
    many.append(read(100, 101, 88))
    with pytest.raises(TooLongError, match="more than 5000 orders"):
        linearisable(many, None, step, most=5000)
