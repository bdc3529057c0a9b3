"""Machines of ended jobs wait for the next job, which begins on them: once, cleaned, and only where they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.daemon import Daemon
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.world import World

from supervisor.billing import Purpose, by_purpose
from supervisor.events import EventKind
from supervisor.features.billing.bookings import bookings_of
from supervisor.features.bootstraps.record import BootstrapsRules
from supervisor.market.admission import Cap, QueueRules
from supervisor.market.warm import WarmRules
from supervisor.model import Event, JobState, NodeState
from supervisor.planner.actions import Action, Bootstrap, Clean
from supervisor.planner.world import Rules
from tests.sim.harness import NO_FAULTS, RULES, alive, empty_world, record, service, submit
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long

WARM = replace(RULES, warm=WarmRules(keep_s=300.0))


def warm_world(rules: Rules = WARM, rates: FaultRates = NO_FAULTS, nodes: int = 2, owner: str = "") -> World:
    """A world in which a job of two nodes has ended; its machines wait."""
    world = empty_world(rules, rates)
    submit(world, "first", nodes, nodes, nodes, owner=owner)
    assert world.run_until(lambda w: record(w, "first").state is JobState.RUNNING, 60.0)
    service(world).commands.cancel("first")
    assert world.run_until(lambda w: waiting(w) == nodes, 60.0)
    return world


def waiting(world: World) -> int:
    return states(world).count(NodeState.WARM)


def states(world: World) -> list[NodeState]:
    return [node.state for job in jobs_of(world).values() for node in job.nodes.values()]


def trains(world: World, name: str, within_s: float = 60.0) -> bool:
    return world.run_until(lambda w: record(w, name).state is JobState.RUNNING, within_s)


def launched(world: World) -> int:
    return len(world.cloud.machines)


def test_the_next_job_takes_the_machines_over_before_any_is_asked_for() -> None:
    world = warm_world()
    submit(world, "second", 2, 3, 3)
    assert trains(world, "second")
    assert launched(world) == 3, "two were there"
    assert len(events_of(world, "second", EventKind.TAKEN_OVER)) == 2
    assert [node.state for node in jobs_of(world)["first"].nodes.values()] == [NodeState.GONE] * 2
    service(world).commands.cancel("second")
    assert world.run_until(lambda w: waiting(w) == 3, 60.0)
    submit(world, "third", 3, 3, 3)
    assert trains(world, "third"), "a machine may be handed over again"
    assert launched(world) == 3
    service(world).commands.cancel("third")
    assert world.run_until(lambda w: settled(w) and not alive(w), 400.0)


def test_a_job_that_is_submitted_again_under_its_name_uses_its_machines_again() -> None:
    world = warm_world()
    submit(world, "first", 2, 2, 2)
    assert trains(world, "first")
    assert launched(world) == 2
    earlier = world.journal.past_run("first", 1)
    assert earlier is not None
    assert [node.state for node in earlier.nodes] == [NodeState.GONE] * 2


@pytest.mark.parametrize("other", [{"owner": "bob"}, {"resources": {"disk_gb": 500}}])
def test_a_name_that_is_used_again_for_another_job_gives_no_right_to_its_machines(other: dict[str, object]) -> None:
    world = warm_world(owner="ann")
    submit(world, "first", 2, 2, 2, **{"owner": "ann"} | other)  # type: ignore[arg-type]
    assert trains(world, "first")
    assert launched(world) == 4
    assert world.run_until(lambda w: settled(w) and alive(w) == 2, 60.0)


def test_waiting_ends_after_its_time_and_is_booked_as_idle() -> None:
    world = warm_world()
    ended_at = record(world, "first").ended_at
    assert world.run_until(lambda w: settled(w) and not alive(w), 400.0)
    assert 295.0 <= world.clock.now() - ended_at <= 330.0
    job = jobs_of(world)["first"]
    idle = by_purpose(bookings_of(job.record, job.nodes.values(), world.clock.now()))[Purpose.IDLE]
    price = next(iter(job.nodes.values())).offer.usd_per_hour
    assert price is not None
    assert idle == pytest.approx(2 * price * 300 / 3600, rel=0.2)


def test_a_user_lets_one_go_at_once() -> None:
    world = warm_world()
    node = min(jobs_of(world)["first"].nodes)
    service(world).commands.drain(node)
    assert world.run_until(lambda w: alive(w) == 1, 20.0)
    assert waiting(world) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"owner": "bob"},
        {"resources": {"disk_gb": 500}},
        {"environment": "docker://r.example/i@sha256:" + "0" * 64},
    ],
)
def test_a_job_that_they_do_not_fit_gets_others(other: dict[str, object]) -> None:
    world = warm_world(owner="ann")
    submit(world, "second", 2, 2, 2, **{"owner": "ann"} | other)  # type: ignore[arg-type]
    assert trains(world, "second")
    assert launched(world) == 4
    assert waiting(world) == 2


def test_users_who_trust_each_other_share_machines() -> None:
    world = warm_world(replace(WARM, warm=replace(WARM.warm, other_users=True)), owner="ann")
    submit(world, "second", 2, 2, 2, owner="bob")
    assert trains(world, "second")
    assert launched(world) == 2


def test_no_more_wait_than_the_operator_allows() -> None:
    for warm in (replace(WARM.warm, max_nodes=1), replace(WARM.warm, usd_per_hour=0.15)):
        world = empty_world(replace(WARM, warm=warm))
        submit(world, "first", 2, 2, 2)
        assert trains(world, "first")
        service(world).commands.cancel("first")
        assert world.run_until(lambda w: waiting(w) == 1 and alive(w) == 1, 60.0)


def test_a_machine_that_is_taken_while_it_waits_is_no_jobs_loss() -> None:
    world = warm_world()
    first, second = [m for m in world.cloud.machines.values() if m.alive]
    world.cloud.vanish(first)
    world.cloud.preempt(second, 60.0)
    assert world.run_until(lambda w: settled(w) and not alive(w), 120.0)
    submit(world, "second", 2, 2, 2)
    assert trains(world, "second")


def test_one_that_cannot_be_cleaned_is_terminated() -> None:
    world = empty_world(WARM)
    submit(world, "first", 2, 2, 2)
    assert trains(world, "first")
    world.set_fault_rates(FaultRates(bootstrap=1.0))
    service(world).commands.cancel("first")
    assert world.run_until(lambda w: settled(w) and not alive(w), 120.0)
    assert len(events_of(world, "first", EventKind.CLEANING_FAILED)) == 2


def test_a_job_whose_nodes_failed_to_bootstrap_leaves_none() -> None:
    world = empty_world(replace(WARM, bootstraps=BootstrapsRules(failures=2)), FaultRates(bootstrap=1.0))
    submit(world, "first", 1, 1, 1)
    assert world.run_until(lambda w: record(w, "first").state is JobState.FAILED and settled(w), 300.0)
    history = [each.after for node in jobs_of(world)["first"].nodes.values() for each in node.history]
    assert NodeState.CLEANING not in history


def test_they_make_room_for_a_job_that_waits_for_the_operators_limits() -> None:
    queue = QueueRules(cluster=Cap(nodes=2))
    world = warm_world(replace(WARM, queue=queue), owner="ann")
    submit(world, "second", 2, 2, 2, owner="bob")
    assert trains(world, "second")
    assert launched(world) == 4


def test_within_a_full_limit_the_next_job_of_the_user_takes_them_over() -> None:
    queue = QueueRules(cluster=Cap(nodes=2, usd_per_hour=0.3))
    world = warm_world(replace(WARM, queue=queue), owner="ann")
    submit(world, "second", 2, 2, 2, owner="ann")
    assert trains(world, "second")
    assert launched(world) == 2


@pytest.mark.parametrize("where", ["before intent", "after intent", "after outcome"])
@pytest.mark.parametrize("kind", [Clean, Bootstrap])
def test_a_daemon_that_dies_on_the_way_neither_gives_one_twice_nor_forgets_it(where: str, kind: type[Action]) -> None:
    world = warm_world() if kind is Bootstrap else empty_world(WARM)
    if kind is Clean:
        submit(world, "first", 2, 2, 2)
        assert trains(world, "first")
    died: list[str] = []

    def die(daemon: Daemon, at: str, action: str) -> None:
        if (at, action) == (where, kind.__name__) and not died:
            died.append(at)
            world.daemon = world.start_daemon()
            world.kill(daemon)

    world.hooks.boundary.append(die)
    if kind is Clean:
        service(world).commands.cancel("first")
        assert world.run_until(lambda w: waiting(w) == 2, 120.0)
    submit(world, "second", 2, 2, 2)
    assert trains(world, "second", 120.0)
    assert died
    assert launched(world) == 2
    service(world).commands.cancel("second")
    assert world.run_until(lambda w: settled(w) and not alive(w), 500.0)


def test_two_jobs_that_are_submitted_together_never_get_the_same_one() -> None:
    world = warm_world()
    submit(world, "second", 1, 1, 1)
    submit(world, "third", 1, 1, 1)
    submit(world, "fourth", 1, 1, 1)
    assert all(trains(world, name) for name in ("second", "third", "fourth"))
    assert launched(world) == 3


def test_without_the_setting_none_waits() -> None:
    world = empty_world()
    submit(world, "first", 2, 2, 2)
    assert world.run_until(lambda w: record(w, "first").state is JobState.RUNNING, 60.0)
    service(world).commands.cancel("first")
    assert world.run_until(lambda w: settled(w) and not alive(w), 60.0)
    assert not events_of(world, "first", EventKind.KEPT_WARM)


def test_a_machine_that_is_let_go_while_it_is_given_away_is_not_given_away() -> None:
    world = warm_world(nodes=1)
    node = min(jobs_of(world)["first"].nodes)
    done: list[str] = []

    def drain(_: Daemon, at: str, action: str) -> None:
        if (at, action) == ("before intent", "Bootstrap") and not done:
            done.append(action)
            view = world.journal.read().jobs["first"]
            drained = replace(view.nodes[node], drain_requested=True)
            event = Event(f"{view.record.task_id}-900000", world.clock.now(), "first", EventKind.DRAIN_REQUESTED, "")
            assert world.journal.update_job(view, view.record, event, drained)

    world.hooks.boundary.append(drain)
    submit(world, "second", 1, 1, 1)
    assert trains(world, "second")
    assert done
    assert launched(world) == 2, "the command was stored first"
    assert events_of(world, "second", EventKind.TAKEN_OVER) == []


def test_one_that_is_not_reached_is_terminated_after_a_while() -> None:
    world = empty_world(replace(WARM, clean_timeout_s=30.0))
    submit(world, "first", 1, 1, 1)
    assert trains(world, "first")
    for machine in world.cloud.machines.values():
        machine.ssh = "refuses"
    service(world).commands.cancel("first")
    assert world.run_until(lambda w: NodeState.CLEANING in states(w), 20.0)
    assert not world.run_until(lambda w: alive(w) == 0, 20.0)
    assert world.run_until(lambda w: settled(w) and not alive(w), 40.0)
