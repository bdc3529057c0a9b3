"""Harsher faults: slow checkpoints and GPUs, broken and forged messages, uneven zones, threads that end."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from spotsup_simulator.cloud import CAPACITY, ZONES
from spotsup_simulator.daemon import Daemon
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from tests.sim.forgeries import TOLD_S, fall_silent, forge_notice
from tests.sim.scenario import Injection, Submission

# How long checkpoints take; one of 60 s fits into a notice of 120 s, and one of 300 s into none.
CHECKPOINTS_S = (2.0, 10.0, 30.0, 60.0, 60.0, 300.0)
# What a node may write instead of a message: too deep, too long, not a text, of other types, not finite, of another.
BROKEN: tuple[bytes, ...] = (
    b"[" * 200_000,
    b"x" * 1_400_000,
    b"\xff" * 1000,
    b"",
    b"null",
    b'{"node": ["a"], "deadline": "soon", "seen_at": null, "round": "1", "step": {}, "outcome": 5}',
    b'{"node": "a", "deadline": Infinity, "seen_at": NaN, "at": -1e400, "round": 1, "step": 1e999}',
    json.dumps({"node": "somebody", "deadline": 5.0, "seen_at": 1.0, "source": "aws", "healthy": False}).encode(),
    b'{"node": "a", "outcome": "success", "code": 0, "message": "' + b"\x1b[2J" * 20_000 + b'", "round": 1}',
)
# After so long at most a daemon ends because one of its threads has ended (runtime.supervision).
THREAD_ENDS_S = 5.0


class Harsh:
    """What scenarios inject besides; `world.schedule` undoes what does not last."""

    def __init__(self, world: World, kill: Callable[[Daemon], None], submit: Callable[[Submission], None]) -> None:
        """`kill`: a daemon ends, and is started again soon. `submit`: a user submits a job."""
        self._world = world
        self._kill = kill
        self._submit = submit
        self._broken: dict[str, bytes] = {}

    def on_machine(self, injection: Injection, machine: Machine) -> None:
        """Faults of one machine, or of the job that it works for."""
        agent = self._world.nodes.agents.get(machine.node)
        training = self._world.nodes.trainings.get(agent.job) if agent else None
        if injection.kind == "metadata away":
            machine.metadata_away = True
        elif agent is not None and training is not None:
            if injection.kind == "slow checkpoints":
                training.save_in(CHECKPOINTS_S[injection.number % len(CHECKPOINTS_S)])
                if injection.number // len(CHECKPOINTS_S) % 2:
                    self._later(60.0 * injection.size, partial(self._preempt, machine))
            elif injection.kind == "slow GPU":
                training.slow(agent.node, self._world.clock.now(), on=True)
                self._later(
                    3600.0 * injection.size, lambda: training.slow(agent.node, self._world.clock.now(), on=False)
                )
            elif injection.kind == "forged notice" and forge_notice(self._world, machine) and injection.number % 2:
                self._later(TOLD_S, partial(fall_silent, machine))
                self._later(TOLD_S + 1800.0 * injection.size, partial(self._connect, machine))
            elif injection.kind == "broken messages":
                self._break_messages(injection, agent.job, agent.node)

    def _connect(self, machine: Machine) -> None:
        machine.cut = False
        self._world.wake_daemons()

    def _kinds_back(self) -> None:
        self._world.cloud.sold_out_types = frozenset()

    def on_daemon(self, injection: Injection, daemon: Daemon) -> None:
        """A thread ends: that of the mirror, so that nothing new is read, or that of leadership, so that the lease is
        not renewed. The daemon ends for it soon."""
        if injection.kind == "thread ends":
            if injection.number % 2:
                daemon.client.lose_watch(THREAD_ENDS_S)
            else:
                daemon.leader.unresponsive = True
                daemon.leader.lose_contact()
            self._later(THREAD_ENDS_S * injection.size, lambda: self._kill(daemon))

    def on_world(self, injection: Injection) -> None:
        """Zones of which one has too few machines for a job's minimum, and the other few or many."""
        cloud = self._world.cloud
        if injection.kind == "kind sold out":
            cloud.sold_out_types = frozenset({cloud.types[injection.number % len(cloud.types)]})
            self._later(600.0 + 10_000.0 * injection.size, self._kinds_back)
        elif injection.kind == "kinds back":
            self._kinds_back()
        if injection.kind == "uneven zones":
            small, number = injection.number % 2, injection.number // 2
            self._world.cloud.capacity = {
                ZONES[small]: 1 + number % 2,
                ZONES[1 - small]: (CAPACITY, 4)[number // 2 % 2],
            }
            self._later(3600.0 * injection.size, self._even)
            self._submit(Submission(f"wide-{number % 2}", 3, 4, 4, 0))

        if injection.kind == "region silent":
            region = cloud.region_of[ZONES[injection.number % len(ZONES)]]
            cloud.silent_regions.add(region)
            self._later(60.0 + 7200.0 * injection.size**2, partial(cloud.silent_regions.discard, region))

    def stop(self) -> None:
        """All regions and metadata services answer, and what was broken is deleted."""
        self._world.cloud.silent_regions.clear()
        for machine in self._world.cloud.machines.values():
            machine.metadata_away = False
        for key in list(self._broken):
            self._restore(key)

    def _preempt(self, machine: Machine) -> None:
        """With a notice of two minutes, and no other machine to be had meanwhile: it leaves when it has to."""
        cloud, before = self._world.cloud, dict(self._world.cloud.capacity)
        cloud.capacity = dict.fromkeys(ZONES, 0)
        cloud.preempt(machine, 120.0)
        self._later(180.0, lambda: cloud.capacity.update(before))

    def _even(self) -> None:
        self._world.cloud.capacity = dict.fromkeys(ZONES, CAPACITY)

    def _break_messages(self, injection: Injection, job: str, node: str) -> None:
        """A node writes nonsense below its own job: as itself, and as nodes and of jobs that do not exist. Its own
        leases are not broken: a node that breaks them ends itself."""
        keys, first = self._world.nodes.keys, injection.number
        names = [
            *(of(job, node) for of in (keys.notice, keys.ended, keys.health)),
            *(of(job, "job-a-0") for of in (keys.member, keys.agent, keys.notice, keys.tombstone, keys.ended)),
            *(of("nobody") for of in (keys.progress, keys.round, keys.result, keys.hint)),
            keys.progress(job),
            keys.notice(job, "\x1b[2J"),
            f"{keys.run(job)}strange/{node}/more",
        ]
        for index in range(2 + first % 5):
            key = names[(first + 5 * index) % len(names)]
            self._broken[key] = BROKEN[(first + index) % len(BROKEN)]
            self._world.etcd.put(key, self._broken[key])
            self._later(30.0 + 1800.0 * injection.size, partial(self._restore, key))

    def _restore(self, key: str) -> None:
        """Delete it, unless its owner has written a message since."""
        value, found = self._broken.pop(key, None), self._world.etcd.keys.get(key)
        if found is not None and found.value == value:
            self._world.etcd.delete(key)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._world.schedule(self._world.clock.now() + seconds, do)
