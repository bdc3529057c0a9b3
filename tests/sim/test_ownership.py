"""Other installations in the account, with our cluster's name and even our nodes': nothing of theirs is touched."""

from __future__ import annotations

import pytest
from spotsup_simulator.cloud import OTHERS, OWNER
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.world import World

from supervisor.api.jobs.changes import Scale
from supervisor.model import NodeState
from supervisor.planner.world import CLOCKS_S
from tests.sim.harness import RULES, adopt, empty_world, service, submit, training_world
from tests.sim.promises import jobs_of, settled

# On its worst day a cloud's listing ignores what it was asked for.
UNFILTERED = FaultRates(unfiltered=1.0)


def crowd(world: World) -> None:
    """Every other installation has a machine with a name of ours, a stopped one with its own, and what one left."""
    ours = [machine.instance.node for machine in world.cloud.machines.values()] or ["job-abcde-1"]
    for number in range(2 * len(OTHERS)):
        node = ours[number % len(ours)] if number < len(OTHERS) else f"job-other-{number}"
        world.cloud.add_other(number, node, stopped=number >= len(OTHERS))
    world.set_fault_rates(UNFILTERED)


@pytest.mark.long
def test_nothing_of_other_installations_is_ended_removed_or_taken_over() -> None:
    world = training_world()
    world.run(2 * CLOCKS_S)
    crowd(world)
    world.cloud.add_unjournaled("job-gone-1")
    world.cloud.add_leftover("disk-1", "job-gone-2")
    submit(world, "another", 1, 2, 2)
    world.run(3 * (RULES.leftovers_s + RULES.orphan_grace_s))
    assert settled(world), "ours were ended, and jobs have their own machines"
    assert not world.cloud.leftover_by_id
    assert not world.cloud.wronged
    assert world.cloud.others.keys() < {each.id for each in world.cloud.instances(OWNER, 1.0)}, "they were shown"


def test_a_machine_of_others_under_our_token_is_not_taken_for_one_whose_reply_was_lost() -> None:
    world = training_world(1, 1, 2)
    job = jobs_of(world)["job"].record
    node = f"{job.task_id}-{job.next_node}"
    world.cloud.add_other(0, "job-other-1")
    world.set_fault_rates(FaultRates(unfiltered=1.0, lost_reply=1.0))
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(lambda w: node in w.cloud.by_token, 30.0)
    world.run(30.0)
    assert jobs_of(world)["job"].nodes[node].instance_id in {"", *world.cloud.machines}
    world.set_fault_rates(FaultRates())
    assert world.run_until(settled, 120.0)


def test_machines_of_others_do_not_keep_a_new_journal_from_beginning() -> None:
    world = empty_world()
    crowd(world)
    for key in list(world.etcd.keys):
        world.etcd.delete(key)
    world.crash_daemon()
    assert world.run_until(lambda w: w.daemon.journal.read().cluster is not None, 30.0)
    submit(world, "job", 1, 1, 1)
    assert world.run_until(settled, 60.0)


def test_machines_of_others_are_not_adopted() -> None:
    world = training_world()
    crowd(world)
    node = next(iter(jobs_of(world)["job"].nodes))
    world.etcd.delete(f"/spotsup/sim/world/nodes/job/{node}")
    world.run(1.0)
    (adopted,) = adopt(world)
    assert [each.id for each in adopted.nodes] == [node]
    assert not {each.instance_id for each in adopted.nodes} & world.cloud.others.keys()


def test_a_silent_node_whose_machine_cannot_be_read_is_kept_as_long_as_it_trains() -> None:
    world = training_world()
    world.run(RULES.consistency_s)
    machine = next(iter(world.cloud.machines.values()))
    machine.cut = True
    world.set_fault_rates(FaultRates(unreadable=1.0))
    world.run(1200.0)
    assert jobs_of(world)["job"].nodes[machine.instance.node].state is NodeState.SUSPECT
    assert machine.ended_at is None
    world.set_fault_rates(FaultRates())
    machine.cut = False
    assert world.run_until(settled, 120.0)


def test_an_orphan_that_can_be_read_now_and_then_is_ended() -> None:
    world = training_world()
    world.run(2 * CLOCKS_S)
    world.cloud.add_unjournaled("job-gone-1")
    world.set_fault_rates(FaultRates(unreadable=0.5))
    orphan = next(each for each in world.cloud.machines.values() if each.instance.node == "job-gone-1")
    assert world.run_until(lambda _: orphan.ended_at is not None, 3 * RULES.orphan_grace_s)
