"""Worlds for tests: without faults, empty or with a job that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotsup_simulator.cloud import OWNER
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.machine import Machine
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from supervisor.alerts.routes import Channel
from supervisor.api.daemon.adoption import Adoption
from supervisor.api.service import Service
from supervisor.features.bootstraps.record import BootstrapsRules
from supervisor.features.checkpoints.record import CheckpointsRules
from supervisor.features.silence.record import SilenceRules
from supervisor.journal.journal import Reading
from supervisor.model import JobRecord, JobState
from supervisor.planner.adoption import Adopted
from supervisor.planner.world import Rules
from supervisor.runtime.actor import PreTerminate
from tests.sim.promises import Promises, jobs_of

RULES = Rules(
    listing_s=2.0,
    consistency_s=20.0,
    orphan_grace_s=15.0,
    gather_s=8.0,
    leave_margin_s=6.0,
    drain_timeout_s=60.0,
    bootstrap_timeout_s=60.0,
    ready_timeout_s=30.0,
    alerts=True,
    channels=(Channel(gather=None),),
    silence=SilenceRules(suspect_s=20.0, quiet_s=100.0, reminder_s=200.0),
    bootstraps=BootstrapsRules(spare_retry_s=30.0, failures=50),
    checkpoints=CheckpointsRules(alert_quiet_s=100.0),
)
NO_FAULTS = FaultRates()


def wait_in(world: World) -> Callable[[Callable[[Reading], bool], float], bool]:
    """How the API waits: for a virtual second."""

    def wait_for(predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
        world.run(1.0)
        return predicate(world.daemon.journal.read())

    return wait_for


def adopt(world: World, *release: str, accounts: Sequence[str] = ()) -> list[Adopted]:
    """Take machines that the journal does not know into it, as `spotsupd adopt` does."""
    adoption = Adoption(world.daemon.journal, {"local": world.cloud}, OWNER, world.clock, wait_in(world))
    return adoption.adopt(release, accounts)


def service(world: World, *, rented: bool = False) -> Service:
    """The API of the world's current daemon. `rented`: its machines are not this computer, and can mount folders."""
    hosted = [] if rented else ["local"]
    daemon, queue = world.daemon, world.rules.queue
    return Service(daemon.journal, daemon.leader, world.clock, ["local"], wait_in(world), hosted=hosted, queue=queue)


def submit(
    world: World,
    name: str,
    low: int,
    desired: int,
    high: int,
    spares: int = 0,
    resume_from: str = "",
    owner: str = "",
    **more: Any,
) -> None:
    """Submit a job, as spotsupctl does."""
    nodes = {"min": low, "desired": desired, "max": high, "spares": spares}
    spec = {"name": name, "nodes": nodes, "run": "train.py", **more}
    digest = service(world).submissions.put_blob(b"code")
    api = service(world, rented="storage" in more)
    api.submissions.submit(spec, digest, f"{name} at {world.clock.now()}", resume_from, owner)


def record(world: World, name: str = "job") -> JobRecord:
    """The job's record in the journal."""
    return jobs_of(world)[name].record


def sentence(world: World) -> str:
    """The job's sentence in the status."""
    return world.daemon.loop.status.sentences["job"]


def alive(world: World) -> int:
    """How many machines run."""
    return sum(machine.alive for machine in world.cloud.machines.values())


def in_state(state: JobState) -> Any:
    """A predicate: the job is in this state."""
    return lambda world: record(world).state is state


def empty_world(
    rules: Rules = RULES, rates: FaultRates = NO_FAULTS, seed: int = 1, pre_terminate: PreTerminate | None = None
) -> World:
    """A world with one daemon, and no jobs."""
    world = World(Conditions(seed, rates, rules, pre_terminate))
    Promises(world)
    world.run(1.0)
    return world


def training_world(low: int = 2, desired: int = 3, high: int = 4, spares: int = 0, **more: Any) -> World:
    """A world whose one job trains, and has all its spares."""
    world = empty_world()
    submit(world, "job", low, desired, high, spares, **more)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert world.run_until(lambda w: len(jobs_of(w)["job"].spares) == spares, 60.0)
    return world


def machine_of(world: World, rank: int) -> Machine:
    """The machine of the member with this rank."""
    current = jobs_of(world)["job"].round
    assert current is not None
    return machine_with(world, current.nodes()[rank % len(current.nodes())])


def machine_with(world: World, node: str) -> Machine:
    """The machine of a node."""
    return next(m for m in world.cloud.machines.values() if m.node == node and m.alive)
