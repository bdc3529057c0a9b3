"""What each number of the market's policy is worth: a job is played with half and with twice of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import MappingProxyType, ModuleType
from typing import Any

from spotsup_simulator.replay import compare, oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.recording import Recording
from spotsup_simulator.replay.run import run_together
from spotsup_simulator.replay.world import RecordedWorld

from benchmarks.market.cases import REQUESTS, USEFUL
from supervisor.market import capacity
from supervisor.planner.world import Rules
from supervisor.spec import JobSpec

FACTORS = (0.5, 2.0)
NOW = "now"
METRICS = (USEFUL, REQUESTS)


@dataclass(frozen=True, slots=True)
class Knob:
    """A number of the policy: a field of Rules, or of one of its parts, or a constant of a module."""

    name: str
    module: ModuleType | None = None

    @property
    def value(self) -> float:
        """As the code has it."""
        if self.module is not None:
            return float(getattr(self.module, self.name))
        return float(attrgetter(self.name)(Rules()))


# By what they are for; each group is a process of its own.
GROUPS: Mapping[str, tuple[Knob, ...]] = MappingProxyType(
    {
        "asking": (
            Knob("gang.retry_s"),
            Knob("WARY_S", capacity),
            Knob("LATE_S", capacity),
            Knob("MAX_LATE_S", capacity),
            Knob("LATE_DECAY_S", capacity),
            Knob("TOO_FEW_S", capacity),
            Knob("MIN_TOO_FEW_S", capacity),
            Knob("MAX_TOO_FEW_S", capacity),
            Knob("gang.timeout_s"),
        ),
        "ranking": (
            Knob("preemption_s"),
            Knob("hazard.prior_per_hour"),
            Knob("hazard.prior_hours"),
            Knob("hazard.half_life_s"),
            Knob("gather_s"),
            Knob("leave_margin_s"),
        ),
        "worth of a move": (
            Knob("moves.arrival_s"),
            Knob("moves.pause_s"),
            Knob("moves.horizon_s"),
            Knob("moves.gain"),
            Knob("moves.limit_s"),
        ),
        "time of a move": (
            Knob("moves.after_s"),
            Knob("moves.probe_s"),
            Knob("moves.rest_s"),
            Knob("moves.retry_s"),
            Knob("moves.max_retry_s"),
        ),
    }
)
KNOBS = tuple(knob for group in GROUPS.values() for knob in group)
# Numbers of the same modules that this job on this recording does not meet, or that only bound what is kept.
OTHERS = {
    "moves.back_to_spot_s": "on-demand alone: the recording has none",
    "moves.back_to_listed_s": "alternatives of resources: the recording has one kind",
    "NOTICE_S": "ends that are known before: the recording has none",
    "MIN_LEFT_S": "ends that are known before: the recording has none",
    "queue_hold_s": "several jobs: see the 20 jobs",
    "displaced_again_s": "several jobs, where the operator lets them be paused for others",
    "SAFETY": "deadlines alone: see the deadlines",
    "BACK": "deadlines alone: see the deadlines",
    "MAX_REFUSALS": "bounds memory",
    "MAX_LATE_POOLS": "bounds memory",
    "MAX_EXPOSURES": "bounds memory",
    "EVERY_S": "bounds writes to the journal",
    "MAX_JOURNALED": "bounds the journal",
    "MAX_BELIEVED_S": "bounds what another daemon believes",
    "MAX_EXPOSURE_S": "bounds the journal",
    "HOUR_S": "a unit",
    "offers_s": "how often prices are read",
    "refused_retry_s": "a cloud that does not answer",
}


def play(recording: Recording, spec: JobSpec, seed: int, group: str) -> dict[str, Any]:
    """By setting, such as "gather_s x2": useful node-hours of the oracle's, and requests."""
    costs, began = Costs(), time.process_time()
    best = oracle.best(recording, spec.nodes.min, spec.nodes.desired, costs, compare.WORTH_USD)

    def played(changed: Mapping[str, float]) -> dict[str, float]:
        replay = compare.replayed(recording, spec, costs, seed, None)
        found = run_together([replay], make_world=partial(RecordedWorld, changed=changed))[0]
        return {USEFUL: found.useful_node_h / best.useful_node_h, REQUESTS: found.requests}

    by_setting = {NOW: played({})}
    for knob in GROUPS[group]:
        for factor in FACTORS:
            with _set(knob, knob.value * factor) as changed:
                by_setting[setting(knob, factor)] = played(changed)
    return {"knobs": by_setting, "cpu_s": time.process_time() - began}


def setting(knob: Knob, factor: float) -> str:
    """Its name in the results."""
    return f"{knob.name} x{factor:g}"


@contextmanager
def _set(knob: Knob, value: float) -> Iterator[Mapping[str, float]]:
    """Fields of Rules to change; a module's constant has this value meanwhile."""
    if knob.module is None:
        yield {knob.name: value}
        return
    before = getattr(knob.module, knob.name)
    setattr(knob.module, knob.name, value)
    try:
        yield {}
    finally:
        setattr(knob.module, knob.name, before)
