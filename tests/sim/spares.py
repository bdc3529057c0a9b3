"""A spare that waits steps in: whoever was lost or noticed while it waited, the next round has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotsup_trainer.wire import Round

from supervisor.model import NodeState
from supervisor.planner.world import JobView
from tests.sim.world import Machine, World

# What was asked for by a command reaches the hint by then; until it has, nobody knows how many shall train.
COMMAND_S = 10.0


@dataclass
class _Seen:
    """What was true of a job at the last step. `waiting`: spares, and since when each could step in."""

    round: Round | None = None
    waiting: dict[str, float] = field(default_factory=dict)
    struck: dict[str, float] = field(default_factory=dict)
    desired: int = 0
    desired_since: float = 0.0


class Spares:
    """Asked after every step of time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, _Seen] = {}
        self.stepped_in = 0

    def check(self, job: JobView) -> str:
        """What is wrong, or nothing."""
        now, seen = self._world.clock.now(), self._seen.setdefault(job.record.task_id, _Seen())
        machines = {machine.instance.node: machine for machine in self._world.cloud.machines.values()}
        away = self._world.daemon_away or self._world.store.away
        if job.record.desired_nodes != seen.desired or (away and now - seen.desired_since < COMMAND_S):
            seen.desired, seen.desired_since = job.record.desired_nodes, now
        seen.struck = {n: seen.struck.get(n, now) for n in job.nodes if n in machines and _struck(machines[n])}
        wrong = ""
        if seen.round is not None and job.round is not None and job.round.number > seen.round.number:
            wrong = self._judge(job, seen, seen.round, job.round, now)
        seen.round = job.round
        seen.waiting = {node: seen.waiting.get(node, now) for node in job.nodes if _waits(job, node, seen)}
        return wrong

    def _judge(self, job: JobView, seen: _Seen, before: Round, after: Round, now: float) -> str:
        old, new = set(before.nodes()), set(after.nodes())
        left = [node for node in old - new if node in seen.struck]
        hinted = job.hint.members if job.hint else ()
        if not left or now - seen.desired_since < COMMAND_S:
            return ""
        if any(node in seen.struck and node not in old for node in hinted):
            return ""  # struck, too, while it was about to join: the spare comes one round later
        first = min(seen.struck[node] for node in left)
        waited = [node for node, since in seen.waiting.items() if since < first and node not in seen.struck]
        room = job.record.desired_nodes - len(old & new)
        due = min(len(left), len(waited), room)
        self.stepped_in += len(new & set(waited))
        if len(new - old) >= due:
            return ""
        return f"{waited} waited, and {left} left, but round {after.number} is {after.nodes()}"


def _struck(machine: Machine) -> bool:
    return not machine.alive or machine.silent or machine.instance.preempt_at is not None


def _waits(job: JobView, node: str, seen: _Seen) -> bool:
    """Named as a spare, or just called in; there, healthy, and outside the round."""
    found, inside = job.members.get(node), job.round is not None and node in job.round.nodes()
    named = job.hint is not None and (node in job.hint.spares or (node in job.hint.members and node in seen.waiting))
    ready = job.nodes[node].state is NodeState.READY and node not in seen.struck
    return named and ready and not inside and found is not None and found.state == "waiting"
