"""Twenty jobs of four users in one market, within limits: this daemon's queue, beside first come, first served.

Each machine of the recording counts as four, so that a job of 64 nodes has room in one of its zones.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spotsup_simulator.daemon import Daemon
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Part, total_of
from spotsup_simulator.replay.recording import Recording, made
from spotsup_simulator.replay.run import POLICY, Replay, run_together
from spotsup_simulator.replay.world import RecordedWorld

from benchmarks.market.cases import BEYOND, FEW, FEW_AND_NONE_ADDED, UNFAIR, UNFINISHED
from supervisor.market.admission import Cap, QueueRules
from supervisor.model import COUNTED_NODE_STATES, JobState
from supervisor.planner.actions import Action, Launch
from supervisor.planner.world import Rules
from supervisor.spec import parse_spec

FCFS = "first come, first served"
TIMES = 4
USERS = ("ann", "bob", "cid", "dee")
SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 64)
CLUSTER, USER = 64, 48  # nodes
LIMITS = QueueRules(Cap(nodes=CLUSTER), Cap(nodes=USER))
SUBMITTED_H, WORK_H = 12.0, (1.0, 4.0)
USD_PER_HOUR = 1.0
# A job waits at least for its machines, and for those before it to leave: less than that is no unfairness.
LEAST_WAIT_H = 0.5
STARVED = 3.0
# Metrics, and their units.
UNITS = {
    UNFINISHED: "jobs",
    "makespan": "h",
    "cost": "USD",
    "median wait": "h",
    "longest wait": "h",
    UNFAIR: "1",
    "jobs that starve": "jobs",
    BEYOND: "requests",
    "nodes at most": "nodes",
    FEW: "s",
    FEW_AND_NONE_ADDED: "s",
}
LOOK_S = 30.0
NEVER_H = 1000.0  # the wait of a job that never trains


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user submits."""

    name: str
    owner: str
    submit_s: float
    desired: int
    low: int
    work_node_h: float


@dataclass
class Watch:
    """What the queue promises, looked at while it runs."""

    world: RecordedWorld
    over: int = 0  # requests beyond a limit
    most_nodes: int = 0
    below_s: float = 0.0  # the longest time in which machines that are too few to train were held
    idle_s: float = 0.0  # the same, without one more or less of them
    _few_since: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """From now on."""
        self.world.hooks.action.append(self._check_limits)
        self._look()

    def _check_limits(self, _daemon: Daemon, action: Action) -> None:
        if not isinstance(action, Launch):
            return
        by_user: Counter[str] = Counter()
        for view in self.world.journal.read().jobs.values():
            by_user[view.record.owner] += sum(
                each.state in COUNTED_NODE_STATES and not each.doomed for each in view.nodes.values()
            )
        self.most_nodes = max(self.most_nodes, by_user.total())
        self.over += by_user.total() > CLUSTER or max(by_user.values()) > USER

    def _look(self) -> None:
        now = self.world.clock.now()
        for name, view in self.world.journal.read().jobs.items():
            record = view.record
            trains = record.state in {JobState.RUNNING, JobState.DEGRADED}  # with those that have a notice, too
            if not record.gang.machines or record.ended or trains:
                self._few_since.pop(name, None)
                continue
            unchanged_since = max(record.gang.since, record.state_since)
            self.below_s = max(self.below_s, now - self._few_since.setdefault(name, unchanged_since))
            self.idle_s = max(self.idle_s, now - unchanged_since)
        self.world.schedule(now + LOOK_S, self._look)


