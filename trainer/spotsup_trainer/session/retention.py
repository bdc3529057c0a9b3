"""Which checkpoints are kept: the newest, one of every so many steps, and the best by what the program measured.

Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

MODES = ("min", "max")


@dataclass(frozen=True)
class Best:
    """The best value of a metric so far, and the step that it was measured after."""

    name: str
    value: float
    # Of MODES: which values are better.
    mode: str
    step: int
    # Not compared with, but kept until another one is complete: what was best before, or what may have been written.
    spare: bool = False


@dataclass(frozen=True)
class Retention:
    """What is kept, of complete checkpoints. Raises ValueError for less than one."""

    newest: int
    # Steps. The first checkpoint at or after each multiple is kept for ever.
    every: int | None = None

    def __post_init__(self) -> None:
        if self.newest < 1:
            raise ValueError(
                f"keep is {self.newest}; keep at least 1 checkpoint, and 2 or more to survive a damaged one"
            )
        if self.every is not None and self.every < 1:
            raise ValueError(f"keep_every is {self.every}; it must be at least 1 step")

    def kept(self, steps: Iterable[int], best: Iterable[Best]) -> set[int]:
        """Return those of `steps` that stay; `best` as the newest of them says."""
        ordered = sorted(steps)
        kept = {*ordered[-self.newest :], *(each.step for each in best)}
        if self.every is not None:
            first: dict[int, int] = {}
            for step in ordered:
                first.setdefault(step // self.every, step)
            kept.update(step for multiple, step in first.items() if multiple > 0)
        return kept & set(ordered)


def resolved(best: Sequence[Best], present: Collection[int]) -> tuple[Best, ...]:
    """Return the best of each metric of which there is a checkpoint, whatever was known about it."""
    found: dict[str, Best] = {}
    for each in best:
        real = Best(each.name, each.value, each.mode, each.step)
        if each.step in present and is_better(each.value, each.name, each.mode, list(found.values())):
            found[each.name] = real
    return tuple(found.values())


def is_better(value: float, name: str, mode: str, best: Sequence[Best]) -> bool:
    """True if `value` is better than all before. What is not a number is not."""
    before = [each.value for each in best if each.name == name and not each.spare]
    if math.isnan(value):
        return False
    return all(value < other if mode == "min" else value > other for other in before)


def tried(best: Sequence[Best], new: Best) -> tuple[Best, ...]:
    """Return what a checkpoint says that is to be the best: the one before is kept until this one is complete."""
    return (new, *_others(best, new.name), *_spare(_of(best, new.name)))


def done(best: Sequence[Best], new: Best) -> tuple[Best, ...]:
    """Return what is known once it is complete."""
    return (new, *_others(best, new.name))


def failed(best: Sequence[Best], new: Best) -> tuple[Best, ...]:
    """Return what is known if it could not be completed in time: it may still be."""
    return (*best, *_spare([new]))


def _of(best: Iterable[Best], name: str) -> list[Best]:
    return [each for each in best if each.name == name]


def _others(best: Iterable[Best], name: str) -> list[Best]:
    return [each for each in best if each.name != name]


def _spare(best: Iterable[Best]) -> list[Best]:
    return [Best(each.name, each.value, each.mode, each.step, spare=True) for each in best]
