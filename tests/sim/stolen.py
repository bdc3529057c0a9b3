"""A stolen node in a simulated world: a thief with its job's login writes what it likes, beside the jobs of others.

Chance is taken out of the world: whatever differs with and without the thief is the thief's doing.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from spotsup_simulator.etcd_clients import NodeClient
from spotsup_simulator.machine import Machine
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World
from spotsup_trainer.wire import encode

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.market.warm import WarmRules
from supervisor.model import JobState, NodeState, parts_of
from supervisor.planner.actions import Commit
from tests.sim.harness import NO_FAULTS, RULES, record, service, submit
from tests.sim.promises import jobs_of

EVIL = "evil"
DESIRED = MAX = 2
PERIOD_S = 8.0  # between two tries
ENDS_S = 235.0  # when the thief stops
MIN_BILLED_S = 60.0  # clouds bill a machine for a minute at least
# What a node's word took from its job's count goes beyond `max` by at most `desired` (9c).
MOST = MAX + DESIRED
# A decision about others may wait for another listing, and a few ticks.
LATE_S = 8.0
STOLEN_RULES = replace(
    RULES,
    listing_s=5.0,
    max_notice_s={"local": 60.0},
    warm=WarmRules(keep_s=60.0),
    unhealthy=replace(RULES.unhealthy, max_streak=3, memory_s=600.0, hold_s=10.0),
)
# Whether a listing or the end of a lease is first is chance, and decides nothing.
UNCERTAIN = {EventKind.NODE_SUSPECT}
NOTHING_FAILED = ("undecided", "ticks_failed", "commits_refused", "outcomes_dropped")


class Thief:
    """Root on all nodes of a job."""

    def __init__(self, world: World, job: str = EVIL) -> None:
        self.world = world
        self.job = job
        self.keys = world.nodes.keys
        self.tries = 0
        self._client = NodeClient(world.etcd, job)

    @property
    def now(self) -> float:
        return self.world.clock.now()

    @property
    def machines(self) -> list[Machine]:
        """Those of the job that run."""
        found = self.world.cloud.machines.values()
        return [each for each in found if each.alive and parts_of(each.node).job == self.job]

    @property
    def nodes(self) -> list[str]:
        """Those whose machines run."""
        return sorted(each.node for each in self.machines)

    @property
    def ahead(self) -> list[str]:
        """Nodes of the job from its first on, there, gone, and to come."""
        task_id = jobs_of(self.world)[self.job].record.task_id
        return [f"{task_id}-{number}" for number in range(1, 20)]

    def write(self, key: str, message: Any) -> None:
        """A message, or bytes; etcd refuses what the job's user may not write."""
        self._client.put(key, message if isinstance(message, bytes) else encode(message))


Forgery = Callable[[Thief], None]


@dataclass
class Course:
    """What happened in a world."""

    world: World
    began: float = 0.0
    # Of others' jobs: what was decided, and when; their machines, and when each began and ended.
    decided: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    machines: dict[str, list[float]] = field(default_factory=dict)
    # Of the thief's job: how many machines billed at once, and for how many seconds all of them together.
    most: int = 0
    billed_s: float = 0.0
    lasted_s: float = 0.0
    slowest_tick_s: float = 0.0  # of CPU
    left: int = 0  # machines of the thief's job, a while after a user has cancelled it

    @property
    def failures(self) -> Mapping[str, int]:
        """What a boundary has caught."""
        counters = self.world.daemon.loop.status.counters
        return {name: counters[name] for name in NOTHING_FAILED if name in counters}


