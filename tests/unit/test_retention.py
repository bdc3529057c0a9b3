"""Which checkpoints stay: the newest, one of every so many steps, and the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.session.checkpoint_dir import CheckpointError, position_in
from spotsup_trainer.session.retention import Best, Retention, done, failed, is_better, resolved, tried


def test_the_newest_and_the_first_at_or_after_each_multiple_stay() -> None:
    steps = [80, 110, 190, 205, 260, 320, 390, 405]
    assert Retention(2).kept(steps, ()) == {390, 405}
    assert Retention(2, 100).kept(steps, ()) == {110, 205, 320, 390, 405}
    assert Retention(9, 100).kept(steps, ()) == set(steps)
    assert Retention(1, 100).kept([], ()) == set()
    for wrong in ((0, None), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            Retention(*wrong)


def test_the_best_stay_if_they_are_there() -> None:
    best = (Best("loss", 0.3, "min", 110), Best("accuracy", 0.7, "max", 190), Best("loss", 0.4, "min", 7, spare=True))
    assert Retention(1).kept([110, 190, 205, 405], best) == {110, 190, 405}


def test_what_is_better_is_a_matter_of_the_mode() -> None:
    best = (Best("loss", 0.3, "min", 5), Best("loss", 0.1, "min", 6, spare=True))
    assert is_better(0.2, "loss", "min", best)
    assert not is_better(0.3, "loss", "min", best)
    assert is_better(0.4, "loss", "max", best)
    assert is_better(-1.0, "accuracy", "max", best)
    assert not is_better(math.nan, "accuracy", "max", ())


def test_only_what_is_there_was_the_best() -> None:
    known = (Best("loss", 0.3, "min", 5), Best("loss", 0.1, "min", 6, spare=True), Best("f1", 0.9, "max", 4))
    assert resolved(known, {5, 6}) == (Best("loss", 0.1, "min", 6),)
    assert resolved(known, {4, 5}) == (Best("loss", 0.3, "min", 5), Best("f1", 0.9, "max", 4))


def test_a_position_keeps_what_was_best() -> None:
    best = Best("loss", 0.25, "min", 5)
    written = {"step": 7, "best": [vars(best)], "of a later version": 3}
    assert position_in(written, "here", 7).best == (best,)
    with pytest.raises(CheckpointError, match="here cannot be read"):
        position_in({"step": 7, "best": [{"value": 1}]}, "here", 7)


@dataclass
class World:
    """A process, and the complete checkpoints: which of them say that they were the best, with what value."""

    retention: Retention
    complete: dict[int, tuple[Best, ...]] = field(default_factory=dict)
    known: tuple[Best, ...] = ()

    def write(self, step: int, best: tuple[Best, ...]) -> None:
        self.complete[step] = best
        kept = self.retention.kept(self.complete, best)
        self.complete = {each: self.complete[each] for each in kept}

    def found(self) -> float:
        """As `find` in weights.py does."""
        own = [each for step, best in self.complete.items() for each in best if each.step == step and not each.spare]
        return min((each.value for each in own), default=math.inf)


FATES = st.sampled_from(["complete", "complete", "fails", "too late", "crash before", "crash after", "periodic"])


@given(st.lists(st.tuples(FATES, st.integers(0, 9)), max_size=30), st.integers(1, 2))
def test_a_best_checkpoint_stays_until_a_better_one_is_complete(events: list[tuple[str, int]], newest: int) -> None:
    """Whatever becomes of the writing: it fails, completes after it was given up, or the process goes on its way."""
    world, best_complete = World(Retention(newest)), math.inf
    late: tuple[int, tuple[Best, ...]] | None = None
    for step, (fate, value) in enumerate(events, start=1):
        if late is not None:
            world.write(*late)
            best_complete, late = min(best_complete, late[1][0].value), None
        if fate == "periodic":
            world.write(step, world.known)
            continue
        world.known = resolved(world.known, world.complete)
        if is_better(value, "loss", "min", world.known):
            new = Best("loss", float(value), "min", step)
            wanted = tried(world.known, new)
            if fate in {"complete", "crash after"}:
                world.write(step, wanted)
                best_complete = min(best_complete, value)
            if fate == "too late":
                late = (step, wanted)
            if fate.startswith("crash"):
                newest_step = max(world.complete, default=0)
                world.known = world.complete.get(newest_step, ())
            else:
                world.known = done(world.known, new) if fate == "complete" else failed(world.known, new)
        assert world.found() <= best_complete
