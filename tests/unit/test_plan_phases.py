"""The order in which a job is decided: what may be shuffled, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from spotsup_trainer.wire import Pause, Pauses, Progress

from supervisor.features.limits.rule import drive_limits
from supervisor.model import JobState, NodeState
from supervisor.planner.actions import Launch
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import drive_fleet
from supervisor.planner.phases import PHASES, REPORTS, Phase, plan_job
from tests.unit.scene import NOW, draft_of, job, launcher, member, name, node, round_of, spec

N, J = NodeState, JobState


def everything_to_report() -> Draft:
    """A downtime, a silent node, checkpoints that fail and are slow, steps that hang, and a long wait that is over."""
    silent = node(2, N.SUSPECT, state_since=NOW - 500)
    hanging = {name(n): launcher(n, "running", stalled_since=NOW - 400, problem="it hangs") for n in (1, 2)}
    return draft_of(
        member(1),
        silent,
        record=job(2, waits={"reported_at": NOW - 9}),
        round=round_of(1, 2, number=2),
        members=hanging,
        pauses=Pauses(name(1), (Pause(2, NOW, 1.5, 0.5),)),
        progress=Progress(2, 9, NOW - 400, NOW - 800, checkpoint_problem="disk full", checkpoint_p95_s=500.0),
    )


def decided(phases: Sequence[Phase]) -> tuple[Any, ...]:
    """What is committed; events without their numbers, which follow their order."""
    draft = everything_to_report()
    plan_job(draft, phases)
    commit = draft.commit()
    events = {(event.kind, event.text, event.node) for event in commit.events}
    assert len(events) > 4, "there is something to report"
    return commit.job_record, commit.nodes, commit.put_keys, commit.actions, events


def test_reports_may_come_in_any_order() -> None:
    first = next(at for at, phase in enumerate(PHASES) if phase.drive in REPORTS)
    others = (PHASES[:first], PHASES[first + len(REPORTS) :])
    assert not {phase.drive for part in others for phase in part} & set(REPORTS), "they stand together"
    expected = decided(PHASES)
    for order in permutations(PHASES[first : first + len(REPORTS)]):
        assert decided((*others[0], *order, *others[1])) == expected


def test_each_phase_stands_once_and_says_why() -> None:
    assert len({phase.drive for phase in PHASES}) == len(PHASES)
    assert all(phase.why for phase in PHASES)


@pytest.mark.parametrize(("swapped", "launches"), [(False, 0), (True, 1)])
def test_a_job_that_reaches_its_limit_asks_for_nothing_since_limits_come_before_the_fleet(
    swapped: bool, launches: int
) -> None:
    record = replace(job(2, spec=spec(limits={"hours": 1}), limits={"trained_s": 7200.0}), state=J.DEGRADED)
    draft = draft_of(member(1), record=record)
    order = {phase.drive: at for at, phase in enumerate(PHASES)}
    phases = list(PHASES)
    if swapped:
        phases.insert(order[drive_limits], phases.pop(order[drive_fleet]))
    plan_job(draft, phases)
    assert draft.job.pause.at == NOW
    assert sum(isinstance(action, Launch) for action in draft.commit().actions) == launches