def play(forgery: Forgery) -> Course:
    """Let jobs of others live for some minutes, beside one whose nodes were stolen."""
    world = _steady_world()
    course, thief = Course(world), Thief(world)
    submit(world, "old", 2, 2, 2, owner="ann")
    submit(world, EVIL, 1, DESIRED, MAX, owner="eve")
    submit(world, "ann", 1, 2, 4, owner="ann")
    names = ("old", EVIL, "ann")
    assert world.run_until(lambda w: all(record(w, name).state is JobState.RUNNING for name in names), 60.0)
    course.began = world.clock.now()
    _watch(course)

    def again() -> None:
        forgery(thief)
        thief.tries += 1
        world.wake_daemons()
        if world.clock.now() < course.began + ENDS_S:
            world.schedule(world.clock.now() + PERIOD_S, again)

    course_of_others: tuple[tuple[float, Callable[[], object]], ...] = (
        (5.0, lambda: service(world).commands.cancel("old")),
        (8.0, again),
        (20.0, lambda: world.cloud.preempt(_anns(world), 30.0)),
        (80.0, lambda: world.nodes.break_gpu(_anns(world).node, "ecc")),
        (85.0, lambda: world.cloud.add_unjournaled(_gone(world))),
        (115.0, lambda: world.cloud.end(_anns(world), EndCause.UNKNOWN)),
        (145.0, lambda: submit(world, "bob", 1, 1, 1, owner="bob")),
        (170.0, lambda: service(world).commands.scale("ann", Scale(desired=3))),
        (200.0, lambda: service(world).commands.cancel("ann")),
    )
    for at, do in course_of_others:
        world.schedule(course.began + at, partial(_call, do))
    world.run(ENDS_S + PERIOD_S)
    if not record(world, EVIL).ended:
        service(world).commands.cancel(EVIL)
    world.run(150.0)
    course.left = len(thief.machines)
    _close(course)
    return course


def _call(do: Callable[[], object]) -> None:
    do()


def _steady_world() -> World:
    world = World(Conditions(1, NO_FAULTS, STOLEN_RULES))
    for rng in (world.rng, world.etcd._rng):
        rng.uniform = lambda low, high: (low + high) / 2  # type: ignore[method-assign]
    world.nodes.progress_every_s = 20.0
    world.cloud.types = ("small", "large")
    world.run(1.0)
    return world


def _anns(world: World) -> Machine:
    """The machine of ann's node that trains for the longest time."""
    trains = world.nodes.trainings["ann"].trains
    return min((each for each in Thief(world, "ann").machines if trains(each.node)), key=lambda each: each.node)


def _gone(world: World) -> str:
    return next(each.id for each in jobs_of(world)["ann"].nodes.values() if each.state is NodeState.GONE)


def _watch(course: Course) -> None:
    world = course.world

    def commit(_: Any, found: Commit) -> None:
        if found.job == EVIL:
            return
        at = world.clock.now() - course.began
        for event in found.events:
            if event.job and event.kind not in UNCERTAIN:
                course.decided[f"{event.kind} {event.node}"].append(at)
        for action in found.actions:
            machine = world.cloud.machines.get(getattr(action, "instance_id", ""))
            if machine is None or not _is_evil(machine):
                key = machine.instance.node if machine else action.key
                course.decided[f"{type(action).__name__} {key}"].append(at)

    def step() -> None:
        course.most = max(course.most, sum(each.billed and _is_evil(each) for each in world.cloud.machines.values()))

    tick = world.daemon.loop.tick

    def timed() -> None:
        before = time.thread_time()
        tick()
        course.slowest_tick_s = max(course.slowest_tick_s, time.thread_time() - before)

    world.daemon.loop.tick = timed  # type: ignore[method-assign]
    world.hooks.commit.append(commit)
    world.hooks.step.append(step)


def _is_evil(machine: Machine) -> bool:
    return parts_of(machine.instance.node).job == EVIL


def _close(course: Course) -> None:
    now = course.world.clock.now()
    course.lasted_s = now - course.began
    for machine in course.world.cloud.machines.values():
        first, last = machine.history[0][0], now if machine.ended_at is None else machine.ended_at
        if _is_evil(machine):
            course.billed_s += max(MIN_BILLED_S, last - first)
        else:
            found = machine.instance
            times = [first - course.began, last - course.began]
            course.machines[f"{found.node} {found.zone} {found.instance_type} {first == last}"] = times
