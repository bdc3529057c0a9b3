"""Machines that are slow to prepare, however many, delay nothing of another job (P11)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from spotsup_simulator.world import World

from provisioners.base import Instance
from supervisor.model import JobState
from supervisor.planner.actions import Action, Bootstrap
from supervisor.runtime.lanes import LANES
from tests.sim.harness import RULES, empty_world, record, submit

pytestmark = pytest.mark.long

SLOW_S = 600.0  # an environment that is built for ten minutes


def slow_machines(world: World) -> None:
    """Those of jobs that are called slow."""
    usual = world.call_s

    def call_s(action: Action) -> tuple[float, float]:
        if isinstance(action, Bootstrap):
            return (SLOW_S if action.job.name.startswith("slow") else 5.0), 0.0
        return usual(action)

    world.call_s = call_s  # type: ignore[method-assign]  # this world's time


@pytest.mark.parametrize("room", [4, 512])
def test_a_sweep_whose_machines_prepare_slowly_delays_no_replacement_and_no_listing(room: int) -> None:
    world: Any = empty_world(replace(RULES, listing_s=5.0, bootstrap_timeout_s=900.0))
    world.lanes = {**LANES, "prepare": room}
    slow_machines(world)
    listed: list[float] = []
    launched: list[tuple[float, str]] = []

    def on_listing(_: tuple[Instance, ...]) -> None:
        listed.append(world.clock.now())

    world.hooks.listing.append(on_listing)
    world.hooks.launch.append(lambda machine: launched.append((world.clock.now(), machine.instance.node)))
    world.daemon.actor._lanes = type(world.daemon.actor._lanes)(world.lanes)
    submit(world, "good", 2, 3, 3)
    assert world.run_until(lambda w: record(w, "good").state is JobState.RUNNING, 120.0)
    for number in range(3):
        submit(world, f"slow-{number}", 1, 8, 8)
    world.run(60.0)
    noticed = world.clock.now()
    victim = next(each for each in world.cloud.machines.values() if each.instance.node.startswith("good"))
    world.cloud.preempt(victim, 120.0)
    world.run(60.0)
    (replaced,) = [at for at, node in launched if node.startswith("good") and at > noticed]
    assert replaced - noticed < 5.0
    since = [at for at in listed if at > noticed - 60.0]
    assert max(later - before for before, later in pairwise(since)) < 10.0
