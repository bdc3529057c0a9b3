"""Worlds and users for tests: a job that trains, in a world without faults."""

from __future__ import annotations

from typing import Any

from supervisor.api.service import Service
from supervisor.model import JobRecord, JobState
from supervisor.planner.world import Rules
from supervisor.runtime.actor import PreTerminate
from tests.sim.promises import Promises, truth
from tests.sim.world import Faults, Machine, World

RULES = Rules(
    listing_s=2.0,
    suspect_s=20.0,
    consistency_s=20.0,
    orphan_grace_s=15.0,
    gather_s=8.0,
    leave_margin_s=6.0,
    drain_timeout_s=60.0,
    bootstrap_timeout_s=60.0,
    ready_timeout_s=30.0,
    spare_retry_s=30.0,
    checkpoint_alert_quiet_s=100.0,
    bootstrap_failures=50,
    alerts=True,
)
CALM = Faults()


def service(world: World) -> Service:
    """The API of the daemon that leads now."""

    def wait_for(predicate: Any, timeout_s: float) -> bool:
        world.run(1.0)
        return bool(predicate(world.daemon.journal.read()))

    return Service(world.daemon.journal, world.daemon.leader, world.clock, ["local"], wait_for)


def submit(world: World, name: str, low: int, desired: int, high: int, spares: int = 0, **more: Any) -> None:
    """As spotsupctl does."""
    nodes = {"min": low, "desired": desired, "max": high, "spares": spares}
    spec = {"name": name, "nodes": nodes, "run": "train.py", **more}
    digest = service(world).put_blob(b"code")
    service(world).submit(spec, digest, f"{name} at {world.clock.now()}")


def record(world: World, name: str = "job") -> JobRecord:
    """The job as the journal has it."""
    return truth(world)[name].record


def in_state(state: JobState) -> Any:
    """Whether the job is in this state."""
    return lambda world: record(world).state is state


def empty_world(
    rules: Rules = RULES, faults: Faults = CALM, seed: int = 1, pre_terminate: PreTerminate | None = None
) -> World:
    """A daemon without jobs."""
    world = World(seed, faults, rules, pre_terminate)
    Promises(world)
    world.run(1.0)
    return world


def calm_world(low: int = 2, desired: int = 3, high: int = 4, spares: int = 0, **more: Any) -> World:
    """A job that trains, with all its spares."""
    world = empty_world()
    submit(world, "job", low, desired, high, spares, **more)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert world.run_until(lambda w: len(truth(w)["job"].spares) == spares, 60.0)
    return world


def machine_of(world: World, rank: int) -> Machine:
    """The machine of the member with this rank."""
    current = truth(world)["job"].round
    assert current is not None
    return machine_with(world, current.nodes()[rank % len(current.nodes())])


def machine_with(world: World, node: str) -> Machine:
    """The machine of a node."""
    return next(m for m in world.cloud.machines.values() if m.instance.node == node and m.alive)
