"""P7 in the simulated world: while etcd, the leader or the clouds' APIs are away, and right after, rounds that have all
their machines train on. That real training processes do so is tried elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotsup_simulator.training import Training
from spotsup_simulator.world import World

from supervisor.model import JobState
from tests.scenario.market import DayCloud
from tests.sim.promises import Violation, jobs_of

AFTER_S = 60.0  # what comes back must not stop them either
LEAST = 0.5  # of the time in which they must have made steps: another node may join meanwhile, which is a pause
# What training must not need, in words, and for how long it is away; 0: as its step says.
AWAY = {
    "daemon killed": ("the leading daemon was killed", 60.0),
    "daemon frozen": ("the leading daemon stood still", 0.0),
    "etcd away": ("etcd did not answer", 0.0),
    "cloud unreachable": ("no cloud answered", 0.0),
}
_TRAINS = frozenset({JobState.RUNNING, JobState.DEGRADED})


@dataclass(frozen=True, slots=True)
class Outage:
    """What trained when it began."""

    what: str
    began: float
    until: float
    rounds: Mapping[str, tuple[str, ...]]  # the nodes of each job's round


def begun(world: World, what: str, seconds: float) -> Outage:
    """An outage that begins now."""
    now = world.clock.now()
    trains = {name: each for name, each in world.nodes.trainings.items() if each.result is None and each.formed}
    rounds = {
        name: each.formed.nodes()
        for name, each in trains.items()
        if each.formed and trained_s(each, now - 5.0, now) >= 4.9
    }
    return Outage(what, now, now + seconds + AFTER_S, rounds)


def judge(world: World, cloud: DayCloud, outage: Outage) -> int:
    """At its end: how many rounds could go on, and did. Raises Violation if one did not."""
    machines = {machine.node: machine for machine, *_ in cloud.bought}
    jobs, length_s, kept = jobs_of(world), outage.until - outage.began, 0
    for name, nodes in outage.rounds.items():
        view, training = jobs.get(name), world.nodes.trainings.get(name)
        if view is None or training is None or view.record.state not in _TRAINS or view.record.pause.at:
            continue  # a user's command, a limit, its end
        here = [machines[node] for node in nodes if node in machines]
        if len(here) < len(nodes) or not all(each.alive and each.noticed_at is None and not each.cut for each in here):
            continue  # its cloud took some
        trained = trained_s(training, outage.began, outage.until)
        if trained < LEAST * length_s:
            raise Violation(
                f"P7: {outage.what}, and {name} trained for {trained:.0f} of {length_s:.0f} s, with all its machines"
            )
        kept += 1
    return kept


def trained_s(training: Training, begin: float, end: float) -> float:
    """For how long steps were made between two moments."""
    spans = training.steps.spans_until(end)
    return sum(max(0.0, min(each.end, end) - max(each.start, begin)) for each in spans)
