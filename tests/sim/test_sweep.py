"""Leftovers of machines, error codes that no table has, machines that never came up."""

from __future__ import annotations

import pytest
from spotsup_simulator.cloud import OWNER
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.world import World

from provisioners.base import Leftover, LeftoverKind
from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.model import NodeState
from tests.sim.harness import RULES, empty_world, machine_of, service, submit, training_world
from tests.sim.promises import events_of, jobs_of, settled

PERIOD_S = RULES.leftovers_s


def disk(number: int, node: str) -> Leftover:
    """A disk of a machine that may be gone."""
    return Leftover(f"disk-{number}", LeftoverKind.DISK, OWNER, node, "local")


def leave(world: World, *leftovers: Leftover) -> None:
    """From now on the cloud lists these."""
    world.cloud.leftover_by_id.update({each.id: each for each in leftovers})


def test_what_a_machine_left_behind_is_removed_after_it_was_seen_twice() -> None:
    world = training_world()
    leave(world, disk(1, "job-gone-1"), disk(2, ""))
    world.run(0.9 * PERIOD_S)
    assert len(world.cloud.leftover_by_id) == 2
    assert world.run_until(lambda w: not w.cloud.leftover_by_id, 2.2 * PERIOD_S)
    texts = [each.text for each in world.daemon.journal.events("") if each.kind is EventKind.ORPHAN]
    assert sorted(texts) == [
        "disk disk-1 was left behind (node job-gone-1): removing it",
        "disk disk-2 was left behind (node unknown): removing it",
    ]


@pytest.mark.long
def test_what_an_open_node_has_is_never_removed() -> None:
    world = training_world()
    leave(world, disk(1, machine_of(world, 0).instance.node))
    world.run(4 * PERIOD_S)
    assert list(world.cloud.leftover_by_id) == ["disk-1"]
    assert settled(world)


@pytest.mark.long
def test_a_removal_that_does_nothing_is_tried_again_and_not_at_every_tick() -> None:
    world = training_world()
    leave(world, disk(1, "job-gone-1"))
    world.cloud.ignores_removal = True
    world.run(8.5 * PERIOD_S)
    assert 2 <= world.cloud.removals <= 4


def test_an_error_code_that_no_table_has_is_reported_once_and_the_launch_is_retried() -> None:
    world = empty_world()
    counts = []
    for name, code in (("one", "NobodyKnows"), ("two", "NobodyKnows"), ("three", "NorThis")):
        world.cloud.unknown_code_once = code
        submit(world, name, 1, 1, 1)
        assert world.run_until(settled, 120.0)
        counts.append(len(events_of(world, name, EventKind.UNKNOWN_CODE)))
    assert counts == [1, 0, 1]
    assert [event.job for event in world.sent if event.kind is EventKind.UNKNOWN_CODE] == ["one", "three"]
    assert world.daemon.loop.status.counters["unknown_codes"] == 3


def test_the_console_of_a_machine_that_never_came_up_is_kept_and_of_others_not() -> None:
    world = training_world()
    node = machine_of(world, 0).instance.node
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(settled, 120.0)
    assert not events_of(world, "job", EventKind.CONSOLE_TAIL)
    world.set_fault_rates(FaultRates(bootstrap=1.0))
    service(world).commands.scale("job", Scale(desired=3))
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.CONSOLE_TAIL)), 60.0)
    (first, *_) = [event for event in world.journal.events("job") if event.kind is EventKind.CONSOLE_TAIL]
    assert first.node != node
    assert "no network" in first.text
    assert jobs_of(world)["job"].nodes[first.node].state in {NodeState.TERMINATING, NodeState.GONE}
