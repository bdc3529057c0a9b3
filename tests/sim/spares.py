"""A waiting spare replaces a member that is lost or has a notice: it is in the next round."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World
from spotsup_trainer.wire import Round

from supervisor.model import NodeState
from supervisor.planner.world import JobView

# A command reaches the hint within so long; until then the wanted number of members is not known.
COMMAND_S = 10.0


@dataclass
class _Snapshot:
    """A job at the last step."""

    round: Round | None = None
    # Spares, and since when each could join; nodes that are lost or have a notice, and since when.
    waiting: dict[str, float] = field(default_factory=dict)
    failing: dict[str, float] = field(default_factory=dict)
    desired: int = 0
    desired_since: float = 0.0


class SpareCheck:
    """Checks every job after every step of time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, _Snapshot] = {}
        self.joined = 0

    def check(self, job: JobView) -> str:
        """What is wrong, or ""."""
        now, seen = self._world.clock.now(), self._seen.setdefault(job.record.task_id, _Snapshot())
        machines = {machine.node: machine for machine in self._world.cloud.machines.values()}
        down = self._world.no_daemon_acts or self._world.etcd.down
        if job.record.desired_nodes != seen.desired or (down and now - seen.desired_since < COMMAND_S):
            seen.desired, seen.desired_since = job.record.desired_nodes, now
        seen.failing = {n: seen.failing.get(n, now) for n in job.nodes if n in machines and _is_failing(machines[n])}
        wrong = ""
        if seen.round is not None and job.round is not None and job.round.number > seen.round.number:
            wrong = self._judge(job, seen, seen.round, job.round, now)
        seen.round = job.round
        seen.waiting = {node: seen.waiting.get(node, now) for node in job.nodes if _waits(job, node, seen)}
        return wrong

    def _judge(self, job: JobView, seen: _Snapshot, before: Round, after: Round, now: float) -> str:
        old, new = set(before.nodes()), set(after.nodes())
        left = [node for node in old - new if node in seen.failing]
        hinted = job.hint.members if job.hint else ()
        if not left or now - seen.desired_since < COMMAND_S or job.record.spec.nodes.multiple_of > 1:
            return ""  # of pairs, one that waits may have to wait on
        if any(node in seen.failing and node not in old for node in hinted):
            return ""  # a hinted node fails, too, while it is about to join: the spare comes one round later
        first = min(seen.failing[node] for node in left)
        waited = [node for node, since in seen.waiting.items() if since < first and node not in seen.failing]
        room = job.record.desired_nodes - len(old & new)
        due = min(len(left), len(waited), room)
        self.joined += len(new & set(waited))
        if len(new - old) >= due:
            return ""
        return f"{waited} waited, {left} left, and round {after.number} is {after.nodes()}"


def _is_failing(machine: Machine) -> bool:
    return not machine.alive or machine.silent or machine.instance.preempt_at is not None


def _waits(job: JobView, node: str, seen: _Snapshot) -> bool:
    """Named as a spare, or just hinted as a member; running, healthy, and outside the round."""
    found, inside = job.members.get(node), job.round is not None and node in job.round.nodes()
    named = job.hint is not None and (node in job.hint.spares or (node in job.hint.members and node in seen.waiting))
    ready = job.nodes[node].state is NodeState.READY and node not in seen.failing
    able = found is not None and found.state == "waiting" and not found.unhealthy
    return named and ready and not inside and able
