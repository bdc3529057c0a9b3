"""A hostile program: it writes what is false of its own node, and falls silent while its steps seem to advance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spotsup_simulator.etcd_clients import NodeClient
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World
from spotsup_trainer.wire import Notice, encode

FAR = 9e10  # as far as a message may say
TOLD_S = 10.0  # within so long a daemon has read what it wrote


def forge_notice(world: World, machine: Machine) -> bool:
    """A node says that it will be preempted in thousands of years. False if it cannot write."""
    agent = world.nodes.agents.get(machine.node)
    if agent is None or world.etcd.down or world.etcd.full or machine.silent or machine.apart:
        return False
    now = world.clock.now()
    message = encode(Notice(agent.node, FAR, now, "aws"))
    NodeClient(world.etcd, agent.job).put(world.nodes.keys.notice(agent.job, agent.node), message)
    machine.noticed_at = now  # of its own job, its word counts as its cloud's
    return True


def ail(world: World, machine: Machine) -> bool:
    """A node says that its GPUs are unhealthy, and trains on. False if it said so before."""
    return world.nodes.break_gpu(machine.node, "ecc")


def fall_silent(machine: Machine) -> None:
    """etcd hears it no more; over SSH its owner answers that steps advance."""
    machine.cut, machine.ssh = True, "well"


class HostileJob:
    """Each node of a job forges as soon as it trains, and falls silent."""

    def __init__(self, world: World, job: str, forge: Callable[[World, Machine], bool]) -> None:
        self._world = world
        self._job = job
        self._forge = forge
        self._done: set[str] = set()
        # How many of its machines billed at once, at most.
        self.most = 0
        world.hooks.step.append(self._step)

    @property
    def machines(self) -> list[Machine]:
        """Those that bill."""
        found = self._world.cloud.machines.values()
        return [each for each in found if each.billed and each.instance.node.rsplit("-", 2)[0] == self._job]

    @property
    def forged(self) -> int:
        """How many nodes did."""
        return len(self._done)

    def _step(self) -> None:
        machines = self.machines
        self.most = max(self.most, len(machines))
        training = self._world.nodes.trainings.get(self._job)
        for machine in machines if training is not None else ():
            trains = training is not None and training.trains(machine.node)
            if trains and machine.node not in self._done and self._forge(self._world, machine):
                self._done.add(machine.node)
                self._world.schedule(self._world.clock.now() + TOLD_S, partial(fall_silent, machine))
