"""The promises, as checks on a world. Each is asked after every step of time."""

from __future__ import annotations

from collections import Counter, defaultdict

from supervisor.model import (
    COUNTED_NODE_STATES,
    ENDED_JOB_STATES,
    OPEN_NODE_STATES,
    EventKind,
    JobState,
    NodeRecord,
    NodeState,
)
from supervisor.planner.world import JobView
from tests.sim.spares import Spares
from tests.sim.world import Machine, World

LEAK_GRACE_S = 90.0


class Violation(AssertionError):
    """A promise was broken."""


def truth(world: World) -> dict[str, JobView]:
    """What the journal really holds, without the mirror's lag."""
    world.store.remember()
    lag, world.store.faults = world.store.faults, type(world.store.faults)()
    try:
        return dict(world.journal.read().jobs)
    finally:
        world.store.faults = lag


class Promises:
    """Holds what must be compared over time."""

    def __init__(self, world: World) -> None:
        self._unknown_since: dict[str, float] = {}
        self._world = world
        self._spares = Spares(world)
        world.checks.append(lambda _: self.check())
        world.cloud.on_terminate = self._no_false_kill

    def check(self) -> None:
        """P1, P2, P3, P8."""
        jobs = truth(self._world)
        nodes = {node.id: node for job in jobs.values() for node in job.nodes.values()}
        self._no_leak(nodes)
        self._no_double()
        for job in jobs.values():
            self._no_overshoot(job)
            broken = self._spares.check(job)
            if broken:
                raise Violation(broken)
            self._one_place(job)

    def _no_leak(self, nodes: dict[str, NodeRecord]) -> None:
        """P1: a machine with our tag is in the journal, or it is ended within the grace."""
        now = self._world.clock.now()
        for machine in self._world.cloud.machines.values():
            node = nodes.get(machine.instance.node)
            known = node is not None and node.state in OPEN_NODE_STATES
            if known or not machine.alive:
                self._unknown_since.pop(machine.instance.id, None)
                continue
            since = self._unknown_since.setdefault(machine.instance.id, now)
            if now - since > LEAK_GRACE_S + self._world.rules.orphan_grace_s:
                raise Violation(f"P1: {machine.instance.id} of {machine.instance.node} is leaked since {since}")

    def _no_double(self) -> None:
        """P2: one intent never yields two machines."""
        per_node = Counter(machine.instance.node for machine in self._world.cloud.machines.values())
        doubled = [node for node, count in per_node.items() if count > 1]
        if doubled:
            raise Violation(f"P2: {doubled} have more than one machine")

    def _no_overshoot(self, job: JobView) -> None:
        """P3: never more than wanted plus what is being replaced or let go."""
        counted = [n for n in job.nodes.values() if n.state in COUNTED_NODE_STATES and not n.doomed]
        newest = [n for n in counted if n.state is NodeState.REQUESTED and n.created_at == self._world.clock.now()]
        wanted = job.record.desired_nodes + job.record.spare_nodes
        if newest and len(counted) > wanted:
            raise Violation(f"P3: {len(counted)} nodes for {wanted} wanted, and one more asked for")

    def _one_place(self, job: JobView) -> None:
        """P8: a job's nodes share one zone."""
        zones = {node.offer.zone for node in job.nodes.values() if node.state in COUNTED_NODE_STATES}
        if len(zones) > 1:
            raise Violation(f"P8: {job.record.name} is in {zones}")

    def _no_false_kill(self, machine: Machine) -> None:
        """P4: nobody ends the machine of a node that is in the round, unless there is a reason."""
        jobs = truth(self._world)
        for job in jobs.values():
            node = job.nodes.get(machine.instance.node)
            if node is None or machine.silent or job.round is None:
                continue
            in_round = node.id in job.round.nodes() and node.state in {NodeState.MEMBER, NodeState.READY}
            if in_round and not node.doomed and not job.record.ended:
                raise Violation(f"P4: {node.id} was working in round {job.round.number} and was ended")


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
        members = [node for node in open_nodes if node.state is NodeState.MEMBER]
        wanted[job.record.name] = job.record.desired_nodes + job.record.spare_nodes
        if job.record.state is not JobState.RUNNING or len(members) != job.record.desired_nodes:
            return False
        if len(job.spares) != job.record.spare_nodes or len(open_nodes) != wanted[job.record.name]:
            return False
    alive = Counter(
        machine.instance.node.rsplit("-", 2)[0] for machine in world.cloud.machines.values() if machine.alive
    )
    return dict(alive) == dict(wanted)


def events_of(world: World, job: str, kind: EventKind) -> list[str]:
    """The nodes of a job's events of one kind, in order."""
    return [event.node for event in world.journal.events(job) if event.kind is kind]
