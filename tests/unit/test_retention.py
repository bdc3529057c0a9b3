"""What a job leaves in etcd stays small, however long it runs and however many nodes it has used up."""

from __future__ import annotations

from dataclasses import replace

from spotsup_trainer.wire import Ended, encode

from provisioners.base import EndCause
from supervisor.api.service import Scale
from supervisor.model import JobState, NodeState
from tests.sim.promises import settled, truth
from tests.sim.scenes import RULES, empty_world, in_state, service, submit
from tests.sim.world import Machine, World

NODES = 32
KEPT = replace(RULES, gone_kept=20, events_kept=50)


def wide_world(nodes: int) -> World:
    """A job of many nodes. The checks of each step are for small worlds: they would take minutes here."""
    world = empty_world(KEPT)
    world.checks.clear()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 4 * nodes)
    submit(world, "job", 1, nodes, nodes)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    return world


def lose_all(world: World) -> list[Machine]:
    """Every machine vanishes at the same moment."""
    alive = [machine for machine in world.cloud.machines.values() if machine.alive]
    for machine in alive:
        world.cloud.end(machine, EndCause.PREEMPTED)
    return alive


def keys_below(world: World, prefix: str) -> list[str]:
    """What etcd holds there."""
    return [key for key in world.store.keys if key.startswith(prefix)]


def test_64_nodes_that_are_lost_at_once_are_more_than_one_transaction_takes_and_all_are_replaced() -> None:
    world = wide_world(64)
    lost = {machine.instance.node for machine in lose_all(world)}
    assert world.run_until(lambda w: not in_state(JobState.RUNNING)(w), 30.0)
    assert world.run_until(settled, 120.0)
    job = truth(world)["job"]
    assert job.round is not None
    assert not lost & set(job.round.nodes())
    service(world).scale("job", Scale(desired=1))
    assert world.run_until(settled, 60.0)


def test_a_thousand_nodes_one_after_the_other_leave_few_keys() -> None:
    world = wide_world(NODES)
    keys, used = world.nodes.keys, NODES
    while used <= 1000:
        for machine in lose_all(world):
            node = machine.instance.node
            world.store.put(f"{keys.logs('job', node)}00000000", b"output")
            world.store.put(keys.ended("job", node), encode(Ended(node, "left", 0, "told to leave", 0.0)))
            world.store.put(keys.notice("job", node), b'{"node":"n","deadline":0,"seen_at":0,"source":"test"}')
        assert world.run_until(lambda w: not in_state(JobState.RUNNING)(w), 30.0)
        assert world.run_until(in_state(JobState.RUNNING), 60.0)
        used += NODES
    assert world.run_until(settled, 60.0)
    late = next(node.id for node in truth(world)["job"].nodes.values() if node.state is NodeState.GONE)
    world.store.put(keys.ended("job", late), encode(Ended(late, "left", 0, "told to leave", 0.0)))
    world.store.put(keys.ended("job", "job-nobody-7"), encode(Ended("job-nobody-7", "left", 0, "stray", 0.0)))
    for number in range(30):  # commands write events, too
        service(world).scale("job", Scale(desired=NODES - number % 2))
    assert world.run_until(settled, 60.0)
    world.run(10.0)
    job = truth(world)["job"]
    assert job.record.next_node > 1000
    assert sum(node.state is NodeState.GONE for node in job.nodes.values()) == KEPT.gone_kept
    assert (job.tombstones, dict(job.notices), dict(job.ended)) == (frozenset(), {}, {})
    # Per node that is there: its record and two leases. Of the job: record, hint, round, progress.
    assert len(keys_below(world, keys.world)) <= 3 * NODES + KEPT.gone_kept + 4
    assert len(keys_below(world, keys.logs("job"))) <= KEPT.gone_kept
    assert len(world.journal.events("job")) <= KEPT.events_kept
