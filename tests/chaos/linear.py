"""Whether a history of concurrent operations is linearisable: Wing and Gong's search, with Lowe's memoisation.

Pure, and independent of the model, which `step` is. (J. Wing, C. Gong, Testing and Verifying Concurrent Objects, 1993;
G. Lowe, Testing for linearizability, 2017.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
Op = TypeVar("Op")

MAX_CONFIGURATIONS = 2_000_000
NEVER = float("inf")


class TooLongError(Exception):
    """The search was abandoned: the history was not judged."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Op]):
    """One operation, from its request to its reply, in monotonic seconds.

    `ended` is NEVER if no reply arrived: it may have taken effect at any time since, or not at all.
    """

    op: Op
    began: float
    ended: float


def linearisable(
    history: Sequence[Call[Op]], initial: S, step: Callable[[S, Op], Iterable[S]], most: int = MAX_CONFIGURATIONS
) -> bool:
    """Whether each call can be assigned one moment between its beginning and its end such that all answers are right.

    `step`: the states to which an operation with its answer can lead; none if that answer is wrong.
    Raises TooLongError after `most` configurations.
    """
    calls = sorted(history, key=lambda call: call.began)
    answered = sum(1 << number for number, call in enumerate(calls) if call.ended != NEVER)
    stack: list[tuple[int, S]] = [(0, initial)]
    seen = set(stack)
    while stack:
        done, state = stack.pop()
        if done & answered == answered:
            return True
        for number in _may_be_next(calls, done):
            for after in step(state, calls[number].op):
                configuration = (done | 1 << number, after)
                if configuration not in seen:
                    seen.add(configuration)
                    stack.append(configuration)
        if len(seen) > most:
            raise TooLongError(f"{len(calls)} calls have more than {most} orders")
    return False


def _may_be_next(calls: Sequence[Call[Op]], done: int) -> list[int]:
    """The calls that began before any other pending call ended."""
    found, first_end = [], NEVER
    for number, call in enumerate(calls):
        if call.began > first_end:
            break
        if not done >> number & 1:
            found.append(number)
            first_end = min(first_end, call.ended)
    return found
