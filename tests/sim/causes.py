"""Why a node was taken from its job, why steps were lost, who is blamed: against what really happened (P4, P5, P9)."""

from __future__ import annotations

from provisioners.base import EndCause
from supervisor.model import COUNTED_NODE_STATES, NodeRecord, NodeState
from supervisor.planner.world import JobView
from tests.sim.cloud import NEVER, Machine
from tests.sim.nodes import Agent
from tests.sim.training import Lost
from tests.sim.world import World

N = NodeState
_WORKING = (N.READY, N.MEMBER, N.SUSPECT)
_TAKEN = (N.LOST, N.FAILED, N.TERMINATING, N.DRAINING, N.GONE)
# What a daemon knows is a little old: listings lag, mirrors lag, calls take their time.
SLACK_S = 5.0
# A notice so long before the end is enough for an agent to leave in order, with a checkpoint.
NOTICE_S = 12.0
# For so long after etcd was set back, what its records and words led to is nobody's fault.
RESTORED_S = 900.0


class Causes:
    """Remembers machines: a cloud forgets those that are gone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._machines: dict[str, Machine] = {}
        self._agents: dict[str, Agent] = {}
        self._blamed: dict[str, int] = {}
        self.forgiven: set[str] = set()

    def check(self, before: JobView | None, job: JobView) -> str:
        """What is wrong with how a job's records changed, or nothing."""
        self._look()
        wrong = self._check_blame(job) if self._world.clock.now() - self._world.restored_at > RESTORED_S else ""
        if wrong or before is None or before.record.uid != job.record.uid:
            return wrong
        for node in job.nodes.values():
            old = before.nodes.get(node.id)
            if old is None:
                continue
            why = node.history[-1].reason if node.history else "nobody said why"
            if node.id in self.forgiven:
                continue
            if old.state is not N.GONE and node.state is N.GONE and self._bills_unseen(old):
                return f"P1: {node.id} is let go of, and its machine bills: {why}"
            if old.state in _WORKING and node.state in _TAKEN and not self._may_take(before, job, old):
                return f"P4: {node.id} worked and is {node.state} now: {why}"
        return ""

    def judge(self, loss: Lost) -> str:
        """Why a loss of steps is not as promised, or nothing."""
        self._look()
        if loss.at - self._world.restored_at < RESTORED_S:
            return ""
        if loss.steps > self._world.nodes.checkpoint_s / 0.5 + 2:
            return "more than a checkpoint interval"
        if not loss.gone:
            return "nobody was gone"
        if all(self._was_drained(node) for node in loss.gone):
            return f"{', '.join(sorted(loss.gone))} was ended before it had left"
        if all(self._left_in_time(node) for node in loss.gone):
            return f"{', '.join(sorted(loss.gone))} had a notice in time"
        return ""

    def _look(self) -> None:
        for machine in self._world.cloud.machines.values():
            self._machines[machine.instance.node] = machine
        self._agents.update(self._world.nodes.agents)

    # -- P4 ------------------------------------------------------------------------------------------------

    def _may_take(self, before: JobView, job: JobView, node: NodeRecord) -> bool:
        """A notice, the provider's evidence, a user's command, or an exhausted suspicion."""
        record, machine = job.record, self._machines.get(node.id)
        if machine is None or not machine.alive or machine.noticed_at is not None or record.ended:
            return True
        if (
            record.cancel_requested
            or job.result is not None
            or record.pause_requested_at
            or job.nodes[node.id].drain_requested
        ):
            return True
        if node.id in job.exits or node.id not in self._world.nodes.agents:
            return True
        there = [n for n in job.nodes.values() if n.id in before.nodes and not n.doomed]
        counted = [n for n in there if n.state in COUNTED_NODE_STATES]
        if len(counted) >= record.desired_nodes + record.spare_nodes:
            return True  # more than a user wants
        return self._was_silent(machine) or (machine.missed >= 2 and self._silent_just_now(machine))

    def _bills_unseen(self, node: NodeRecord) -> bool:
        """Its machine is there, and no two listings in a row were without it, nor did its cloud deny the launch."""
        machine = self._machines.get(node.id)
        if machine is None or not machine.billed or machine.missed >= 2:
            return False
        return bool(node.instance_id) or machine.unanswered

    def _was_silent(self, machine: Machine) -> bool:
        """For as long as it takes to be given up, and until just now."""
        now, (since, until) = self._world.clock.now(), machine.silences
        return min(now, until) - since >= self._world.rules.suspect_s - SLACK_S and self._silent_just_now(machine)

    def _silent_just_now(self, machine: Machine) -> bool:
        return self._world.clock.now() - machine.silences[1] <= SLACK_S and machine.silences[0] < NEVER

    # -- P5 ------------------------------------------------------------------------------------------------

    def _check_blame(self, job: JobView) -> str:
        """A set-up's failures are counted for nodes that failed by themselves: not for those that were taken."""
        uid, count = job.record.task_id, job.record.bootstrap_failures
        before, self._blamed[uid] = self._blamed.get(uid, 0), count
        if count <= before:
            return ""
        failed = [n for n in job.nodes.values() if n.state in {N.FAILED, N.TERMINATING} and n.error]
        own = self._world.nodes.own_faults.get(job.record.name, set())
        if not failed or any(node.id in own or not self._taken_long_ago(node) for node in failed):
            return ""
        return f"P5: {[node.id for node in failed]} were taken by their cloud, and the set-up is blamed"

    def _taken_long_ago(self, node: NodeRecord) -> bool:
        machine = self._machines.get(node.id)
        if machine is None or machine.ended_at is None or machine.silent:
            return False
        return self._world.clock.now() - machine.ended_at > 60.0

    # -- P9 ------------------------------------------------------------------------------------------------

    def _was_drained(self, node: str) -> bool:
        """We ended it, although it was well, and its job went on."""
        machine, agent = self._machines.get(node), self._agents.get(node)
        if machine is None or agent is None or agent.quit or machine.noticed_at is not None:
            return False
        if machine.instance.end_cause is not EndCause.USER or machine.silences[0] < NEVER:
            return False
        owner = next((job for job in self._world.journal.read().jobs.values() if node in job.nodes), None)
        if owner is None or owner.record.ended or owner.record.cancel_requested:
            return False
        if (
            owner.record.pause_requested_at
            and self._world.clock.now() - owner.record.pause_requested_at > self._world.rules.drain_timeout_s
        ):
            return False
        drained = [p for p in owner.nodes[node].history if N.DRAINING in (p.before, p.after)]
        return not drained or drained[-1].at - drained[0].at < self._world.rules.drain_timeout_s

    def _left_in_time(self, node: str) -> bool:
        """Its notice came early enough, its agent heard it, and etcd was there to tell the others."""
        machine, agent = self._machines.get(node), self._agents.get(node)
        if machine is None or machine.noticed_at is None or machine.ends_at is None or machine.silent:
            return False
        if agent is None or not agent.noticed or machine.ends_at - machine.noticed_at < NOTICE_S:
            return False
        return (
            not self._world.store.away
            and machine.ends_at - self._world.store.back_at > NOTICE_S
            and self._world.clock.now() >= machine.ends_at
        )