def wishes(seed: int, count: int) -> list[Wish]:
    """Jobs of 1 to 64 nodes; the first user submits two of five."""
    draw = random.Random(f"together {seed}")
    found = []
    for number in range(count):
        desired = SIZES[number] if number < len(SIZES) else draw.choice(SIZES)
        owner = draw.choice((USERS[0], USERS[0], *USERS[1:]))
        low = min(USER, max(1, desired // draw.choice((1, 2, 4))))
        submit_s = draw.uniform(0.0, SUBMITTED_H) * HOUR_S
        found.append(Wish(f"job-{number:02}", owner, submit_s, desired, low, desired * draw.uniform(*WORK_H)))
    return sorted(found, key=lambda each: each.submit_s)


def fair_waits_h(jobs: Sequence[Wish], recording: Recording) -> dict[str, float]:
    """By job, how long it would wait if each user had a fourth of what there is, to use in the order of submission."""
    series, found, busy_until = recording.capacity, {}, dict.fromkeys(USERS, 0.0)
    for job in jobs:
        start = max(job.submit_s, busy_until[job.owner])
        found[job.name] = (start - job.submit_s) / HOUR_S
        left, at = job.work_node_h * HOUR_S, start
        while left > 0 and at < recording.end_s:
            rate = min(CLUSTER, sum(series.at(at))) / len(USERS)
            index = series.index(at) + 1
            until = min(series.seconds[index] if index < len(series.seconds) else recording.end_s, recording.end_s)
            if rate and left / rate <= until - at:
                at, left = at + left / rate, 0.0
            else:
                at, left = until, left - rate * (until - at)
        busy_until[job.owner] = at
    return found


def play(recording: Recording, seed: int, count: int) -> dict[str, Any]:
    """Both orders, with what each promise came to."""
    rows = tuple(tuple(TIMES * machines for machines in row) for row in recording.capacity.rows)
    capacity = replace(recording.capacity, rows=rows)
    recording = made(recording.name, recording.zones, capacity, recording.prices, recording.end_s)
    jobs = wishes(seed, count)
    fair = fair_waits_h(jobs, recording)
    began = time.process_time()
    ours = _played(recording, seed, jobs, fair, POLICY)
    cpu_s = time.process_time() - began
    return {"together": {POLICY: ours, FCFS: _played(recording, seed, jobs, fair, FCFS)}, "cpu_s": cpu_s}


def _played(
    recording: Recording, seed: int, jobs: Sequence[Wish], fair: Mapping[str, float], policy: str
) -> dict[str, float | None]:
    """Metrics by name."""
    strict = policy == FCFS
    costs = Costs(spot_usd_per_hour=USD_PER_HOUR)
    replays = [_replay(recording, costs, seed, job, -number if strict else 0) for number, job in enumerate(jobs)]
    watches: list[Watch] = []

    def world_of(*given: Any) -> RecordedWorld:
        hold_s = 0.0 if strict else Rules().queue_hold_s
        watches.append(Watch(RecordedWorld(*given, queue=LIMITS, queue_hold_s=hold_s)))
        watches[0].begin()
        return watches[0].world

    run_together(replays, make_world=world_of)
    parts = [replay.part() for replay in replays]
    total = total_of(policy, parts)
    ratios = [_ratio(part, fair[part.job]) for part in parts]
    waits = sorted(NEVER_H if part.first_step_h is None else part.first_step_h for part in parts)
    return {
        UNFINISHED: total.jobs - total.finished,
        "makespan": total.makespan_h,
        "cost": total.usd,
        "median wait": waits[len(waits) // 2],
        "longest wait": waits[-1],
        UNFAIR: max(ratios),
        "jobs that starve": sum(ratio > STARVED for ratio in ratios),
        BEYOND: watches[0].over,
        "nodes at most": watches[0].most_nodes,
        FEW: watches[0].below_s,
        FEW_AND_NONE_ADDED: watches[0].idle_s,
    }


def _replay(recording: Recording, costs: Costs, seed: int, job: Wish, priority: int) -> Replay:
    nodes = {"min": job.low, "desired": job.desired, "max": job.desired}
    spec = {"name": job.name, "nodes": nodes, "run": "train.py", "priority": priority}
    return Replay(recording, parse_spec(spec), costs, seed, job.work_node_h, job.submit_s, owner=job.owner)


def _ratio(part: Part, fair_h: float) -> float:
    wait_h = NEVER_H if part.first_step_h is None else part.first_step_h
    return wait_h / max(fair_h, LEAST_WAIT_H)
