"""What a hostile node says of itself costs its own job, and never more machines than its limits (P3, P13, P16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from supervisor.market.admission import Cap, QueueRules
from tests.sim.forgeries import HostileJob, ail, forge_notice
from tests.sim.harness import RULES, empty_world, service, submit
from tests.sim.promises import settled

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("forge", "queue", "most"),
    [
        (forge_notice, QueueRules(), 1 + 1),
        (ail, QueueRules(), 1 + 1),
        (forge_notice, QueueRules(job=Cap(nodes=1)), 1),
    ],
)
def test_a_job_whose_nodes_forge_and_fall_silent_never_has_more_machines_than_it_may(
    forge: Callable[[World, Machine], bool], queue: QueueRules, most: int
) -> None:
    rules = replace(
        RULES,
        queue=queue,
        listing_s=5.0,
        max_notice_s={"local": 60.0},
        unhealthy=replace(RULES.unhealthy, memory_s=60.0),
    )
    world = empty_world(rules)
    world.nodes.progress_every_s = 100.0
    evil = HostileJob(world, "evil", forge)
    submit(world, "evil", 1, 1, 1, owner="eve")
    world.run(900.0)
    assert evil.forged >= 3, "it goes on"
    assert evil.most == most
    service(world).commands.cancel("evil")
    assert world.run_until(lambda w: settled(w) and not evil.machines, 120.0)
