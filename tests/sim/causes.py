"""Judges why a node was taken from its job, why steps were lost, and what was blamed (P4, P5, P9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spotsup_simulator.clock import NEVER
from spotsup_simulator.machine import Machine
from spotsup_simulator.nodes import Agent
from spotsup_simulator.steps import STEP_TIME_S, Loss
from spotsup_simulator.world import World

from provisioners.base import EndCause, Instance
from supervisor.model import COUNTED_NODE_STATES, NodeRecord, NodeState
from supervisor.planner.predicates import done_nodes
from supervisor.planner.world import JobView

N = NodeState
_WORKING = (N.READY, N.MEMBER, N.SUSPECT)
_TAKEN = (N.LOST, N.FAILED, N.TERMINATING, N.DRAINING, N.GONE)
# A daemon's knowledge may be so old: listings and mirrors lag, and calls take time.
SLACK_S = 5.0
# A notice so long before the end lets an agent leave in order, with a checkpoint.
NOTICE_S = 12.0
# For so long after etcd was rolled back, P3, P5, P8 and P9 are not checked.
SETTLE_S = 900.0
# Within so long, a daemon has seen the messages of a machine that is no longer silent.
SEEN_S = 5.0
# For so long a machine is silent before each daemon knows; machines that fall silent within so long do so together.
KNOWN_SILENT_S = 20.0
TOGETHER_S = 40.0
# A daemon counts from the launch of a machine, by its own clock.
FEW_SLACK_S = 20.0
# So long before an end that was known from the beginning a machine is replaced, at the earliest: decision 87.
LEFT_BEFORE_S = 900.0
# A machine that has proved for so long that its steps advance has been asked.
PROVEN_S = 90.0


class Causes:
    """Remembers machines and agents after the cloud has forgotten them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._machines: dict[str, Machine] = {}
        self._agents: dict[str, Agent] = {}
        self._blamed: dict[str, int] = {}
        # By instance id: since when and until when it was silent, the last time; how many listings in a row lacked it.
        self._silences: dict[str, tuple[float, float]] = {}
        self._missed: Counter[str] = Counter()
        # By instance id: since when it is silent without a gap, and since when it would prove over SSH that it trains.
        self._mute_since: dict[str, float] = {}
        self._proves_since: dict[str, float] = {}
        # By instance id: when it was last silent, where all stands still in this world, or cut off from etcd, by which
        # its notice goes to its launcher.
        self._silent_at: dict[str, float] = {}
        self._listed_at = -NEVER
        # Nodes whose records etcd has lost, and when it last lost any.
        self.exempt: set[str] = set()
        self.rolled_back_at = -NEVER
        # Nodes whose GPUs were called unhealthy at once, although they are not; and those of them that were taken.
        self.doubts: list[tuple[float, frozenset[str]]] = []
        self._taken_in_doubt: dict[str, str] = {}  # and its owner
        # By job's task id: since when fewer of its machines than it needs to train are there.
        self._few_since: dict[str, float] = {}
        world.hooks.step.append(self._note_silences)
        world.hooks.listing.append(self._note_listing)

    def check(self, before: JobView | None, job: JobView) -> str:
        """What is wrong with how a job's records changed, or nothing."""
        self._remember()
        self._note_few(job)
        wrong = self._check_blame(job) if self._world.clock.now() - self.rolled_back_at > SETTLE_S else ""
        if wrong or before is None or before.record.uid != job.record.uid:
            return wrong
        for node in job.nodes.values():
            old = before.nodes.get(node.id)
            if old is None:
                continue
            why = node.history[-1].reason if node.history else "no reason given"
            if node.id in self.exempt:
                continue
            if node.left_behind and not old.left_behind and not self._may_leave_behind(job):
                return f"P4: {node.id} is left behind for too few others: {node.left_behind}"
            handed_over = old.state is N.WARM and why.endswith(" took its machine over")
            if old.state is not N.GONE and node.state is N.GONE and self._is_still_billed(old) and not handed_over:
                return f"P1: {node.id} is forgotten while its machine is billed: {why}"
            # One that is left behind, which was judged then, leaves in order; one ahead of a move never trained.
            in_order = any(each.after == N.DRAINING for each in node.history)
            moves = (node.left_behind and in_order) or (old.ahead and not old.has_joined)
            # Nothing works any more on one that is done, and the others go on without it.
            done = node.id in done_nodes(before, before.nodes) | done_nodes(job, job.nodes)
            may_go = moves or done or self._may_take(before, job, old)
            if old.state in _WORKING and node.state in _TAKEN and not may_go:
                return f"P4: {node.id} worked and is now {node.state}: {why}"
        return ""

    def judge(self, loss: Loss) -> str:
        """Why a loss of steps is not as promised, or nothing."""
        self._remember()
        if loss.at - self.rolled_back_at < SETTLE_S:
            return ""
        if loss.steps > self._world.nodes.checkpoint_s / STEP_TIME_S + 2:
            return "more than a checkpoint interval"
        if loss.hung:
            return ""
        if not loss.gone:
            return "no member was gone"
        if all(self._was_drained(node) for node in loss.gone):
            return f"{', '.join(sorted(loss.gone))} was ended before it left the round"
        if all(self._left_in_time(node, loss.saving_s) for node in loss.gone):
            return f"{', '.join(sorted(loss.gone))} had a notice in time"
        return ""

    def _remember(self) -> None:
        for machine in self._world.cloud.machines.values():
            self._machines[machine.node] = machine
        self._agents.update(self._world.nodes.agents)

    # -- P4 ------------------------------------------------------------------------------------------------

    def _may_take(self, before: JobView, job: JobView, node: NodeRecord) -> bool:
        """A notice, the provider's evidence, a user's command, an exhausted suspicion, or too few to train for long."""
        record, machine = job.record, self._machines.get(node.id)
        now = self._world.clock.now()
        few_s = now - self._few_since.get(record.task_id, NEVER)
        if few_s >= self._world.rules.gang.timeout_s - FEW_SLACK_S:
            return True
        if machine is None or not machine.alive or machine.noticed_at is not None or now >= _left_before(machine):
            return True
        ended = record.ended or record.cancel_requested or job.result is not None
        if ended or record.pause.at or job.nodes[node.id].drain_requested:
            return True
        if node.id in job.exits or node.id not in self._world.nodes.agents:
            return True
        if self._agents[node.id].exited:
            return True  # it said so, in a message that something has overwritten
        if job.nodes[node.id].unhealthy_at:
            doubted = any(node.id in each for _, each in self.doubts)
            return bool(self._agents[node.id].broken_gpu) or (
                doubted and self._may_take_in_doubt(node.id, record.owner)
            )
        there = [n for n in job.nodes.values() if n.id in before.nodes and not n.doomed]
        counted = [n for n in there if n.state in COUNTED_NODE_STATES]
        if len(counted) >= record.desired_nodes + record.spare_nodes:
            return True  # there are more nodes than the user wants
        if self._missed[machine.instance.id] >= 2 and self._silent_just_now(machine):
            return True
        if self._listed_at <= self._mute_since.get(machine.instance.id, -NEVER):
            return False
        return (
            self._was_silent(machine) and not self._is_one_of_many(before, machine) and not self._proves_life(machine)
        )

    def _may_leave_behind(self, job: JobView) -> bool:
        """Others that wait at the rendezvous, or train, are as many as those that are left, and enough to train."""
        left = [n for n in job.nodes.values() if n.left_behind and n.state in _WORKING]
        if not left:
            return True
        ready = [n for n in job.nodes.values() if n.state in {N.READY, N.MEMBER} and not n.doomed]
        return len(ready) >= max(len(left), job.record.min_nodes) and job.record.spec.checkpoints != "none"

    def _note_few(self, job: JobView) -> None:
        """Since when fewer machines than the job needs are there and stay."""
        present = [n for n in job.nodes.values() if n.state in COUNTED_NODE_STATES and n.instance_id]
        present = [n for n in present if not (n.doomed or n.ahead)]
        if len(present) >= job.record.min_nodes:
            self._few_since.pop(job.record.task_id, None)
        else:
            self._few_since.setdefault(job.record.task_id, self._world.clock.now())

    def _is_one_of_many(self, before: JobView, machine: Machine) -> bool:
        """Whether so many fell silent with it that it is the network's silence. Those that a daemon may not have seen
        to be silent yet, or may have seen at another time, do not count. `before`: its job, before any was taken."""
        now, since = self._world.clock.now(), self._mute_since.get(machine.instance.id)
        if since is None:
            return False
        jobs = self._world.journal.read().jobs
        others = [job for name, job in jobs.items() if name != before.record.name and not job.record.ended]
        for of in ([before], [before, *others]):
            working = [node.id for job in of for node in job.nodes.values() if node.state in _WORKING]
            machines = [self._machines[node].instance.id for node in working if node in self._machines]
            mute = [self._mute_since.get(each, NEVER) for each in machines]
            count = sum(now - at >= KNOWN_SILENT_S and abs(at - since) <= TOGETHER_S for at in mute)
            if count > 1 and count > self._world.rules.silence.share * len(working):
                return True
        return False

    def _proves_life(self, machine: Machine) -> bool:
        """Whether every answer over SSH was that its steps advance, or those of the last time."""
        since = self._proves_since.get(machine.instance.id, NEVER)
        silent_since = self._mute_since.get(machine.instance.id, -NEVER)
        return since <= silent_since + 1.0 or self._world.clock.now() - since >= PROVEN_S

    def _may_take_in_doubt(self, node: str, owner: str) -> bool:
        """A wrong report is believed of one node of an owner in a while, and of a tenth: not of a fleet. A daemon whose
        clock is off may take the while for over."""
        at, doubted = next(each for each in reversed(self.doubts) if node in each[1])
        self._taken_in_doubt[node] = owner
        periods = int((self._world.clock.now() - at) / self._world.rules.unhealthy.hold_s)
        periods += self._world.rng.injected["clock step"] > 0
        taken = [each for each, of in self._taken_in_doubt.items() if each in doubted and of == owner]
        return len(taken) <= 1 + periods + len(doubted) // 10

    def _is_still_billed(self, node: NodeRecord) -> bool:
        """Its machine exists, no two listings in a row lacked it, and the cloud did not deny its launch."""
        machine = self._machines.get(node.id)
        if machine is None or not machine.billed or self._missed[machine.instance.id] >= 2:
            return False
        return bool(node.instance_id) or machine.reply_lost

    def _was_silent(self, machine: Machine) -> bool:
        """For as long as a suspicion takes to run out, and until just now."""
        now, (since, until) = self._world.clock.now(), self._silence_of(machine)
        return min(now, until) - since >= self._world.rules.silence.suspect_s - SLACK_S and self._silent_just_now(
            machine
        )

    def _silent_just_now(self, machine: Machine) -> bool:
        since, until = self._silence_of(machine)
        return self._world.clock.now() - until <= SLACK_S and since < NEVER

    def _silence_of(self, machine: Machine) -> tuple[float, float]:
        return self._silences.get(machine.instance.id, (NEVER, NEVER))

    def _note_silences(self) -> None:
        """A gap between two silences that is too short for a daemon to see is none."""
        now = self._world.clock.now()
        for machine in self._world.cloud.machines.values():
            since, until = self._silence_of(machine)
            if machine.ended_at is not None:
                continue
            self._note_mute(machine, now)
            if machine.silent or machine.apart:
                self._silent_at[machine.instance.id] = now
            if machine.silent or machine.apart:
                goes_on = since != NEVER and (until == NEVER or now - until < SEEN_S)
                self._silences[machine.instance.id] = (since if goes_on else now), NEVER
            elif since != NEVER and until == NEVER:
                self._silences[machine.instance.id] = since, now

    def _note_mute(self, machine: Machine, now: float) -> None:
        key, node = machine.instance.id, machine.node
        agent = self._world.nodes.agents.get(node)
        if not (machine.silent or machine.apart) or (agent is not None and agent.stolen_until > now):
            self._mute_since.pop(key, None)  # or whoever renews its lease speaks for it
        elif machine.alive:
            self._mute_since.setdefault(key, now)
        else:
            self._mute_since.pop(key, None)
        trains = agent is not None and self._world.nodes.trainings[agent.job].trains(node)
        if trains and machine.apart and machine.ssh == "well" and not machine.silent:
            self._proves_since.setdefault(key, now)
        else:
            self._proves_since.pop(key, None)

    def _note_listing(self, listed: Sequence[Instance]) -> None:
        self._listed_at = self._world.clock.now()
        ids = {instance.id for instance in listed}
        for machine in self._world.cloud.machines.values():
            number = machine.instance.id
            self._missed[number] = 0 if number in ids else self._missed[number] + 1

    # -- P5 ------------------------------------------------------------------------------------------------

    def _check_blame(self, job: JobView) -> str:
        """Bootstrap failures count for nodes that failed by themselves, not for those that the cloud took."""
        uid, count = job.record.task_id, job.record.bootstraps.failures
        before, self._blamed[uid] = self._blamed.get(uid, 0), count
        if count <= before:
            return ""
        failed = [n for n in job.nodes.values() if n.state in {N.FAILED, N.TERMINATING} and n.error]
        own = self._world.nodes.failed_preparations.get(job.record.name, set())
        if not failed or any(node.id in own or not self._taken_long_ago(node) for node in failed):
            return ""
        return f"P5: {[node.id for node in failed]} were taken by their cloud, and their bootstrap is blamed"

    def _taken_long_ago(self, node: NodeRecord) -> bool:
        machine = self._machines.get(node.id)
        if machine is None or machine.ended_at is None or machine.silent:
            return False
        # Its cloud has said so since: all calls to it may have hung for a minute.
        return min(self._world.clock.now(), self._listed_at) - machine.ended_at > 60.0

    # -- P9 ------------------------------------------------------------------------------------------------

    def _was_drained(self, node: str) -> bool:
        """A daemon ended it although it was healthy, and its job went on."""
        machine, agent = self._machines.get(node), self._agents.get(node)
        if machine is None or agent is None or agent.exited or machine.noticed_at is not None or agent.broken_gpu:
            return False
        if machine.instance.end_cause is not EndCause.USER or self._silence_of(machine)[0] < NEVER:
            return False
        owner = next((job for job in self._world.journal.read().jobs.values() if node in job.nodes), None)
        if owner is None or owner.record.ended or owner.record.cancel_requested:
            return False
        if (
            owner.record.pause.at
            and self._world.clock.now() - owner.record.pause.at > self._world.rules.drain_timeout_s
        ):
            return False
        drained = [p for p in owner.nodes[node].history if N.DRAINING in (p.before, p.after)]
        return not drained or drained[-1].at - drained[0].at < self._world.rules.drain_timeout_s

    def _left_in_time(self, node: str, saving_s: float) -> bool:
        """Its notice came early enough for a checkpoint, its agent read it and lived on, etcd was up to carry it to the
        others, and the machine was neither silent nor cut off in the time that the checkpoint needs."""
        machine, agent = self._machines.get(node), self._agents.get(node)
        if machine is None or machine.noticed_at is None or machine.ends_at is None or machine.silent:
            return False
        needed_s = NOTICE_S + saving_s
        # One that falls silent after its notice is taken before its time is up.
        ends_at = min(machine.ends_at, machine.ended_at or NEVER)
        if (
            agent is None
            or agent.struck
            or agent.broken_gpu
            or not agent.noticed
            or ends_at - machine.noticed_at < needed_s
        ):
            return False
        if self._silent_at.get(machine.instance.id, -NEVER) > ends_at - needed_s:
            return False
        return (
            not (self._world.etcd.down or self._world.etcd.full)
            and ends_at - self._world.etcd.up_since > needed_s
            and self._world.clock.now() >= ends_at
        )


def _left_before(machine: Machine) -> float:
    """From when on a machine whose end was known may be left; NEVER of others."""
    if not machine.lasts_s or machine.ends_at is None:
        return NEVER
    return machine.ends_at - min(LEFT_BEFORE_S, machine.lasts_s / 4) - FEW_SLACK_S
