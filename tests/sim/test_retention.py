"""What a job leaves in etcd stays small, however long it runs and however many nodes it has used up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.etcd import CLUSTER
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World
from spotsup_trainer.wire import Ended, encode

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.api.submit.submissions import MAX_CODE_DELETIONS
from supervisor.errors import UsageError
from supervisor.model import JobState, NodeState
from tests.sim.harness import RULES, empty_world, in_state, service, submit
from tests.sim.promises import jobs_of, settled

NODES = 32
KEPT = replace(RULES, gone_kept=20, events_kept=50)


def wide_world(nodes: int) -> World:
    """A job of many nodes. The checks of each step are for small worlds: they would take minutes here."""
    world = empty_world(KEPT)
    world.hooks.step.clear()
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
    return [key for key in world.etcd.keys if key.startswith(prefix)]


@pytest.mark.long
def test_64_nodes_that_are_lost_at_once_are_more_than_one_transaction_takes_and_all_are_replaced() -> None:
    world = wide_world(64)
    lost = {machine.instance.node for machine in lose_all(world)}
    assert world.run_until(lambda w: not in_state(JobState.RUNNING)(w), 30.0)
    assert world.run_until(settled, 120.0)
    job = jobs_of(world)["job"]
    assert job.round is not None
    assert not lost & set(job.round.nodes())
    service(world).commands.scale("job", Scale(desired=1))
    assert world.run_until(settled, 60.0)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_thousand_nodes_one_after_the_other_leave_few_keys() -> None:
    world = wide_world(NODES)
    keys, used = world.nodes.keys, NODES
    while used <= 1000:
        for machine in lose_all(world):
            node = machine.instance.node
            world.etcd.put(f"{keys.logs('job', node)}00000000", b"output")
            world.etcd.put(keys.ended("job", node), encode(Ended(node, "left", 0, "asked to leave", 0.0)))
            world.etcd.put(keys.notice("job", node), b'{"node":"n","deadline":0,"seen_at":0,"source":"test"}')
        assert world.run_until(lambda w: not in_state(JobState.RUNNING)(w), 30.0)
        assert world.run_until(in_state(JobState.RUNNING), 60.0)
        used += NODES
    assert world.run_until(settled, 60.0)
    late = next(node.id for node in jobs_of(world)["job"].nodes.values() if node.state is NodeState.GONE)
    world.etcd.put(keys.ended("job", late), encode(Ended(late, "left", 0, "asked to leave", 0.0)))
    world.etcd.put(keys.ended("job", "job-stray-7"), encode(Ended("job-stray-7", "left", 0, "stray", 0.0)))
    for number in range(30):  # commands write events, too
        service(world).commands.scale("job", Scale(desired=NODES - number % 2))
    assert world.run_until(settled, 60.0)
    world.run(10.0)
    job = jobs_of(world)["job"]
    assert job.record.next_node > 1000
    assert sum(node.state is NodeState.GONE for node in job.nodes.values()) == KEPT.gone_kept
    assert (job.tombstones, dict(job.notices), dict(job.exits)) == (frozenset(), {}, {})
    # Per node that is there: its record and two leases. Of the job: record, hint, round, progress.
    assert len(keys_below(world, keys.world)) <= 3 * NODES + KEPT.gone_kept + 4
    assert len(keys_below(world, keys.logs("job"))) <= KEPT.gone_kept
    assert len(world.journal.events("job")) <= KEPT.events_kept


# -- code --------------------------------------------------------------------------------------------------


def submit_code(world: World, name: str, code: bytes) -> str:
    """A job of one node that runs this code; where the code is."""
    digest = service(world).submissions.put_blob(code)
    service(world).submissions.submit(
        {"name": name, "nodes": 1, "run": "train.py"}, digest, f"{name} at {world.clock.now()}"
    )
    return f"/spotsup/{CLUSTER}/blobs/{digest}/"


def end(world: World, name: str) -> None:
    """Cancelled, and all its machines are gone."""
    service(world).commands.cancel(name)

    def is_over(now: World) -> bool:
        job = jobs_of(now)[name]
        return job.record.ended and all(node.state is NodeState.GONE for node in job.nodes.values())

    assert world.run_until(is_over, 120.0)


def test_code_is_deleted_once_no_job_needs_it() -> None:
    world = empty_world()
    first = submit_code(world, "one", b"first")
    shared = submit_code(world, "two", b"shared")
    submit_code(world, "three", b"shared")
    world.run(30.0)
    end(world, "one")
    end(world, "two")
    assert keys_below(world, first), "until a job is submitted"
    second = submit_code(world, "two", b"second")
    assert not keys_below(world, first)
    assert keys_below(world, shared), "another job runs it"
    end(world, "two")
    end(world, "three")
    submit_code(world, "two", b"shared")
    assert not keys_below(world, second), "its name is another job's now"
    assert keys_below(world, shared), "it was asked for again"
    world.run(30.0)
    assert jobs_of(world)["two"].record.state is JobState.RUNNING


@pytest.mark.long
def test_of_many_jobs_that_ended_the_code_of_the_last_ones_is_deleted() -> None:
    world = empty_world()
    names = [f"job-{number}" for number in range(MAX_CODE_DELETIONS + 1)]
    codes = [submit_code(world, name, name.encode()) for name in names]
    for name in names:
        end(world, name)
    submit_code(world, "new", b"new")
    assert [bool(keys_below(world, code)) for code in codes] == [True, *[False] * MAX_CODE_DELETIONS]


def test_code_that_is_needed_at_the_moment_of_its_deletion_is_kept_or_the_user_gets_an_error() -> None:
    world = empty_world()
    code = submit_code(world, "old", b"code")
    world.run(30.0)
    end(world, "old")
    digest = code.rstrip("/").rpartition("/")[2]
    client, journal = world.daemon.client, world.daemon.journal

    def ask() -> None:
        submit_code(world, "new", b"code")

    client.before_txn = ask
    assert not journal.delete_code(digest, world.etcd.revision), "a job has come that needs it"
    assert keys_below(world, code)
    end(world, "new")

    def forget() -> None:
        assert journal.delete_code(digest, world.etcd.revision)

    stored = service(world)
    stored.submissions.put_blob(b"code")
    client.before_txn = forget
    with pytest.raises(UsageError, match="the job's code was not uploaded"):
        stored.submissions.submit({"name": "newest", "nodes": 1, "run": "train.py"}, digest, "newest")
    assert "newest" not in jobs_of(world)


def test_code_that_was_uploaded_again_waits_for_its_job() -> None:
    world = empty_world()
    code = submit_code(world, "old", b"code")
    end(world, "old")
    digest = service(world).submissions.put_blob(b"code")
    submit_code(world, "another", b"another")
    assert keys_below(world, code)
    service(world).submissions.submit({"name": "new", "nodes": 1, "run": "train.py"}, digest, "new")
    end(world, "new")
    submit_code(world, "another-1", b"another")
    assert not keys_below(world, code)


def test_code_that_is_deleted_while_it_is_uploaded_again_is_whole() -> None:
    world = empty_world()
    digest = submit_code(world, "old", b"code").rstrip("/").rpartition("/")[2]
    end(world, "old")
    journal = world.daemon.journal

    def forget() -> None:
        assert journal.delete_code(digest, world.etcd.revision)

    world.daemon.client.before_txn = forget
    assert service(world).submissions.put_blob(b"code") == digest
    assert journal.get_blob(digest) == b"code"
