"""A running daemon whose etcd is emptied, or restored from a backup: real etcd, mirror, leader election and loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from provisioners.base import Instance, InstanceState, Owner
from supervisor.events import EventKind
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from supervisor.model import Event, JobRecord
from supervisor.planner.actions import (
    Action,
    FetchOffers,
    LeftoversDone,
    ListDone,
    ListInstances,
    ListLeftovers,
    OffersDone,
    Outcome,
)
from supervisor.planner.world import Rules
from supervisor.runtime.clock import Clock, SystemClock
from supervisor.runtime.leader import Leadership
from supervisor.runtime.loop import Loop
from supervisor.spec import parse_spec
from tests.support.etcd_server import EtcdServer, etcd_server

pytestmark = pytest.mark.long

KEYS = Keys("test")
SPEC = parse_spec({"name": "job", "nodes": 1, "run": "train.py", "placement": {"cloud": "local"}})
NODE = "job-abcde-1"
MACHINE = Instance("i-1", Owner("test", "mark"), NODE, NODE, "r", "z", "small", InstanceState.RUNNING, 1.0, "10.0.0.1")


class Lister:
    """An actor that lists instances, and refuses everything else."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.machines: tuple[Instance, ...] = ()
        self.listed = 0
        self._done: list[tuple[Action, Outcome]] = []

    def start(self, action: Action) -> None:
        """Run it at once."""
        now = self._clock.now()
        match action:
            case ListInstances(cloud):
                self.listed += 1
                self._done.append((action, ListDone(cloud, now, self.machines)))
            case ListLeftovers(cloud):
                self._done.append((action, LeftoversDone(cloud, now)))
            case FetchOffers(job=job):
                self._done.append((action, OffersDone(job, now)))
            case _:
                raise AssertionError(f"{action} must not run")

    def collect(self) -> list[tuple[Action, Outcome]]:
        """The outcomes so far."""
        done, self._done = self._done, []
        return done


class Daemon:
    """A loop with its journal and its leader election."""

    def __init__(self, etcd: Etcd, stack: ExitStack, clock: Clock | None = None) -> None:
        store = EtcdStore(etcd, KEYS.world)
        store.start(20.0)
        stack.callback(store.close)
        clock = clock or SystemClock()
        self.journal, self.cloud = Journal(store, KEYS), Lister(clock)
        self.leader = leader = Leadership(etcd, f"{KEYS.root}leader", "me", 2.0)
        stack.callback(leader.stop)
        rules = Rules(listing_s=0.2)
        self.loop = Loop(self.journal, leader, self.cloud, clock, rules, ("local",), etcd_problem=leader.etcd_problem)
        leader.start()

    def tick_until(self, predicate: Callable[[], bool]) -> None:
        """Tick until the predicate holds, at most for 30 s."""
        deadline = time.monotonic() + 30.0
        while not predicate():
            assert time.monotonic() < deadline, self.loop.status
            self.loop.tick()
            time.sleep(0.02)

    def submit(self, name: str) -> None:
        """Store a job for which no machine can be had; return once the loop has written its first hint."""
        record = JobRecord(name, "abcde", SPEC.model_copy(update={"name": name}), "0" * 64, time.time(), 1, 1, 1)
        assert self.journal.create_job(record, Event(f"{name}-1", 0.0, name, EventKind.SUBMITTED, "submitted"), None)
        self.tick_until(lambda: name in (jobs := self.journal.read().jobs) and jobs[name].hint is not None)


@contextmanager
def running(folder: Path, clock: Clock | None = None) -> Iterator[tuple[EtcdServer, Daemon]]:
    with etcd_server(folder) as server, ExitStack() as stack:
        etcd = Etcd([server.endpoint], timeout_s=1.0)
        stack.callback(etcd.close)
        daemon = Daemon(etcd, stack, clock)
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 0 jobs")
        yield server, daemon


def test_an_etcd_that_is_emptied_under_a_running_daemon_terminates_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as (server, daemon):
        daemon.submit("job")
        server.kill()
        server.empty()
        daemon.cloud.machines = (MACHINE,)
        assert server.start()
        expected = "etcd has no journal of this cluster, but its machines run (job-abcde-1): nothing is done"
        daemon.tick_until(lambda: daemon.loop.status.headline.startswith(expected))
        daemon.cloud.machines = ()
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 0 jobs")


def test_a_daemon_goes_on_with_an_etcd_that_was_restored_from_a_backup(tmp_path: Path) -> None:
    with running(tmp_path) as (server, daemon):
        daemon.submit("job")
        server.kill()
        server.save()
        assert server.start()
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 1 job")
        for number in range(5):
            daemon.submit(f"later-{number}")
        revision = daemon.journal.read().revision
        server.kill()
        server.restore()
        assert server.start()
        daemon.tick_until(lambda: "etcd was restored from a backup" in daemon.loop.status.headline)
        daemon.submit("next")
        assert daemon.journal.read().revision < revision, "the revisions were counted again"


def test_a_daemon_knows_without_etcd_when_its_lease_may_have_ended(tmp_path: Path) -> None:
    with running(tmp_path) as (server, daemon):
        assert daemon.leader.lease_valid()
        server.freeze()
        daemon.tick_until(lambda: not daemon.leader.lease_valid())
        assert daemon.leader.leading, "it does not know yet"
        server.thaw()
        daemon.tick_until(daemon.leader.lease_valid)
