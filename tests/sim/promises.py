"""The promises, as checks on a world. Each is checked after every event."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from spotsup_simulator.daemon import Daemon
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.events import EventKind
from supervisor.model import COUNTED_NODE_STATES, ENDED_JOB_STATES, OPEN_NODE_STATES, JobState, NodeRecord, NodeState
from supervisor.planner.actions import Action, Bootstrap, Clean, Commit, Find, Launch, Remove, Terminate
from supervisor.planner.predicates import done_nodes
from supervisor.planner.problems import GROWN_S
from supervisor.planner.world import CLOCKS_S, JobView
from tests.sim.access import AccessCheck
from tests.sim.accounts_check import AccountsCheck
from tests.sim.budget_check import BudgetCheck
from tests.sim.causes import SETTLE_S, Causes
from tests.sim.held_check import HeldCheck
from tests.sim.hours import HoursCheck
from tests.sim.queue_check import QueueCheck, requested
from tests.sim.spares import SpareCheck
from tests.sim.told_check import ToldCheck
from tests.sim.warm_check import WarmCheck

N = NodeState
LEAK_GRACE_S = 90.0
# A job asks a zone that takes its machines before they are of use for no more than so many in ten minutes. Daemons that
# take over have forgotten what it did.
MAX_EARLY_DEATHS = 60
EARLY_DEATHS_S = 600.0


# Counters of what the daemon contains (P11). Here each is a bug of our own.
CONTAINED = ("undecided", "outcomes_dropped", "commits_refused", "ticks_failed")


class Violation(BaseException):
    """A promise was broken. Not an Exception: the daemon, within which hooks run, may not contain it."""


def jobs_of(world: World) -> dict[str, JobView]:
    """The jobs as etcd holds them, without any mirror's lag."""
    return dict(world.journal.read().jobs)


