"""Agents and launchers on the machines: words in etcd, and rounds by the trainer's own rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spotsup_trainer.wire import AgentStatus, Ended, Keys, Notice, encode

from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import BootstrapDone
from tests.sim.chance import Dice, Faults
from tests.sim.cloud import NEVER, Machine, SimCloud
from tests.sim.store import CLUSTER, SimClock, SimStore
from tests.sim.training import REACTION_S, Training

LEASE_S = 5.0


@dataclass
class Agent:
    """One node's agent. `notice_at`: when it will have heard of the notice; `quit`: its launcher has ended."""

    node: str
    job: str
    machine: Machine
    starts_at: float
    lost_at: float | None = None
    notice_at: float | None = None
    noticed: bool = False
    left: bool = False
    quit: bool = False


class SimNodes:
    """All agents. `own_faults`: by job, nodes whose preparation went wrong by their own fault (P5). `leave_s`: how long
    before its machine is taken an agent leaves the round by itself."""

    def __init__(self, clock: SimClock, dice: Dice, store: SimStore, cloud: SimCloud) -> None:
        self.keys = Keys(CLUSTER)
        self.faults = Faults()
        self.agents: dict[str, Agent] = {}
        self.trainings: dict[str, Training] = {}
        self.own_faults: dict[str, set[str]] = {}
        self.pulse_s = 0.5
        self.checkpoint_s = NEVER
        self.leave_s = 3.0
        self.reaction_s = REACTION_S
        self._expiring: dict[str, float] = {}
        self._clock = clock
        self._dice = dice
        self._store = store
        self._cloud = cloud

    # -- what daemons and chaos do -------------------------------------------------------------------------

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        """Over SSH: whoever answers at the address must have the node's host key."""
        machine = next((m for m in self._cloud.machines.values() if m.alive and _answers(m, node.ssh_host)), None)
        if machine is None:
            return BootstrapDone(node.id, "the connection broke", unreachable=True)
        if machine.instance.node != node.id:
            return BootstrapDone(node.id, "another machine answers: its host key differs", foreign=True)
        if self._dice.hits("failed bootstrap", self.faults.bootstrap):
            self.own_faults.setdefault(job.name, set()).add(node.id)
            return BootstrapDone(node.id, "step environment failed")
        starts_at = self._clock.now() + self._dice.between(0.5, 2.0)
        self.agents.setdefault(node.id, Agent(node.id, job.name, machine, starts_at))
        if job.name not in self.trainings or self.trainings[job.name].task_id != job.task_id:
            training = Training(self._store, self.keys, job, self.pulse_s, self.checkpoint_s, self.reaction_s)
            self.trainings[job.name] = training
        return BootstrapDone(node.id)

    def quit(self, node: str, outcome: Literal["left", "failure"]) -> None:
        """Somebody stops the agent, or its launcher breaks down."""
        agent = self.agents.get(node)
        if agent is None or agent.machine.silent or self._store.away or self._clock.now() < agent.starts_at:
            return
        agent.quit = True
        self.own_faults.setdefault(agent.job, set()).add(node)
        said = "told to leave" if outcome == "left" else "the launcher broke"
        word = Ended(node, outcome, 0 if outcome == "left" else 1, said, self._clock.now())
        self._store.put(self.keys.ended(agent.job, node), encode(word))
        self._store.delete(self.keys.member(agent.job, node))

    def restored(self) -> None:
        """etcd is as it was: leases of those that are gone are there again, and end; programs that had ended go on."""
        for job in self._store.runs:
            rooms = (self.keys.agent(job, ""), self.keys.member(job, ""))
            for key in self._store.runs[job]:
                if key.startswith(rooms):
                    self._expiring[key] = self._clock.now() + LEASE_S
        for agent in self.agents.values():
            agent.noticed = False
            if agent.lost_at == NEVER:
                agent.lost_at = None
        for training in self.trainings.values():
            training.restored()

    def _expire(self, now: float) -> None:
        for key in [key for key, at in self._expiring.items() if at <= now]:
            del self._expiring[key]
            agent = self.agents.get(key.rpartition("/")[2])
            if agent is None or agent.quit or agent.machine.silent or not agent.machine.alive:
                self._store.delete(key)

    def step(self) -> None:
        """What is due now. While etcd is away nobody hears anything, and no lease ends."""
        now = self._clock.now()
        if self._store.away:
            for agent in self.agents.values():
                if agent.lost_at is not None:
                    agent.lost_at = now
            return
        self._expire(now)
        for agent in list(self.agents.values()):
            if now >= agent.starts_at:
                self._step(agent, now)
        for training in self.trainings.values():
            training.step(now)

    def next_at(self) -> float:
        """When the next thing is due."""
        if self._store.away:
            return NEVER
        now, due = self._clock.now(), min(self._expiring.values(), default=NEVER)
        for agent in self.agents.values():
            if now < agent.starts_at:
                due = min(due, agent.starts_at)
            elif agent.lost_at is not None:
                due = min(due, agent.lost_at + LEASE_S)
            elif agent.machine.instance.preempt_at is not None and not agent.quit:
                due = min(due, *self._notices(agent))
        return max(now, min([due, *(training.next_at() for training in self.trainings.values())]))

    def _notices(self, agent: Agent) -> tuple[float, float]:
        heard = agent.notice_at if agent.notice_at is not None and not agent.noticed else NEVER
        deadline = agent.machine.instance.preempt_at
        leaves = NEVER if agent.left or deadline is None else deadline - self.leave_s
        return heard, leaves

    def _step(self, agent: Agent, now: float) -> None:
        machine, training = agent.machine, self.trainings[agent.job]
        if not machine.alive or machine.silent:
            training.stop(agent.node)
            self._lose(agent, now)
            return
        agent.lost_at = None
        key = self.keys.agent(agent.job, agent.node)
        if agent.quit:  # it has said its last word, and is no more
            self._store.delete(key)
            training.stop(agent.node)
            return
        if key not in self._store.keys:
            self._store.put(key, encode(AgentStatus(agent.node, "boot", 1, 0.0, "sim")))
        if machine.instance.preempt_at is not None:
            self._hear(agent, machine.instance.preempt_at, now)
        if not agent.left:
            training.run(agent.node)
        elif training.has_left(agent.node):
            agent.quit = True
            word = Ended(agent.node, "left", 0, "its machine will be taken", now)
            self._store.put(self.keys.ended(agent.job, agent.node), encode(word))
            self._store.delete(self.keys.member(agent.job, agent.node))

    def _hear(self, agent: Agent, deadline: float, now: float) -> None:
        """The metadata service tells the agent of the notice; clocks may be wrong."""
        if agent.notice_at is None:
            late = self.faults.slow_call > 0
            agent.notice_at = now + (self._dice.between(0.0, 2.0) if late else 0.0)
        if not agent.noticed and now >= agent.notice_at:
            agent.noticed = True
            skew_s = self._dice.between(-self.faults.skew_s, self.faults.skew_s)
            word = Notice(agent.node, deadline + skew_s, now + skew_s, "metadata")
            self._store.put(self.keys.notice(agent.job, agent.node), encode(word))
        if not agent.left and now >= deadline - self.leave_s:
            agent.left = True
            self.trainings[agent.job].leave(agent.node)

    def _lose(self, agent: Agent, now: float) -> None:
        if agent.lost_at is None:
            agent.lost_at = now
        if now - agent.lost_at < LEASE_S:
            return
        self._store.delete(self.keys.agent(agent.job, agent.node))
        self._store.delete(self.keys.member(agent.job, agent.node))
        agent.lost_at = NEVER  # nothing more to come
        if not agent.machine.alive:
            del self.agents[agent.node]


def _answers(machine: Machine, address: str) -> bool:
    return not machine.silent and machine.instance.ssh_host == address
