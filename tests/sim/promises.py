"""The promises, as checks on a world. Each is asked after every event."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from supervisor.model import (
    COUNTED_NODE_STATES,
    ENDED_JOB_STATES,
    OPEN_NODE_STATES,
    EventKind,
    JobState,
    NodeRecord,
    NodeState,
)
from supervisor.planner.actions import Action, Bootstrap, Find, Launch, Remove, Terminate
from supervisor.planner.world import JobView
from tests.sim.causes import RESTORED_S, Causes
from tests.sim.cloud import HEARD_S
from tests.sim.daemon import Daemon
from tests.sim.spares import Spares
from tests.sim.world import Machine, World

N = NodeState
LEAK_GRACE_S = 90.0


class Violation(AssertionError):
    """A promise was broken."""


def truth(world: World) -> dict[str, JobView]:
    """What the journal really holds, without any mirror's lag."""
    return dict(world.journal.read().jobs)


class Promises:
    """Holds what must be compared over time."""

    def __init__(self, world: World, leak_grace_s: float = LEAK_GRACE_S) -> None:
        self._world = world
        self._leak_grace_s = leak_grace_s + world.rules.orphan_grace_s
        self._unknown_since: dict[str, float] = {}
        self._machine_of: dict[str, str] = {}
        self._losses: dict[str, int] = {}
        self._spares = Spares(world)
        self._causes = Causes(world)
        self._revision = 0
        self._jobs: dict[str, JobView] = {}
        self._open: set[str] = set()
        self.checked = 0
        world.checks.append(lambda _: self.check())
        world.cloud.on_terminate = self._ended_with_intent
        world.cloud.on_launch = self._launched_once
        world.on_start = self._with_intent

    def restored(self, keys: Iterable[str]) -> None:
        """etcd has lost what it was told last: what that was about is judged by nobody."""
        self._jobs = truth(self._world)
        for key in keys:
            room, _, rest = key.removeprefix(self._world.nodes.keys.world).partition("/")
            if room == "nodes":
                self._causes.forgiven.add(rest.partition("/")[2])

    def check(self) -> None:
        """Whatever may have changed since the last event."""
        for daemon in self._world.daemons:
            if daemon.fenced:
                raise Violation(f"P10: {daemon.fenced[0]}")
        if self._world.store.revision != self._revision:
            self._revision = self._world.store.revision
            self._check_records()
        self._no_leak()
        self._no_step_lost()

    def _check_records(self) -> None:
        self.checked += 1
        before, self._jobs = self._jobs, truth(self._world)
        self._open = {node.id for job in self._jobs.values() for node in job.nodes.values() if _is_open(node)}
        for name, job in self._jobs.items():
            old = before.get(name)
            if old is not None and old.revision == job.revision and old.revisions == job.revisions:
                same = old.round is job.round and old.members == job.members and old.hint is job.hint
                if same and not job.record.spare_nodes:
                    continue
            wrong = self._causes.check(old, job)
            if self._world.clock.now() - self._world.restored_at > RESTORED_S:
                self._no_overshoot(old, job)
                self._one_place(job)
                wrong = wrong or self._spares.check(job)
            if wrong:
                raise Violation(wrong)

    # -- machines ------------------------------------------------------------------------------------------

    def _no_leak(self) -> None:
        """P1: a machine with our tag is in the journal, or it is ended within the grace. Stopped ones count."""
        now = self._world.clock.now()
        for machine in self._world.cloud.machines.values():
            if machine.ended_at is not None or machine.instance.node in self._open:
                if self._unknown_since:
                    self._unknown_since.pop(machine.instance.id, None)
                continue
            since = self._unknown_since.setdefault(machine.instance.id, now)
            if now - since > self._leak_grace_s:
                raise Violation(
                    f"P1: {machine.instance.id} of {machine.instance.node} is leaked for {now - since:.0f} s"
                )

    def _launched_once(self, machine: Machine) -> None:
        """P2: one intent never yields two machines. No intent yields none."""
        instance = machine.instance
        before = self._machine_of.setdefault(instance.node, instance.id)
        if before != instance.id:
            raise Violation(f"P2: {instance.node} has two machines, {before} and {instance.id}")

    def _with_intent(self, daemon: Daemon, action: Action) -> None:
        """What creates, changes or ends anything is in the journal before it is begun."""
        if not isinstance(action, Launch | Find | Bootstrap | Terminate | Remove):
            return
        node = action.node if isinstance(action, Terminate) else ""
        record = action.node if isinstance(action, Launch | Find | Bootstrap) else None
        nodes = {n.id: n for job in truth(self._world).values() for n in job.nodes.values()}
        if record is not None and isinstance(action, Launch | Bootstrap) and record.id not in nodes:
            raise Violation(f"intent: {daemon.name} begins {action.key}, which is not in the journal")
        if node and nodes[node].state not in {N.TERMINATING, N.GONE}:
            raise Violation(f"intent: {daemon.name} ends {node}, which is {nodes[node].state} in the journal")

    def _ended_with_intent(self, machine: Machine) -> None:
        """P4: nobody ends a machine whose node is open and not meant to end."""
        found = False
        for job in truth(self._world).values():
            node = job.nodes.get(machine.instance.node)
            found = found or node is not None
            if node is not None and node.id in self._causes.forgiven:
                continue
            if node is not None and node.state not in {N.TERMINATING, N.GONE}:
                raise Violation(f"P4: {node.id} was ended, but it is {node.state}")
        agent = self._world.nodes.agents.get(machine.instance.node)
        speaks = agent is not None and not (agent.quit or machine.silent) and machine.alive
        since = max(agent.starts_at if agent else 0.0, self._world.store.back_at)
        if speaks and not found and self._world.clock.now() - since > HEARD_S:
            raise Violation(f"P4: {machine.instance.node} was ended: it speaks, and the journal does not know it")

    # -- jobs ----------------------------------------------------------------------------------------------

    def _no_overshoot(self, before: JobView | None, job: JobView) -> None:
        """P3: never more than wanted plus what is being replaced or let go; never more money than allowed."""
        counted = [n for n in job.nodes.values() if n.state in COUNTED_NODE_STATES and not n.doomed]
        wanted = job.record.desired_nodes + job.record.spare_nodes
        newest = [n.id for n in counted if before is not None and n.id not in before.nodes]
        # Where users changed their minds in the same moment, it was asked for by what they wanted before.
        same = before is not None and before.record.desired_nodes + before.record.spare_nodes <= wanted
        if newest and same and len(counted) > wanted:
            raise Violation(f"P3: {len(counted)} nodes for {wanted} wanted, and {newest} were asked for")
        limit = job.record.spec.limits.usd_per_hour
        spent = sum(n.offer.usd_per_hour or 0.0 for n in job.nodes.values() if n.state is not N.GONE)
        if limit is not None and spent > limit + 1e-6:
            raise Violation(f"P3: ${spent:.2f} per hour, and ${limit:.2f} are allowed")

    def _one_place(self, job: JobView) -> None:
        """P8: a job's nodes share one zone, or one region where it says so."""
        zones = {node.offer.zone for node in job.nodes.values() if node.state in COUNTED_NODE_STATES}
        if len(zones) > 1 and job.record.spec.placement.spread == "zone":
            raise Violation(f"P8: {job.record.name} is in {sorted(zones)}")

    def _no_step_lost(self) -> None:
        """P9: none without a cause; none for a node that was noticed in time; else at most a checkpoint interval."""
        for name, training in self._world.nodes.trainings.items():
            seen = self._losses.get(training.task_id, 0)
            self._losses[training.task_id] = len(training.losses)
            for loss in training.losses[seen:]:
                wrong = self._causes.judge(loss)
                if wrong:
                    raise Violation(f"P9: {name} lost {loss.steps} steps of round {loss.round.number}: {wrong}")


