"""P12: hours count training. However long a job waits for machines, that uses up none of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotsup_simulator.world import World

from supervisor.features.limits.rule import trained_s
from supervisor.planner.predicates import done_nodes
from supervisor.planner.world import JobView

# A loss is seen so late at most: a suspicion has to run out, or another daemon to lead.
SEEN_LATE_S = 180.0
# Daemons whose clocks are off by more count wrong hours, as docs/operations.md says.
CLOCK_S = 60.0


@dataclass
class _Count:
    present_s: float = 0.0  # for how long there were enough machines
    losses: int = 1  # how often there were too few afterwards
    enough: bool = False


class HoursCheck:
    """Counts the time in which each job has enough machines."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._counts: dict[str, _Count] = {}
        self._at = world.clock.now()
        self._exempt = False

    def etcd_rolled_back(self) -> None:
        """What a job has trained is as old as the backup: nothing is checked any more."""
        self._exempt = True

    def check(self, jobs: Iterable[JobView]) -> str:
        """What is wrong with the hours of a job, or nothing. Call it after every event."""
        now, passed_s = self._world.clock.now(), self._world.clock.now() - self._at
        self._at = now
        self._exempt = self._exempt or any(abs(daemon.clock_error_s) > CLOCK_S for daemon in self._world.daemons)
        if self._exempt:
            return ""
        for view in jobs:
            job = view.record
            count = self._counts.setdefault(job.task_id, _Count())
            # Nobody can write that machines are gone while etcd takes no writes.
            count.present_s += passed_s if count.enough or self._world.etcd.full else 0.0
            enough = self._has_enough(view)
            count.losses += count.enough and not enough
            count.enough = enough
            hours_s = trained_s(job, now)
            if hours_s > count.present_s + count.losses * SEEN_LATE_S:
                return (
                    f"P12: {job.name} counts {hours_s:.0f} s of training, and had machines for {count.present_s:.0f} s"
                )
        return ""

    def _has_enough(self, view: JobView) -> bool:
        """Those whose ranks have ended well are not missed."""
        job, machines = view.record, self._world.cloud.machines.values()
        mine = {each.node for each in machines if each.alive and each.node.startswith(f"{job.task_id}-")}
        return len(mine | done_nodes(view, view.nodes)) >= job.min_nodes
