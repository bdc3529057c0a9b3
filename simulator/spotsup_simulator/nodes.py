"""Agents on the machines: their messages in etcd, their leases, and how they leave a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from spotsup_trainer.timing import SaveTimes
from spotsup_trainer.wire import DEFAULT_LEASE_TTL_S, AgentStatus, Ended, Health, Keys, Notice, Result, encode

from bootstrap.errors import BootstrapError
from spotsup_simulator.auth import grants_of
from spotsup_simulator.clock import NEVER, VirtualClock
from spotsup_simulator.cloud import IDENTITY, SimCloud
from spotsup_simulator.etcd import CLUSTER, ELECTION_S, SimEtcd
from spotsup_simulator.etcd_clients import NodeClient
from spotsup_simulator.faults import FaultRates, FaultRng
from spotsup_simulator.machine import Machine
from spotsup_simulator.training import LONG_AGO_S, REACTION_S, Training
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import AskDone, BootstrapDone, CleanDone

LEASE_S = DEFAULT_LEASE_TTL_S
# xid: its worker exits with an error, again and again. hang: it is gone, and its worker only hangs. ecc: it has memory
# errors, and still trains.
BrokenGpu: TypeAlias = Literal["xid", "hang", "ecc"]
_COMPLAINTS = {
    "xid": "Xid 48, uncorrectable memory error",
    "hang": "Xid 79, fell off the bus",
    "ecc": "GPU 0: 2 uncorrected memory errors",
}


@dataclass
class Agent:
    """One node's agent."""

    node: str
    job: str
    machine: Machine
    starts_at: float
    # Since when its machine has been dead or silent; NEVER once its lease has ended, which it does at `lease_ends_at`.
    lost_at: float | None = None
    lease_ends_at: float = NEVER
    # Somebody else renews it until then.
    stolen_until: float = 0.0
    # Whether etcd was out of its reach when it was looked at last.
    was_apart: bool = False
    # Somebody has revoked its leases, and its launcher's: they find that out then.
    finds_out_at: float = 0.0
    # When it reads its machine's preemption notice, and whether it has published it.
    notice_at: float | None = None
    noticed: bool = False
    # When it has sent the end of its log, after its program's end.
    ends_at: float | None = None
    # It leaves the round, and has exited.
    leaving: bool = False
    exited: bool = False
    # A fault ended it at once, whatever it had been about to do.
    struck: bool = False
    # What it says about its GPUs; None while it has said nothing.
    health: Health | None = None
    # How one of its GPUs is broken.
    broken_gpu: BrokenGpu | Literal[""] = ""


