"""A failing story made small: strikes, faults and jobs are left out for as long as it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from tests.sim.story import Story, faults_of, kinds_of, without_fault, without_kind

MAX_TRIES = 150
MAX_S = 90.0


class Told(Protocol):
    """What came of a story."""

    @property
    def broken(self) -> str: ...


R = TypeVar("R", bound=Told)


def shrunk(story: Story, act: Callable[[Story], R], broken: str) -> tuple[Story, R]:
    """The smallest story found that still breaks the same promise, and what came of it. Bounded in tries and time."""
    kind = broken.partition(":")[0]
    ends, tries = time.monotonic() + MAX_S, 0
    best, result = story, act(story)
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(best):
            tries += 1
            if tries > MAX_TRIES or time.monotonic() > ends:
                return best, result
            found = act(smaller)
            if found.broken.partition(":")[0] == kind:
                best, result, progress = smaller, found, True
                break
    return best, result


def _smaller(story: Story) -> Iterator[Story]:
    """Large steps first."""
    count = len(story.strikes)
    if count > 3:
        yield replace(story, strikes=story.strikes[: count // 2])
        yield replace(story, strikes=story.strikes[count // 2 :])
        yield replace(story, strikes=story.strikes[: count * 3 // 4])
    if story.strikes and story.hours * 3600 > story.strikes[-1].at + 120:
        yield replace(story, hours=(story.strikes[-1].at + 60) / 3600)
    for kind in kinds_of(story):
        if len(kinds_of(story)) > 1:
            yield without_kind(story, kind)
    for fault in faults_of(story):
        yield without_fault(story, fault)
    for index in range(len(story.jobs)):
        if len(story.jobs) > 1:
            yield replace(story, jobs=story.jobs[:index] + story.jobs[index + 1 :])
    if count <= 24:
        for index in range(count):
            yield replace(story, strikes=story.strikes[:index] + story.strikes[index + 1 :])
