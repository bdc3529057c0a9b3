"""Jobs with a deadline in the simulated world."""

from __future__ import annotations

from provisioners.base import Market
from supervisor.model import JobState
from tests.sim.harness import empty_world, record, submit
from tests.sim.promises import settled
from tests.sim.test_markets import markets

MINUTE_S = 60.0


def test_a_job_waits_for_spot_as_long_as_its_deadline_allows_and_then_pays() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 2, 2, 2, market="spot-then-on-demand", finish_by="60m", work="30m")
    world.run(9 * MINUTE_S)
    assert markets(world) == []
    assert record(world).state is JobState.WAITING
    assert world.run_until(settled, 3 * MINUTE_S), "the time that it can lose is nearly used up"
    assert markets(world) == [Market.ON_DEMAND] * 2
    assert record(world).deadline.finish_by - world.clock.now() > 30 * MINUTE_S
