"""etcd is put back to an older state while machines train, jobs end and names are used: nothing is ended that it does
not know, nothing is launched for what it does not know to be over, and people are told (P2, P4, 9c)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.market.warm import WarmRules
from supervisor.model import JobState, NodeState
from supervisor.planner.actions import Bootstrap, Clean, Launch, Terminate
from tests.sim.harness import NO_FAULTS, RULES, adopt, alive, machine_of, record, service, submit, training_world
from tests.sim.promises import Promises, jobs_of, settled

pytestmark = pytest.mark.long

LONG_S = 4 * RULES.orphan_grace_s + 60.0
WARM = replace(RULES, warm=WarmRules(keep_s=300.0))


def headline(world: World) -> str:
    return world.daemon.loop.status.headline


def told(world: World) -> list[str]:
    """What people were told of a journal that is not believed."""
    texts = [event.text for event in world.sent if event.kind is EventKind.UNJOURNALED]
    return [text for text in texts if text.startswith("the journal in etcd is not believed")]


def snapshot(world: World) -> int:
    """What to put etcd back to."""
    return len(world.etcd._undo)


def put_back(world: World, before: int, *, down_s: float = 5.0) -> frozenset[str]:
    """etcd is stopped, its data are those of before, and it is started. Returns the keys that changed."""
    world.etcd.down = True
    world.run(down_s)
    lost = world.etcd.roll_back(snapshot(world) - before)
    world.nodes.etcd_rolled_back()
    world.etcd.down = False
    return lost


def until(world: World, name: str, state: JobState, within_s: float = 100.0) -> None:
    assert world.run_until(lambda w: record(w, name).state is state, within_s)


# -- what has ended since ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["runs on", "crashes", "is down meanwhile"])
def test_a_job_that_has_ended_since_is_not_begun_again(how: str) -> None:
    world = World(Conditions(1, NO_FAULTS, RULES))
    world.run(1.0)
    submit(world, "over", 1, 2, 2)
    until(world, "over", JobState.RUNNING)
    world.run(30.0)
    before = snapshot(world)
    service(world).commands.cancel("over")
    assert world.run_until(lambda w: alive(w) == 0, 100.0)
    world.run(30.0)
    if how == "is down meanwhile":
        world.kill(world.daemon)
        put_back(world, before, down_s=20.0)
        world.daemon = world.start_daemon()
    else:
        put_back(world, before)
        if how == "crashes":
            world.crash_daemon()
        world.wake_daemons()
    launched = world.cloud.launched
    world.run(600.0)
    assert world.cloud.launched == launched, "it would train again, and cost money"
    assert len(told(world)) == 1
    assert "the journal in etcd is not believed" in headline(world)
    submit(world, "new", 1, 1, 1)
    until(world, "new", JobState.RUNNING)
    # What the documents say: cancel what is over, then adopt.
    service(world).commands.cancel("over")
    adopt(world)
    assert world.run_until(lambda w: "not believed" not in headline(w), 60.0)
    world.run(120.0)
    assert world.cloud.launched == launched + 1
    assert [event.text for event in world.sent if event.kind is EventKind.SOLVED] == [
        "the journal is believed again: an operator has looked"
    ]


def test_a_job_that_trains_goes_on_and_has_its_replacement_once_an_operator_has_looked() -> None:
    world = World(Conditions(1, NO_FAULTS, RULES))
    world.run(1.0)
    submit(world, "job", 1, 3, 3)
    until(world, "job", JobState.RUNNING)
    world.run(30.0)
    before = snapshot(world)
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(lambda w: alive(w) == 2, 100.0)
    world.run(30.0)
    put_back(world, before)
    world.wake_daemons()
    world.run(300.0)
    assert (alive(world), world.cloud.launched) == (2, 3), "nothing in place of what was given back"
    assert "nothing is launched: `spotsupd adopt`" in world.daemon.loop.status.about("job")
    adopt(world)
    assert world.run_until(lambda w: alive(w) == 3 and record(w).state is JobState.RUNNING, 100.0)


# -- what runs, and is not known ---------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_an_etcd_that_was_restored_without_a_job_and_its_user_ends_none_of_its_machines(restarts: bool) -> None:
    world = restored_before("young", restarts=restarts)
    machines = [each for each in world.cloud.machines.values() if each.node.startswith("young-")]
    world.run(LONG_S)
    assert [(each.alive, each.barred) for each in machines] == [(True, True)] * 3, "they work, and cannot say so"
    older, left = [event.text for event in world.sent if event.kind is EventKind.UNJOURNALED]
    assert older.startswith("the journal in etcd is not believed: it is older than what this daemon has seen of it")
    assert left.startswith(f"3 machines run that are not in the journal ({min(each.node for each in machines)}, ")
    assert "`spotsupd adopt`" in left
    assert "machines run that are not in the journal (young-" in headline(world)
    assert settled_alone(world, "old")
    # What the documents say: submit it again, then adopt.
    submit(world, "young", 2, 3, 4)
    world.run(30.0)
    assert (record(world, "young").state, alive(world)) == (JobState.QUEUED, 4), "it waits for them"
    assert world.daemon.loop.status.about("young").startswith("waits, since machines run that may be its own (young-")
    adopt(world)
    assert world.run_until(settled, 200.0)
    assert all(each.alive for each in machines)
    assert world.nodes.trainings["young"].steps.losses == []


def test_an_etcd_that_is_older_than_a_replacement_gives_its_name_to_no_other() -> None:
    world = training_world()
    before = snapshot(world)
    world.cloud.vanish(machine_of(world, 2))
    world.run(60.0)
    assert record(world).state is JobState.RUNNING
    replacement = max(each.instance.node for each in world.cloud.machines.values())
    losses = len(world.nodes.trainings["job"].steps.losses)  # of the machine that vanished
    world.kill(world.daemon)
    put_back(world, before, down_s=15.0)
    asked: list[str] = []
    world.hooks.action.append(
        lambda _, action: asked.append(action.node.id) if isinstance(action, Launch | Bootstrap) else None
    )
    world.daemon = world.start_daemon()
    for machine in world.cloud.machines.values():
        machine.cut = True  # agents need a while until they are heard again
    world.run(5.0)
    for machine in world.cloud.machines.values():
        machine.cut = False
    world.wake_daemons()
    world.run(60.0)
    assert replacement not in asked, "it would be prepared over the program that runs"
    assert len(world.nodes.trainings["job"].steps.losses) == losses


def test_a_machine_with_a_number_that_the_journal_has_not_given_yet_proves_it_to_be_older() -> None:
    """Also to a daemon on a new host, which has never seen this journal."""
    world = training_world()
    world.run(30.0)
    before = snapshot(world)
    service(world).commands.scale("job", Scale(desired=record(world).desired_nodes + 1))
    assert world.run_until(lambda w: alive(w) == record(w).desired_nodes, 100.0)
    world.run(30.0)
    world.kill(world.daemon)
    world.hooks.step.clear()
    put_back(world, before, down_s=15.0)
    world.mark = None
    for machine in world.cloud.machines.values():
        machine.cut = True
    world.daemon = world.start_daemon()
    count = alive(world)
    world.run(200.0)
    assert alive(world) == count
    assert "machines run that it has not asked for yet (job-" in told(world)[0]


@pytest.mark.parametrize("snapshot_of", [JobState.RUNNING, NodeState.WARM])
def test_a_machine_that_another_job_has_taken_over_since_is_neither_cleaned_nor_ended(snapshot_of: object) -> None:
    """Whether the journal has it as at work for its first job, or as waiting for the next."""
    world = World(Conditions(1, NO_FAULTS, WARM))
    promises = Promises(world)
    world.run(1.0)
    submit(world, "first", 1, 1, 1)
    until(world, "first", JobState.RUNNING)
    world.run(20.0)
    before = snapshot(world)
    service(world).commands.cancel("first")
    (node,) = jobs_of(world)["first"].nodes
    assert world.run_until(lambda w: jobs_of(w)["first"].nodes[node].state is NodeState.WARM, 100.0)
    world.run(5.0)
    if snapshot_of is NodeState.WARM:
        before = snapshot(world)
    submit(world, "second", 1, 1, 1)
    until(world, "second", JobState.RUNNING)
    world.run(20.0)
    promises.etcd_rolled_back(put_back(world, before))
    (machine,) = world.cloud.machines.values()
    done: list[object] = []
    world.hooks.action.append(
        lambda _, action: done.append(action) if isinstance(action, Bootstrap | Clean | Launch | Terminate) else None
    )
    machine.cut = True  # its job's user is not in that etcd
    world.wake_daemons()
    world.run(WARM.warm.keep_s + 600.0)
    assert (machine.alive, done) == (True, [])
    if snapshot_of is NodeState.WARM:
        assert jobs_of(world)["first"].nodes[node].state is NodeState.WARM


# -- words that prove nothing ------------------------------------------------------------------------------


def test_a_forged_node_keeps_no_machine_that_waits_for_the_next_job() -> None:
    """Anything may write a key below its own job: it says nothing of other jobs' machines."""
    world = World(Conditions(1, NO_FAULTS, WARM))
    world.run(1.0)
    for name in ("liar", "first"):
        submit(world, name, 1, 1, 1)
        until(world, name, JobState.RUNNING)
    service(world).commands.cancel("first")
    world.run(30.0)
    own = next(iter(jobs_of(world)["liar"].nodes))
    forged, folder = f"{own.rpartition('-')[0]}-77", "/spotsup/sim/world/run/liar/agent/"
    said = world.etcd.keys[f"{folder}{own}"].value.replace(own.encode(), forged.encode())
    world.etcd.put(f"{folder}{forged}", said)
    world.wake_daemons()
    world.run(WARM.warm.keep_s + 60.0)
    assert {node.state for node in jobs_of(world)["first"].nodes.values()} == {NodeState.GONE}


# -- helpers -----------------------------------------------------------------------------------------------


def restored_before(name: str, *, restarts: bool) -> World:
    """etcd, with its users, is what it was before a job was submitted that trains now."""
    world = World(Conditions(1, NO_FAULTS, RULES))
    promises = Promises(world)
    world.nodes.progress_every_s = 100.0
    world.run(1.0)
    submit(world, "old", 1, 1, 1)
    assert world.run_until(settled, 60.0)
    before = snapshot(world)
    submit(world, name, 2, 3, 4)
    assert world.run_until(settled, 60.0)
    world.run(20.0)
    promises.etcd_rolled_back(put_back(world, before))
    assert list(jobs_of(world)) == ["old"]
    world.crash_daemon() if restarts else world.wake_daemons()
    return world


def settled_alone(world: World, name: str) -> bool:
    nodes = [each for each in jobs_of(world)[name].nodes.values() if each.state is not NodeState.GONE]
    return record(world, name).state is JobState.RUNNING and len(nodes) == record(world, name).desired_nodes
