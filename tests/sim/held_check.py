"""P13: nothing is held below `min` longer than the gang timeout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotsup_simulator.world import World

from supervisor.model import COUNTED_NODE_STATES, IN_FLIGHT_NODE_STATES, JobState, NodeState
from supervisor.planner.fleet import MIN_FAILURES_TO_PROBE
from supervisor.planner.world import JobView

# Between the timeout and the last machine's end: some ticks, a commit's room, and the actions' slots.
SLACK_S = 60.0
# An answer is waited for; and silent nodes are kept until they are heard, or known to have ended (P4).
_UNDECIDED = frozenset({NodeState.REQUESTED, NodeState.SUSPECT})
_TRAINING = frozenset({JobState.RUNNING, JobState.DEGRADED})


@dataclass
class _Held:
    few: int = 0
    seconds: float = 0.0


class HeldCheck:
    """Counts the time in which a job holds too few machines, all is known of its nodes, and one daemon leads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, _Held] = {}
        self._at = world.clock.now()
        self._leader = ""

    def check(self, jobs: Mapping[str, JobView]) -> str:
        """What is wrong, or "". Call it after every event."""
        now, passed_s = self._world.clock.now(), self._world.clock.now() - self._at
        self._at = now
        leader = next((d.name for d in self._world.daemons if d.runs and d.leader.leading and d.client.connected), "")
        if leader != self._leader:
            self._leader = leader
            self._held.clear()  # a new leader gives everyone the time that it has itself
        # While its cloud answers nothing, no machine can be ended, and what else is offered cannot be read.
        cloud = self._world.cloud
        answers = cloud.fault_rates.unreachable < 1.0 and not cloud.silent_regions
        # By a journal that is not believed nothing is ended: an operator looks first.
        cluster = self._world.journal.read().cluster
        believed = cluster is not None and not cluster.doubted_at
        can_decide = bool(leader) and not self._world.etcd.full and answers and believed
        for name, job in jobs.items():
            few = _too_few(job)
            held = self._held.get(job.record.task_id)
            if not few or held is None or held.few != few:
                self._held[job.record.task_id] = _Held(few)
            elif can_decide and not any(node.state in _UNDECIDED for node in job.nodes.values()):
                held.seconds += passed_s
                if held.seconds > self._world.rules.gang.timeout_s + SLACK_S:
                    needed = job.record.min_nodes
                    return f"P13: {name} has held {few} of at least {needed} machines for {held.seconds:.0f} s"
        return ""


def _too_few(job: JobView) -> int:
    """How many machines a job holds, where they are fewer than it needs, and 0 where it trains all the same."""
    held = [n for n in job.nodes.values() if n.state in COUNTED_NODE_STATES and n.instance_id and not n.doomed]
    # While bootstraps fail, one machine at a time is tried, for as long as that takes.
    never_trained = job.record.rounds.reported == 0 and job.round is None
    failures = 1 if job.record.bootstraps.own_failures and never_trained else MIN_FAILURES_TO_PROBE
    tries_one = job.record.bootstraps.failures >= failures
    if tries_one and all(node.state in IN_FLIGHT_NODE_STATES for node in held):
        return 0
    return len(held) if len(held) < job.record.min_nodes and job.record.state not in _TRAINING else 0