class SimNodes:
    """The agents of all jobs, and each job's training. Prepares nodes as nodes.prepare does over SSH."""

    def __init__(self, clock: VirtualClock, rng: FaultRng, etcd: SimEtcd, cloud: SimCloud) -> None:
        self.keys = Keys(CLUSTER)
        self.fault_rates = FaultRates()
        self.agents: dict[str, Agent] = {}
        self.trainings: dict[str, Training] = {}
        # By job: nodes whose preparation or launcher failed by an injected fault of their own (P5).
        self.failed_preparations: dict[str, set[str]] = {}
        self.progress_every_s = 5.0
        self.checkpoint_s = NEVER
        # How long before its machine ends an agent leaves the round by itself.
        self.leave_margin_s = 3.0
        self.reaction_s = REACTION_S
        # How long a checkpoint takes, and how long the workers of a round need to start.
        self.saving_s = self.start_s = 0.0
        # By job: how its nodes write to etcd.
        self._clients: dict[str, NodeClient] = {}
        # The users of etcd as of this version were looked at.
        self._auth_seen = -1
        self._expiring: dict[str, float] = {}
        self._was_down = False
        self._clock = clock
        self._rng = rng
        self._etcd = etcd
        self._cloud = cloud

    # -- called by daemons and by faults -------------------------------------------------------------------

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        """Prepare a node. The machine that answers at the node's address must have the node's host key."""
        machine = next((m for m in self._cloud.machines.values() if m.alive and _answers(m, node.ssh_host)), None)
        if machine is None:
            return BootstrapDone(node.id, "the connection broke", unreachable=True)
        if machine.instance.node != node.machine_name:
            return BootstrapDone(node.id, "another machine answers: its host key differs", foreign=True)
        if self._rng.inject("failed bootstrap", self.fault_rates.bootstrap):
            self.failed_preparations.setdefault(job.name, set()).add(node.id)
            return BootstrapDone(node.id, "step environment failed")
        if node.launched_as:
            machine.taken_by = node.id
        starts_at = self._clock.now() + self._rng.uniform(0.5, 2.0)
        self.agents.setdefault(node.id, Agent(node.id, job.name, machine, starts_at))
        self._clients.setdefault(job.name, NodeClient(self._etcd, job.name))
        self._auth_seen = -1
        if job.name not in self.trainings or self.trainings[job.name].task_id != job.task_id:
            training = Training(self._etcd, self.keys, job, self.progress_every_s, self.checkpoint_s, self.reaction_s)
            training.steps.saving_s, training.start_s = self.saving_s, self.start_s
            self.trainings[job.name] = training
        return BootstrapDone(node.id)

    def clean(self, node: NodeRecord, _: JobRecord) -> CleanDone:
        """Clean a machine: what the job left is gone: its agent, and all that descends from it."""
        machine = next((m for m in self._cloud.machines.values() if m.alive and _answers(m, node.ssh_host)), None)
        if machine is None or machine.ssh == "refuses" or machine.instance.node != node.machine_name:
            return CleanDone(node.id, "the connection broke", unreachable=True)
        if self._rng.inject("failed cleaning", self.fault_rates.bootstrap):
            return CleanDone(node.id, "a process does not end")
        agent = self.agents.pop(node.id, None)
        if agent is not None:
            self.trainings[agent.job].stop(node.id)
            for key in (self.keys.agent(agent.job, node.id), self.keys.member(agent.job, node.id)):
                self._expiring.setdefault(key, self._clock.now() + LEASE_S)
        return CleanDone(node.id)

    def cannot_reach(self, node: NodeRecord) -> BootstrapError | None:
        """Return what its step `reach` says, where its machine answers, and has no way to etcd."""
        machine = next((m for m in self._cloud.machines.values() if m.alive and _answers(m, node.ssh_host)), None)
        if machine is None or machine.instance.node != node.machine_name or machine.carried:
            return None
        return BootstrapError("etcd refuses connections", node=node.id, step="reach")

    def ask(self, node: NodeRecord) -> AskDone:
        """Return what its machine answers over SSH about its agent, and when something was last written there."""
        agent, now = self.agents.get(node.id), self._clock.now()
        machine = next((m for m in self._cloud.machines.values() if m.alive and _answers(m, node.ssh_host)), None)
        if machine is None or machine.ssh == "refuses" or machine.instance.node != node.machine_name:
            return AskDone(node.id, now, "connection refused")
        if machine.ssh == "hangs":
            return AskDone(node.id, now, "no answer within 20 s")
        if agent is None or agent.exited:
            return AskDone(node.id, now, agent_runs=False, written_s_ago=LONG_AGO_S)
        written_s_ago = self.trainings[agent.job].written_s_ago(node.id, now) if machine.ssh == "well" else LONG_AGO_S
        return AskDone(node.id, now, agent_runs=True, written_s_ago=written_s_ago)

    def exit(self, node: str, outcome: Literal["left", "failure"]) -> None:
        """Stop the agent, or let its launcher fail."""
        agent = self.agents.get(node)
        away = self._etcd.down or self._etcd.full
        if agent is None or agent.machine.silent or away or self._clock.now() < agent.starts_at:
            return
        if agent.machine.apart:
            return
        agent.exited = agent.struck = True
        self.failed_preparations.setdefault(agent.job, set()).add(node)
        reason = "asked to leave" if outcome == "left" else "the launcher broke"
        message = Ended(node, outcome, 0 if outcome == "left" else 1, reason, self._clock.now())
        client = self._clients[agent.job]
        client.put(self.keys.ended(agent.job, node), encode(message))
        client.delete(self.keys.member(agent.job, node))

    def break_gpu(self, node: str, kind: BrokenGpu) -> bool:
        """Break a GPU of a node. False if nothing trains there that could notice."""
        agent = self.agents.get(node)
        training = self.trainings.get(agent.job) if agent else None
        if agent is None or training is None or agent.broken_gpu or (kind != "ecc" and not training.has_workers(node)):
            return False
        agent.broken_gpu = kind
        if kind == "hang":
            training.hanging.add(node)
        return True

    def report_gpus(self, node: str, *, healthy: bool, reason: str, fatal: bool = False) -> None:
        """Let the agent publish what it thinks of its GPUs, soon; right or wrong."""
        agent = self.agents.get(node)
        if agent is not None:
            agent.health = Health(node, healthy, self._clock.now(), reason, 79 if fatal else 0, fatal)

    def revoke_leases(self, node: str) -> None:
        """Somebody ends them, as every program of the job may: agent and launcher are granted others once they find
        out, which they do when they renew them."""
        agent = self.agents.get(node)
        if agent is not None and not (self._etcd.down or agent.exited) and self._clock.now() >= agent.starts_at:
            agent.finds_out_at = self._clock.now() + self._rng.uniform(0.0, LEASE_S / 3)
            self._etcd.delete(self.keys.agent(agent.job, node))
            self._etcd.delete(self.keys.member(agent.job, node))

    def renew_leases(self, node: str, seconds: float) -> None:
        """Somebody renews them for so long, whatever becomes of their holders."""
        agent = self.agents.get(node)
        if agent is not None:
            agent.stolen_until = self._clock.now() + seconds

    def extend_leases(self) -> None:
        """Another of etcd's members leads, or etcd was away: all leases begin anew."""
        for agent in self.agents.values():
            if agent.lost_at is not None and agent.lost_at != NEVER:
                agent.lease_ends_at = self._clock.now() + ELECTION_S + LEASE_S + self._etcd.lateness_s()

    def etcd_rolled_back(self) -> None:
        """Keys of members that are gone exist again until their leases end; programs that had ended go on."""
        for job in self._etcd.run_keys:
            leased = (self.keys.agent(job, ""), self.keys.member(job, ""))
            for key in self._etcd.run_keys[job]:
                if key.startswith(leased):
                    self._expiring[key] = self._clock.now() + LEASE_S
        for agent in self.agents.values():
            agent.noticed = False
            if agent.lost_at == NEVER:
                agent.lost_at = None
        for training in self.trainings.values():
            training.etcd_rolled_back()

    # -- time ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Handle what is due now. While etcd is down no message arrives and no lease ends."""
        now = self._clock.now()
        if self._etcd.down:
            self._was_down = True
            return
        if self._was_down:
            self._was_down = False
            self.extend_leases()
        if self._auth_seen != self._etcd.auth.version:
            self._auth_seen = self._etcd.auth.version
            self._log_in()
        self._expire(now)
        for agent in list(self.agents.values()):
            if now >= agent.starts_at:
                self._step(agent, now)
        if not self._etcd.full:
            for training in self.trainings.values():
                training.step(now)

    def next_at(self) -> float:
        """Return when `step` has something to do."""
        if self._etcd.down:
            return NEVER
        if self._auth_seen != self._etcd.auth.version:
            return self._clock.now()
        now, due = self._clock.now(), min(self._expiring.values(), default=NEVER)
        for agent in self.agents.values():
            if now >= agent.starts_at and agent.was_apart != agent.machine.apart and agent.machine.alive:
                return now
            if now < agent.starts_at:
                due = min(due, agent.starts_at)
            elif agent.lost_at is not None:
                acts = agent.machine.apart and agent.machine.alive and not agent.machine.silent
                leaves = self._notice_times(agent)[1] if acts else NEVER
                ends = max(agent.lease_ends_at, agent.stolen_until) if agent.lost_at < NEVER else NEVER
                due = min(due, ends, leaves)
            elif now < agent.finds_out_at:
                due = min(due, agent.finds_out_at)
            elif self._etcd.full:
                continue
            elif agent.ends_at is not None and not agent.exited:
                due = min(due, agent.ends_at)
            elif _announced(agent) is not None and not agent.exited:
                due = min(due, *self._notice_times(agent))
        trainings = () if self._etcd.full else self.trainings.values()
        return max(now, min([due, *(training.next_at() for training in trainings)]))

    def _log_in(self) -> None:
        """Accept, or refuse, each agent's login, from now on."""
        may: dict[str, bool] = {}
        for agent in self.agents.values():
            name = f"spotsup/{CLUSTER}/{agent.node.rpartition('-')[0]}"
            if name not in may:
                password = IDENTITY.etcd_password(name)
                may[name] = self._etcd.auth.may_use(name, password, grants_of(self.keys, agent.job))
            agent.machine.barred = not may[name]

    def _expire(self, now: float) -> None:
        for key in [key for key, at in self._expiring.items() if at <= now]:
            del self._expiring[key]
            agent = self.agents.get(key.rpartition("/")[2])
            cut = agent is not None and (agent.machine.silent or agent.machine.apart)
            if agent is None or agent.exited or cut or not agent.machine.alive:
                self._etcd.delete(key)

    def _notice_times(self, agent: Agent) -> tuple[float, float]:
        """Return when it publishes its notice, and when it leaves by itself."""
        publishes = agent.notice_at if agent.notice_at is not None and not agent.noticed else NEVER
        deadline = _announced(agent)
        leaves = NEVER if agent.leaving or deadline is None else deadline - self._window_s(agent)
        return publishes, leaves

    def _window_s(self, agent: Agent) -> float:
        """Return how long before its machine ends it leaves by itself: its workers tell it what their checkpoints
        take."""
        training = self.trainings[agent.job]
        return SaveTimes(training.steps.saving_s, training.steps.step_s).window_s(self.leave_margin_s)

    def _step(self, agent: Agent, now: float) -> None:
        machine, training = agent.machine, self.trainings[agent.job]
        agent.was_apart = machine.apart
        if not machine.alive or machine.silent:
            training.stop(agent.node)
            self._lose(agent, now)
            return
        if machine.apart:
            training.cut_off(agent.node)
            self._lose(agent, now)
            if (deadline := _announced(agent)) is not None:
                self._leave_in_time(agent, deadline, now)
            return
        agent.lost_at = None
        if self._etcd.full:
            return  # what it has to write waits; its leases are renewed, and its workers train
        key = self.keys.agent(agent.job, agent.node)
        if agent.exited:
            self._etcd.delete(key)
            training.stop(agent.node)
            return
        finds_out = now >= agent.finds_out_at
        if finds_out and key not in self._etcd.keys:
            self._clients[agent.job].put(key, encode(AgentStatus(agent.node, "boot", 1, 0.0, "sim")))
        self._watch_gpus(agent, training, now)
        if (deadline := _announced(agent)) is not None:
            self._handle_notice(agent, deadline, now)
        if training.result is not None:
            self._end_with_program(agent, training.result, now)
        elif not agent.leaving:
            if finds_out:
                training.run(agent.node)
        elif training.has_left(agent.node):
            self._publish_end(agent, Ended(agent.node, "left", 0, "its machine will be taken", now))

    def _watch_gpus(self, agent: Agent, training: Training, now: float) -> None:
        """Let a worker on a dead GPU exit, and the agent says why before its launcher does."""
        if agent.broken_gpu and (agent.health is None or agent.health.healthy):
            fatal = agent.broken_gpu == "hang"
            self.report_gpus(agent.node, healthy=False, reason=_COMPLAINTS[agent.broken_gpu], fatal=fatal)
        if agent.broken_gpu == "xid":
            training.fail(agent.node, now, unhealthy=_COMPLAINTS["xid"])
        key = self.keys.health(agent.job, agent.node)
        known = self._etcd.keys.get(key)
        if agent.health is not None and (known is None or known.value != encode(agent.health)):
            self._clients[agent.job].put(key, encode(agent.health))

    def _end_with_program(self, agent: Agent, result: Result, now: float) -> None:
        """End the launcher as its job does; the agent sends the end of the log, and says so."""
        if agent.ends_at is None:
            agent.ends_at = now + self._rng.uniform(0.1, 1.5)
        if now >= agent.ends_at:
            code = 0 if result.outcome == "success" else 1
            self._publish_end(agent, Ended(agent.node, result.outcome, code, result.message, now))

    def _publish_end(self, agent: Agent, message: Ended) -> None:
        agent.exited = True
        client = self._clients[agent.job]
        client.put(self.keys.ended(agent.job, agent.node), encode(message))
        client.delete(self.keys.member(agent.job, agent.node))

    def _handle_notice(self, agent: Agent, deadline: float, now: float) -> None:
        """Let the agent read the notice from the metadata service; its clock may be wrong."""
        if agent.notice_at is None:
            late = self.fault_rates.slow_call > 0
            agent.notice_at = now + (self._rng.uniform(0.0, 2.0) if late else 0.0)
        if not agent.noticed and now >= agent.notice_at:
            agent.noticed = True
            skew_s = self._rng.uniform(-self.fault_rates.skew_s, self.fault_rates.skew_s)
            message = Notice(agent.node, deadline + skew_s, now + skew_s, "metadata")
            self._clients[agent.job].put(self.keys.notice(agent.job, agent.node), encode(message))
        self._leave_in_time(agent, deadline, now)

    def _leave_in_time(self, agent: Agent, deadline: float, now: float) -> None:
        if not agent.leaving and now >= deadline - self._window_s(agent):
            agent.leaving = True
            self.trainings[agent.job].leave(agent.node)

    def _lose(self, agent: Agent, now: float) -> None:
        if agent.lost_at is None:
            agent.lost_at = now
            # It was renewed within the last third of its length.
            agent.lease_ends_at = now + LEASE_S * self._rng.uniform(2 / 3, 1.0) + self._etcd.lateness_s()
        if now < max(agent.lease_ends_at, agent.stolen_until):
            return
        self._etcd.delete(self.keys.agent(agent.job, agent.node))
        self._etcd.delete(self.keys.member(agent.job, agent.node))
        agent.lost_at = NEVER
        if not agent.machine.alive:
            del self.agents[agent.node]


def _announced(agent: Agent) -> float | None:
    """Return when its machine ends, as its metadata service says, or has said."""
    return None if agent.machine.metadata_away and not agent.noticed else agent.machine.instance.preempt_at


def _answers(machine: Machine, address: str) -> bool:
    return not machine.silent and machine.instance.ssh_host == address