def _is_open(node: NodeRecord) -> bool:
    return node.state in OPEN_NODE_STATES


def settled(world: World) -> bool:
    """Every job has what it wants or has ended with nothing left, and no machine is unaccounted for."""
    jobs = truth(world)
    wanted: dict[str, int] = defaultdict(int)
    for job in jobs.values():
        open_nodes = [node for node in job.nodes.values() if node.state in OPEN_NODE_STATES]
        if job.record.state in ENDED_JOB_STATES:
            if open_nodes:
                return False
            continue
        if job.record.cancel_requested or any(node.doomed for node in open_nodes):
            return False
        members = [node for node in open_nodes if node.state is NodeState.MEMBER]
        wanted[job.record.name] = job.record.desired_nodes + job.record.spare_nodes
        if job.record.state is not JobState.RUNNING or len(members) != job.record.desired_nodes:
            return False
        if len(job.spares) != job.record.spare_nodes or len(open_nodes) != wanted[job.record.name]:
            return False
    billed = Counter(
        machine.instance.node.rsplit("-", 2)[0] for machine in world.cloud.machines.values() if machine.billed
    )
    return dict(billed) == dict(wanted)


def events_of(world: World, job: str, kind: EventKind) -> list[str]:
    """The nodes of a job's events of one kind, in order."""
    return [event.node for event in world.journal.events(job) if event.kind is kind]
