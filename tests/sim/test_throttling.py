"""A cloud that takes so many requests a second: jobs share what it takes, and ask it little more often than that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from spotsup_simulator.world import World

from supervisor.api.security.throttle import Throttle
from supervisor.model import NodeState
from tests.sim.harness import empty_world, service, submit
from tests.sim.promises import jobs_of
from tests.support.combinations import others_nightly

pytestmark = pytest.mark.long

NODES, JOBS = 40, 2


def bucket(size: float, per_s: float) -> Callable[[float], bool]:
    """So many requests at once, and so many more per second: EC2's RunInstances has 5 and 2 ("request throttling")."""
    throttle = Throttle(size, per_s)
    return lambda now: throttle.wait_s("", now) > 0.0


def test_a_node_that_has_had_no_turn_yet_goes_with_its_job() -> None:
    world = empty_world()
    world.cloud.is_too_many = bucket(2.0, 0.02)
    submit(world, "first", 1, 8, 8)
    world.run(10.0)
    submit(world, "next", 4, 4, 4)
    world.run(2.0)
    waiting = jobs_of(world)["next"].nodes.values()
    assert {node.launch_attempts for node in waiting} == {0}
    service(world).commands.cancel("next")
    world.run(20.0)
    assert {node.state for node in jobs_of(world)["next"].nodes.values()} == {NodeState.GONE}


def granted(world: World) -> int:
    return sum(bool(node.instance_id) for job in jobs_of(world).values() for node in job.nodes.values())


BUCKETS = [(5.0, 2.0, 60.0, 240), (20.0, 20.0, 20.0, 140), (5.0, 0.5, 200.0, 240)]


@pytest.mark.parametrize(("size", "per_s", "seconds", "calls"), others_nightly(BUCKETS[:2], BUCKETS))
def test_requests_beyond_a_bucket_come_again_one_after_another(
    size: float, per_s: float, seconds: float, calls: int
) -> None:
    world = empty_world()
    world.cloud.is_too_many = bucket(size, per_s)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, NODES * JOBS)
    for number in range(JOBS):
        submit(world, f"job{number}", 1, NODES, NODES)
    assert world.run_until(lambda w: granted(w) == NODES * JOBS, seconds), granted(world)
    assert world.cloud.launch_calls <= calls


def test_a_node_that_a_throttled_cloud_has_not_refused_yet_does_not_wait_for_the_others() -> None:
    world = empty_world()
    world.cloud.is_too_many = bucket(5.0, 0.5)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, NODES * JOBS)
    submit(world, "large", 1, NODES, NODES)
    assert world.run_until(lambda w: granted(w) >= 5, 30.0)
    world.cloud.is_too_many = lambda _: False
    submit(world, "small", 1, 1, 1)
    assert world.run_until(lambda w: all(n.instance_id for n in jobs_of(w)["small"].nodes.values()), 3.0)
