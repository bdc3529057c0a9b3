"""Makes a failing scenario small: leaves out injections, fault rates and jobs as long as it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

from tests.sim.scenario import Scenario, fault_rates_of, kinds_of, without_fault_rate, without_kind

MAX_TRIES = 150
MAX_S = 90.0


class Result(Protocol):
    """The result of a scenario."""

    @property
    def broken(self) -> str: ...


R = TypeVar("R", bound=Result)


def shrunk(scenario: Scenario, run: Callable[[Scenario], R], broken: str) -> tuple[Scenario, R]:
    """The smallest scenario found that still breaks the same promise, and its result. Bounded in tries and time."""
    kind = broken.partition(":")[0]
    ends, tries = time.monotonic() + MAX_S, 0
    best, result = scenario, run(scenario)
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(best):
            tries += 1
            if tries > MAX_TRIES or time.monotonic() > ends:
                return best, result
            found = run(smaller)
            if found.broken.partition(":")[0] == kind:
                best, result, progress = smaller, found, True
                break
    return best, result


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Large steps first."""
    count = len(scenario.injections)
    if count > 3:
        yield replace(scenario, injections=scenario.injections[: count // 2])
        yield replace(scenario, injections=scenario.injections[count // 2 :])
        yield replace(scenario, injections=scenario.injections[: count * 3 // 4])
    if scenario.injections and scenario.hours * 3600 > scenario.injections[-1].at + 120:
        yield replace(scenario, hours=(scenario.injections[-1].at + 60) / 3600)
    for kind in kinds_of(scenario):
        if len(kinds_of(scenario)) > 1:
            yield without_kind(scenario, kind)
    for fault in fault_rates_of(scenario):
        yield without_fault_rate(scenario, fault)
    for index in range(len(scenario.jobs)):
        if len(scenario.jobs) > 1:
            yield replace(scenario, jobs=scenario.jobs[:index] + scenario.jobs[index + 1 :])
    if count <= 24:
        for index in range(count):
            yield replace(scenario, injections=scenario.injections[:index] + scenario.injections[index + 1 :])