class Promises:
    """Watches a world through its hooks, and raises Violation as soon as a promise is broken."""

    def __init__(self, world: World, leak_grace_s: float = LEAK_GRACE_S) -> None:
        self._world = world
        self._leak_grace_s = leak_grace_s + world.rules.orphan_grace_s
        self._unjournaled_since: dict[str, float] = {}
        # When a leader last began to read etcd anew, by what it says itself; when people were last told of machines
        # that are not in the journal.
        self._reads: dict[str, float] = {}
        self._reads_since = self._told_at = -math.inf
        self._halted_at = -math.inf
        self._machine_of: dict[str, str] = {}
        self._losses: dict[str, int] = {}
        self._spares = SpareCheck(world)
        self._queue = QueueCheck(world)
        self._budgets = BudgetCheck(world)
        self._causes = Causes(world)
        self._hours = HoursCheck(world)
        self._accounts = AccountsCheck()
        self._held = HeldCheck(world)
        self._access = AccessCheck(world)
        self._warm = WarmCheck(world, self._leak_grace_s)
        self.told = ToldCheck(world)
        self._revision = 0
        self._jobs: dict[str, JobView] = {}
        self._open: set[str] = set()
        self._unfenced: list[str] = []
        self.checked = 0
        world.hooks.step.append(self.check)
        world.hooks.terminate.append(self._check_termination)
        world.hooks.launch.append(self._check_launch)
        world.hooks.action.append(self._check_intent)
        world.hooks.commit.append(self._check_fence)

    def etcd_rolled_back(self, keys: Iterable[str]) -> None:
        """etcd has lost its last writes: the nodes that they were about are exempt from now on."""
        self._causes.rolled_back_at = self._world.clock.now()
        self._hours.etcd_rolled_back()
        self._jobs = jobs_of(self._world)
        for key in keys:
            kind, _, rest = key.removeprefix(self._world.nodes.keys.world).partition("/")
            if kind == "nodes":
                self._causes.exempt.add(rest.partition("/")[2])

    def doubt(self, nodes: Iterable[str]) -> None:
        """From now on these nodes' GPUs are called unhealthy, wrongly."""
        self._causes.doubts.append((self._world.clock.now(), frozenset(nodes)))

    def check(self) -> None:
        """Everything that may have changed since the last event."""
        if self._unfenced:
            raise Violation(f"P10: {self._unfenced[0]}")
        if self._world.cloud.wronged:
            raise Violation(f"ownership: {self._world.cloud.wronged[0]} of another installation was ended or removed")
        if self._world.etcd.mirrored_revision != self._revision:
            self._revision = self._world.etcd.mirrored_revision
            self._check_records()
            self._check_ownership()
        self._check_leaks()
        self._check_lost_steps()
        if wrong := self._hours.check(self._jobs.values()):
            raise Violation(wrong)
        if wrong := self._accounts.check(self._jobs.values(), self._world.clock.now()):
            raise Violation(wrong)
        if wrong := self._held.check(self._jobs):
            raise Violation(wrong)
        if wrong := self._access.check(self._jobs):
            raise Violation(wrong)
        if wrong := self.told.check(self._jobs):
            raise Violation(wrong)
        self._check_contained()

    def _check_contained(self) -> None:
        for daemon in self._world.daemons:
            status = daemon.loop.status
            if found := [name for name in CONTAINED if name in status.counters]:
                what = "; ".join([status.headline, *status.sentences.values()])
                raise Violation(f"P11: {daemon.name} contained a fault ({', '.join(found)}): {what}")

    def _check_records(self) -> None:
        self.checked += 1
        before, self._jobs = self._jobs, jobs_of(self._world)
        self._open = {node.machine_name for job in self._jobs.values() for node in job.nodes.values() if _is_open(node)}
        if wrong := self._warm.check(self._jobs):
            raise Violation(wrong)
        for name, job in self._jobs.items():
            old = before.get(name)
            if old is not None and old.revision == job.revision and old.revisions == job.revisions:
                same = old.round is job.round and old.members == job.members and old.hint is job.hint
                if same and not job.record.spare_nodes:
                    continue
            wrong = self._causes.check(old, job)
            multiple = job.record.spec.nodes.multiple_of
            if job.round is not None and len(job.round.members) % multiple:
                raise Violation(
                    f"multiple_of: a round of {name} has {len(job.round.members)} nodes, not {multiple} × n"
                )
            if self._world.clock.now() - self._causes.rolled_back_at > SETTLE_S:
                self._check_overshoot(old, job)
                wrong = wrong or self._queue.check(old, job, self._jobs) or self._budgets.check(old, job, self._jobs)
                self._check_place(job)
                wrong = wrong or self._spares.check(job)
            if wrong:
                raise Violation(wrong)

    # -- machines ------------------------------------------------------------------------------------------

    def _check_ownership(self) -> None:
        """Nothing of another installation is in the journal."""
        others = self._world.cloud.others.keys()
        for job in self._jobs.values() if others else ():
            for node in job.nodes.values():
                if node.instance_id in others:
                    raise Violation(f"ownership: {node.id} has {node.instance_id} of another installation")

    def _check_leaks(self) -> None:
        """P1: a machine with our tag is in the journal, or it is ended within the grace; of one that may be older than
        what etcd shows, people are told. Stopped ones count."""
        now = self._world.clock.now()
        # Nothing can be journaled, nor ended: its grace begins anew.
        if self._world.etcd.full or self._world.journal.read().cluster is None:
            self._halted_at = now
            return
        for daemon in self._world.daemons:
            reads = daemon.loop._timers_paused_until
            if daemon.leader.leading and self._reads.get(daemon.name) != reads:
                self._reads[daemon.name], self._reads_since = reads, now
        for machine in self._world.cloud.machines.values():
            if machine.ended_at is not None or machine.instance.node in self._open:
                if self._unjournaled_since:
                    self._unjournaled_since.pop(machine.instance.id, None)
                continue
            if machine.instance.region in self._world.cloud.silent_regions:  # it cannot be seen; of that people hear
                self._unjournaled_since[machine.instance.id] = now
                continue
            since = self._unjournaled_since.setdefault(machine.instance.id, now)
            waited_s = now - max(since, self._halted_at)
            if waited_s > self._leak_grace_s and not self._is_left(machine, since, waited_s):
                raise Violation(
                    f"P1: {machine.instance.id} of {machine.instance.node} has been leaked for {now - since:.0f} s"
                )

    def _is_left(self, machine: Machine, since: float, waited_s: float) -> bool:
        """Whether people decide about it, and know that: soon after those that they know of at most."""
        may_be_older = machine.instance.launched_at <= self._reads_since + 2 * CLOCKS_S
        return may_be_older and (self._told_at >= since or waited_s <= self._leak_grace_s + GROWN_S)

    def _check_launch(self, machine: Machine) -> None:
        """P2: one intent never yields two machines."""
        instance = machine.instance
        before = self._machine_of.setdefault(instance.node, instance.id)
        if before != instance.id:
            raise Violation(f"P2: {instance.node} has two machines, {before} and {instance.id}")
        job, now = instance.node.rsplit("-", 2)[0], self._world.clock.now()
        wasted = [
            each
            for each in self._world.cloud.machines.values()
            if each.ended_at is not None
            and (each.instance.zone, each.instance.node.rsplit("-", 2)[0]) == (instance.zone, job)
            and each.instance.end_cause is EndCause.PREEMPTED
            and each.ended_at <= each.runs_at + 3.0
            and each.ended_at > now - EARLY_DEATHS_S
        ]
        if len(wasted) > MAX_EARLY_DEATHS:
            raise Violation(f"late refusals: {job} lost {len(wasted)} new machines in {instance.zone}, and asks again")

    def _check_intent(self, daemon: Daemon, action: Action) -> None:
        """Every action that creates, changes or ends something is in the journal before it starts."""
        if not isinstance(action, Launch | Find | Bootstrap | Clean | Terminate | Remove):
            return
        node = action.node if isinstance(action, Terminate) else ""
        record = action.node if isinstance(action, Launch | Find | Bootstrap | Clean) else None
        nodes = {n.id: n for job in jobs_of(self._world).values() for n in job.nodes.values()}
        if record is not None and isinstance(action, Launch | Bootstrap | Clean) and record.id not in nodes:
            raise Violation(f"intent: {daemon.name} starts {action.key}, which is not in the journal")
        if isinstance(action, Clean) and nodes[action.node.id].state is not N.CLEANING:
            raise Violation(f"intent: {daemon.name} cleans {action.node.id}, which is {nodes[action.node.id].state}")
        if node and nodes[node].state not in {N.TERMINATING, N.GONE}:
            raise Violation(f"intent: {daemon.name} ends {node}, which is {nodes[node].state} in the journal")

    def _check_termination(self, machine: Machine) -> None:
        """P4: no daemon ends a machine whose node is open and not meant to end."""
        found = False
        for job in jobs_of(self._world).values():
            node = job.nodes.get(machine.node)
            found = found or node is not None
            if node is not None and node.id in self._causes.exempt:
                continue
            if node is not None and node.state not in {N.TERMINATING, N.GONE}:
                raise Violation(f"P4: {node.id} was ended, but it is {node.state}")
        agent = self._world.nodes.agents.get(machine.node)
        works = agent is not None and agent.machine is machine and not agent.exited and machine.alive
        if works and not found:
            raise Violation(f"P4: {machine.instance.node} was ended: its agent runs, and it is not in the journal")

    def _check_fence(self, daemon: Daemon, commit: Commit) -> None:
        """P10: a daemon that does not lead writes nothing."""
        if any(event.kind is EventKind.UNJOURNALED for event in commit.events):
            self._told_at = self._world.clock.now()
        if not daemon.client.leads():
            self._unfenced.append(f"{daemon.name} wrote a decision about {commit.job} without leading")

    # -- jobs ----------------------------------------------------------------------------------------------

    def _check_overshoot(self, before: JobView | None, job: JobView) -> None:
        """P3: never more than wanted plus what is being replaced or let go; never more money than allowed."""
        present = [n for n in job.nodes.values() if n.state in COUNTED_NODE_STATES and not n.doomed]
        counted, ahead = [n for n in present if not n.ahead], [n for n in present if n.ahead]
        wanted = job.record.desired_nodes + job.record.spare_nodes
        asked = requested(before, job) if before is not None else ()
        newest = [n.id for n in present if n.id in asked]
        # If a user has just asked for fewer, the node was requested for what was wanted before.
        same = before is not None and before.record.desired_nodes + before.record.spare_nodes <= wanted
        if newest and same and len(counted) > wanted:
            raise Violation(f"P3: {len(counted)} nodes for {wanted} wanted, and {newest} were requested")
        # What is replaced bills until it has ended: all of a job's nodes at once, and no more.
        most = job.record.max_nodes + job.record.desired_nodes + job.record.spare_nodes
        there = [n for n in job.nodes.values() if n.state is not N.GONE and (n.instance_id or n.id in newest)]
        machines = self._world.cloud.machines
        bills = [n for n in there if n.instance_id not in machines or machines[n.instance_id].billed]
        if newest and same and len(bills) > most:
            raise Violation(f"P3: {len(bills)} machines of {job.record.name} bill, {most} may: {newest} were requested")
        # A move replaces what the job has: no more than it wants, and what is there, which leaves then.
        if newest and same and len(ahead) > job.record.desired_nodes:
            raise Violation(f"P3: {len(ahead)} nodes ahead of a move of {job.record.desired_nodes}")
        limit = job.record.spec.limits.usd_per_hour
        if limit is not None and any(job.nodes[node].offer.usd_per_hour is None for node in newest):
            raise Violation(f"P13: {newest} were requested for {job.record.name}, which has a limit, without a price")
        cap = job.record.spec.limits.usd_per_node_hour
        begun = [job.nodes[each] for each in newest if job.nodes[each].state is N.REQUESTED]
        for node in begun if cap is not None else ():
            if node.max_usd_per_hour != cap or (node.offer.usd_per_hour or math.inf) > (cap or 0.0) + 1e-6:
                raise Violation(f"P13: {node.id} was requested at {node.offer}, and {cap} is paid at most")
        spent = sum(n.offer.usd_per_hour or 0.0 for n in job.nodes.values() if n.state is not N.GONE)
        # Prices that rise end no machine: only what is requested has to fit.
        if newest and limit is not None and spent > limit + 1e-6:
            raise Violation(f"P3: ${spent:.2f} per hour, and ${limit:.2f} are allowed")

    def _check_place(self, job: JobView) -> None:
        """P8: those of a job's nodes that stay share one zone, or one region where it says so; so do those of a
        round."""
        counted = {node.id: node.offer.zone for node in job.nodes.values() if node.state in COUNTED_NODE_STATES}
        zones = {zone for node, zone in counted.items() if not (job.nodes[node].doomed or job.nodes[node].ahead)}
        trains = {job.nodes[node].offer.zone for node in job.round.nodes() if node in job.nodes} if job.round else set()
        kinds = {node.offer.alternative for node in map(job.nodes.get, job.round.nodes() if job.round else ()) if node}
        if len(kinds) > 1 and not job.record.ended:  # a machine that waits is of its next job's alternatives
            raise Violation(f"P8: round {job.round.number if job.round else 0} of {job.record.name} is of {kinds}")
        stay = {job.nodes[node].offer.alternative for node in counted if not job.nodes[node].doomed}
        if len(stay) > 1 and not job.record.moves.since:
            raise Violation(f"P8: {job.record.name} is of the alternatives {sorted(stay)}")
        if len(trains) > 1 and job.record.spec.placement.spread == "zone":
            raise Violation(
                f"P8: round {job.round.number if job.round else 0} of {job.record.name} is in {sorted(trains)}"
            )
        if len(zones) > 1 and job.record.spec.placement.spread == "zone":
            raise Violation(f"P8: {job.record.name} is in {sorted(zones)}")

    def _check_lost_steps(self) -> None:
        """P9: none without a cause, none with a notice in time; else at most a checkpoint interval."""
        for name, training in self._world.nodes.trainings.items():
            seen = self._losses.get(training.task_id, 0)
            self._losses[training.task_id] = len(training.steps.losses)
            for loss in training.steps.losses[seen:]:
                wrong = self._causes.judge(loss)
                if wrong:
                    raise Violation(f"P9: {name} lost {loss.steps} steps of round {loss.round.number}: {wrong}")


