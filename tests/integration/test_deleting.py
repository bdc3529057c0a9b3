"""Ended jobs are deleted from a real etcd: all of them, once and for good, also where etcd is full."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.etcd import Compare, Etcd, EtcdRefusedError
from spotsup_trainer.wire import CaBundle, Keys, Progress, Tombstone, encode

from supervisor.api.service import Service
from supervisor.billing import Booking, Purpose, Spent, month_of
from supervisor.budget import BudgetRecord
from supervisor.curve import Curve, Point
from supervisor.errors import CommandRefusedError, JournalFullError, NotFoundError
from supervisor.events import EventKind
from supervisor.features.retention.record import RetentionRules
from supervisor.journal.codec import dump, load
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from supervisor.model import ClusterRecord, Event, JobRecord, JobState, PastRun
from supervisor.new_job import new_job
from supervisor.planner.actions import Commit
from supervisor.planner.world import JobView
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.retention import Retention
from supervisor.spec import parse_spec
from tests.chaos import space
from tests.integration.test_lost_journal import Daemon
from tests.support.etcd_server import etcd_server
from tests.support.waiting import until
from tests.unit.scene import N, node

KEYS = Keys("test")
NOW = time.time()
LEADER = f"{KEYS.root}leader"
CURVE = Curve(Point(1.0, 1, 0, 0, None, 1, 0.0), 1, 0, 1.0)


def record(name: str, digest: str = "", usd: float = 0.0, ended_at: float = NOW) -> JobRecord:
    """Of an ended job. `usd`: spent this month."""
    job = new_job(parse_spec({"name": name, "nodes": 1, "run": "train.py"}), digest, f"{name}, once", ended_at - 60)
    billing = replace(job.billing, dropped=(Booking(month_of(NOW), Purpose.USEFUL, 60.0, usd),) if usd else ())
    return replace(job, owner="ann", state=JobState.SUCCEEDED, ended_at=ended_at, billing=billing)


def store(etcd: Etcd, job: JobRecord) -> None:
    """All that there may be of an ended job."""
    name, event = job.name, Event(f"{job.task_id}-000001", NOW, job.name, EventKind.SUBMITTED, "submitted")
    gone = node(1, N.GONE, job=name, id=f"{job.task_id}-1", launched_at=0.0)
    for key, value in {
        f"{KEYS.world}jobs/{name}": dump(job),
        f"{KEYS.world}nodes/{name}/{gone.id}": dump(gone),
        f"{KEYS.run(name)}progress": encode(Progress(1, 1, NOW, NOW)),
        KEYS.tombstone(name, gone.id): encode(Tombstone(gone.id, "it left", NOW)),
        KEYS.ca(name): encode(CaBundle("a CA")),
        f"{KEYS.logs(name, gone.id)}000001": b"step 1",
        f"{KEYS.root}events/{name}/{event.id}": dump(event),
        f"{KEYS.root}curves/{name}/{job.task_id}": dump(CURVE),
        f"{KEYS.root}past/{name}/000001": dump(PastRun(job, (), None)),
    }.items():
        etcd.put(key, value)


def keys_of(etcd: Etcd, name: str) -> list[str]:
    return [kv.key for kv in etcd.range(KEYS.root).kvs if name in kv.key.split("/")]


def view_of(journal: Journal, name: str) -> JobView:
    until(lambda: name in journal.read().jobs)
    return journal.read().jobs[name]


def service(journal: Journal) -> Service:
    def wait_for(predicate: Callable[[Any], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not predicate(journal.read()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    class Nobody:
        leading, leader = False, "another"

        def guard(self) -> tuple[Compare, ...]:
            """It commits nothing."""
            return ()

    return Service(journal, Nobody(), SystemClock(), ["local"], wait_for, hosted=["local"])


def test_all_of_a_job_goes_and_no_late_write_brings_part_of_it_back(etcd: Etcd, journal: Journal) -> None:
    digest = journal.put_blob(b"code")
    store(etcd, record("job", digest, usd=3.0))
    for other in ("jo", "job-2", "other-job"):
        store(etcd, record(other))
    others = {other: keys_of(etcd, other) for other in ("jo", "job-2", "other-job")}
    assert len(keys_of(etcd, "job")) == len(others["jo"]) == 9
    before = view_of(journal, "job")

    assert service(journal).commands.delete("job").record == before.record
    assert keys_of(etcd, "job") == []
    assert {other: keys_of(etcd, other) for other in others} == others
    assert journal.find_blob(digest) is None
    until(lambda: journal.read().budgets is not None)
    budgets = journal.read().budgets
    assert budgets is not None
    assert budgets.deleted == (Spent("ann", month_of(NOW), 3.0),)

    event = Event("late", NOW, "job", EventKind.ROUND, "late")
    late = Commit(job="job", guards={"job": before.revision}, job_record=before.record, events=[event])
    assert not journal.commit(late, ())
    assert not journal.update_job(before, before.record, event)
    assert not journal.put_curve(before.record, CURVE, ())
    assert not journal.create_job(before.record, event, before)
    assert not journal.delete_job(before, NOW), "what it has spent counts once"
    assert keys_of(etcd, "job") == []
    with pytest.raises(NotFoundError, match="no job is named 'job'"):
        service(journal).commands.delete("job")
    digest = journal.put_blob(b"code")
    again = service(journal).submissions.submit({"name": "job", "nodes": 1, "run": "train.py"}, digest, "another one")
    assert again.record.run == 1, "the name is free"


def test_several_are_deleted_at_once_by_two_daemons_and_every_dollar_counts_once(etcd: Etcd, journal: Journal) -> None:

    names = [f"job-{number}" for number in range(8)]
    for name in names:
        store(etcd, record(name, usd=2.0))
    until(lambda: len(journal.read().jobs) == len(names))
    with closing(EtcdStore(etcd, KEYS.world)) as second, ThreadPoolExecutor(4) as pool:
        second.start(10.0)
        services = [service(journal), service(Journal(second, KEYS))]
        deleted = list(
            pool.map(lambda number: services[number % 2].commands.delete(names[number]).name, range(len(names)))
        )
    assert deleted == names
    until(lambda: not journal.read().jobs)
    budgets = journal.read().budgets
    assert budgets is not None
    assert budgets.deleted == (Spent("ann", month_of(NOW), 16.0),)


def test_the_leader_deletes_what_is_old_and_nobody_else_does(etcd: Etcd, journal: Journal) -> None:
    digest = journal.put_blob(b"code")
    for name, days in (("old", 400.0), ("older", 500.0), ("new", 1.0)):
        store(etcd, record(name, digest if name == "old" else "", ended_at=NOW - days * 86400))
    until(lambda: len(journal.read().jobs) == 3)
    held = etcd.put(LEADER, b"me")
    cluster = ClusterRecord(1.0, "me", doubted_at=NOW, doubt="it was put back")
    etcd.put(f"{KEYS.world}cluster", dump(cluster))
    until(lambda: journal.read().cluster is not None)
    rules = RetentionRules(ended_jobs_days=365.0)
    leader = Retention(journal, SystemClock(), lambda: (Compare(LEADER, "mod", held),), rules)
    assert leader.run() == "", "an ended job of a journal that was put back may have machines"
    with pytest.raises(CommandRefusedError, match=r"machines of old may run that it does not know: .*`spotsupd adopt`"):
        service(journal).commands.delete("old")
    etcd.put(f"{KEYS.world}cluster", dump(replace(cluster, doubted_at=0.0)))
    until(lambda: journal.read().cluster == replace(cluster, doubted_at=0.0))
    foreign = Retention(journal, SystemClock(), lambda: (Compare(LEADER, "mod", held + 1),), rules)
    assert foreign.run() == ""
    assert set(journal.read().jobs) == {"old", "older", "new"}
    assert leader.run() == "deleted jobs that ended long ago: older, old"
    until(lambda: set(journal.read().jobs) == {"new"})
    assert keys_of(etcd, "old") == keys_of(etcd, "older") == []
    assert journal.find_blob(digest) is None
    assert leader.run() == ""


def print_much(etcd: Etcd, name: str) -> None:
    """Fill etcd with what a job has printed."""
    for number in range(100):
        etcd.put(f"{KEYS.logs(name, f'{name}-1')}{number:06d}", bytes(500_000))


@pytest.mark.long
def test_an_etcd_that_ended_jobs_have_filled_is_freed_by_deleting_them(tmp_path: Path) -> None:
    options = ("--quota-backend-bytes", str(8 * 2**20))
    with etcd_server(tmp_path, options) as server, ExitStack() as stack:
        etcd = stack.enter_context(closing(Etcd([server.endpoint], timeout_s=5.0)))
        daemon = Daemon(etcd, stack)
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 0 jobs")
        store(etcd, record("cheap", ended_at=NOW - 40 * 86400))
        store(etcd, record("costly", usd=3.0))
        daemon.tick_until(lambda: len(daemon.journal.read().jobs) == 2)
        with pytest.raises(EtcdRefusedError, match="space exceeded"):
            print_much(etcd, "cheap")
        daemon.tick_until(lambda: "etcd refuses writes" in daemon.loop.status.headline)

        api = service(daemon.journal)
        with pytest.raises(JournalFullError, match=r"costly has cost money this month: .*Delete jobs first that cost"):
            api.commands.delete("costly")
        assert api.commands.delete("cheap").name == "cheap"
        assert keys_of(etcd, "cheap") == []
        assert f"{KEYS.world}jobs/costly" in keys_of(etcd, "costly")
        space.free([server.endpoint])
        daemon.tick_until(lambda: "etcd refuses" not in daemon.loop.status.headline)
        assert api.commands.delete("costly").name == "costly"
        stored = etcd.get(f"{KEYS.world}budgets")
        assert stored is not None

        assert load(BudgetRecord, stored.value, stored.key).deleted == (Spent("ann", month_of(NOW), 3.0),)
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 0 jobs")
