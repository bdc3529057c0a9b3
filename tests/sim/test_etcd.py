"""What the simulated etcd has in common with the real one, and what that does to daemons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from supervisor.api.service import Service
from supervisor.journal.journal import Journal
from supervisor.model import JobState
from tests.sim.harness import NO_FAULTS, empty_world, in_state, submit, wait_in
from tests.sim.promises import jobs_of


def test_a_mirror_shows_no_revision_of_a_leader_that_writes_its_key_again() -> None:
    world = empty_world()
    world.run(60.0)
    client, etcd = world.daemon.client, world.etcd
    seen = client.view()
    store = etcd.revision
    world.run(60.0)
    assert etcd.revision > store
    assert client.view() is seen
    client.lose_watch(0.5)
    world.run(1.0)
    assert client.view().revision == etcd.revision > etcd.mirrored_revision  # all keys were read again
    assert world.etcd.txn([], []).revision == etcd.revision


def test_a_daemon_goes_on_although_a_commit_of_its_own_wrote_nothing() -> None:
    """A bootstrap that is tried again is an action without a change of any record."""
    world = empty_world()
    submit(world, "job", 1, 1, 1)
    assert world.run_until(lambda w: bool(w.cloud.machines), 20.0)
    (machine,) = world.cloud.machines.values()
    machine.silent = True
    world.run(20.0)
    (node,) = jobs_of(world)["job"].nodes.values()
    assert node.error == "the connection broke"
    machine.silent = False
    assert world.run_until(in_state(JobState.RUNNING), 60.0), world.daemon.loop.status


class SendsTwice:
    """A journal whose connection breaks: what creates a job arrives, and its repetition is refused."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def create_job(self, *given: Any) -> bool:
        return self._journal.create_job(*given) and self._journal.create_job(*given)


def test_a_submission_that_is_sent_twice_is_stored_and_not_refused() -> None:
    world = empty_world(rates=replace(NO_FAULTS, mirror_lag_s=0.9))
    daemon = world.daemon
    journal: Any = SendsTwice(daemon.journal)
    api = Service(journal, daemon.leader, world.clock, ["local"], wait_in(world), hosted=["local"])
    spec = {"name": "job", "nodes": {"min": 1, "desired": 1, "max": 1}, "run": "train.py"}
    stored = api.submissions.submit(spec, api.submissions.put_blob(b"code"), "once")
    assert stored.record.uid == jobs_of(world)["job"].record.uid