def _is_open(node: NodeRecord) -> bool:
    return node.state in OPEN_NODE_STATES


def settled(world: World) -> bool:
    """Every job has what it wants or has ended without open nodes, and every machine belongs to a job."""
    jobs = jobs_of(world)
    wanted: dict[str, int] = defaultdict(int)
    for job in jobs.values():
        open_nodes = [node for node in job.nodes.values() if node.state in OPEN_NODE_STATES]
        if job.record.state in ENDED_JOB_STATES:
            if open_nodes:
                return False
            continue
        if job.record.cancel_requested or any(node.doomed for node in open_nodes):
            return False
        members = {node.id for node in open_nodes if node.state is NodeState.MEMBER}
        done = done_nodes(job, job.nodes)  # the job does not miss them
        gone = done - {node.id for node in open_nodes}
        wanted[job.record.name] = job.record.desired_nodes + job.record.spare_nodes - len(gone)
        if job.record.state is not JobState.RUNNING or len(members | done) != job.record.desired_nodes:
            return False
        # A spare that would stand in for one that is done and gone, in another round, is named as a member by the hint.
        if (len(job.spares) != job.record.spare_nodes and not done) or len(open_nodes) != wanted[job.record.name]:
            return False
    billed = Counter(machine.node.rsplit("-", 2)[0] for machine in world.cloud.machines.values() if machine.billed)
    return dict(billed) == dict(wanted)


def events_of(world: World, job: str, kind: EventKind) -> list[str]:
    """The nodes of a job's events of one kind, in order."""
    return [event.node for event in world.journal.events(job) if event.kind is kind]
