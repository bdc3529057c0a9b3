"""The journal on a real etcd: commits are atomic and fenced, and records are read back as they were written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import AgentStatus, Hint, Keys, encode

from provisioners.base import Market, Offer
from supervisor.curve import Point, Seen, begun
from supervisor.errors import JournalUnavailableError, NotFoundError, SchemaError
from supervisor.events import EventKind
from supervisor.journal.codec import dump, load
from supervisor.journal.journal import BLOB_CHUNK_BYTES, Journal, Reading
from supervisor.journal.past import KEPT_RUNS
from supervisor.journal.store import EtcdStore
from supervisor.model import (
    SCHEMA_VERSION,
    ClusterRecord,
    DaemonPause,
    Event,
    JobRecord,
    NodeRecord,
    NodeState,
    move_node,
)
from supervisor.planner.actions import Commit
from supervisor.runtime.leader import Leadership
from supervisor.spec import parse_spec
from tests.support.waiting import until

KEYS = Keys("test")
SPEC = parse_spec({"name": "job", "nodes": {"min": 1, "desired": 2, "max": 3}, "run": "train.py", "env": {"A": "b"}})
JOB = JobRecord("job", "abcde", SPEC, "0" * 64, 1.0, 1, 2, 3)
OFFER = Offer("local", "local", "local-a", "small", Market.SPOT, 0.1)
NODE = NodeRecord("job-abcde-1", "job", "token", OFFER, 2.0)
EVENT = Event("job-abcde-000001", 1.0, "job", EventKind.SUBMITTED, "submitted")


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    etcd = Etcd([etcd_endpoint], timeout_s=2.0)
    yield etcd
    etcd.close()


@pytest.fixture
def store(etcd: Etcd) -> Iterator[EtcdStore]:
    store = EtcdStore(etcd, KEYS.world)
    store.start(10.0)
    yield store
    store.close()


@pytest.fixture
def journal(store: EtcdStore) -> Journal:
    return Journal(store, KEYS)


@pytest.fixture
def leader(etcd: Etcd) -> Iterator[Leadership]:
    leader = Leadership(etcd, f"{KEYS.root}leader", "me", 4.0)
    leader.start()
    until(lambda: leader.leading)
    yield leader
    leader.stop()


def read(journal: Journal, revision: int) -> Reading:
    until(lambda: journal.read().revision >= revision)
    return journal.read()


def test_what_is_committed_is_read_back_as_it_was(journal: Journal, leader: Leadership) -> None:
    assert journal.create_job(JOB, EVENT, None)
    until(lambda: "job" in journal.read().jobs)
    view = journal.read().jobs["job"]
    hint = Hint(("job-abcde-1",), 1, 3)
    commit = Commit(
        job="job",
        guards={"job": view.revision, NODE.id: 0},
        job_record=replace(JOB, next_node=2),
        nodes=[NODE],
        put_keys={KEYS.hint("job"): encode(hint)},
        events=[replace(EVENT, id="job-abcde-000002")],
        alerts=[replace(EVENT, id="job-abcde-000002")],
    )
    revision = journal.commit(commit, leader.guard())
    assert revision
    reading = read(journal, revision)
    assert reading.jobs["job"].record == replace(JOB, next_node=2)
    assert reading.jobs["job"].nodes == {NODE.id: NODE}
    assert reading.jobs["job"].hint == hint
    assert reading.alerts == (replace(EVENT, id="job-abcde-000002"),)
    assert [event.id for event in journal.events("job")] == ["job-abcde-000001", "job-abcde-000002"]
    assert [event.id for event in journal.events("job", "job-abcde-000001")] == ["job-abcde-000002"]


def test_a_stale_commit_writes_nothing(journal: Journal, leader: Leadership) -> None:
    journal.create_job(JOB, EVENT, None)
    commit = Commit(job="job", guards={"job": 1, NODE.id: 0}, job_record=replace(JOB, next_node=9), nodes=[NODE])
    assert journal.commit(commit, leader.guard()) == 0
    until(lambda: "job" in journal.read().jobs)
    assert journal.read().jobs["job"].nodes == {}
    assert journal.read().jobs["job"].record == JOB


def test_two_submissions_of_one_name_store_one_job(journal: Journal, leader: Leadership) -> None:
    assert journal.create_job(JOB, EVENT, None)
    assert not journal.create_job(replace(JOB, uid="other"), EVENT, None)


def test_a_daemon_that_lost_its_leadership_changes_nothing(journal: Journal, etcd: Etcd, leader: Leadership) -> None:
    guard = leader.guard()
    leader.stop()
    successor = Leadership(etcd, f"{KEYS.root}leader", "successor", 4.0)
    successor.start()
    until(lambda: successor.leading)
    commit = Commit(job="job", guards={"job": 0}, job_record=JOB)
    assert not journal.commit(commit, guard)
    assert not journal.commit(commit, leader.guard())
    assert journal.commit(commit, successor.guard())
    successor.stop()


def test_a_leader_key_of_the_same_revision_and_another_lease_belongs_to_another_leader(
    journal: Journal, etcd: Etcd, leader: Leadership
) -> None:
    """As in an etcd that was set back, and counts its revisions once more."""
    guard = leader.guard()
    created = etcd.get(f"{KEYS.root}leader")
    assert created is not None
    etcd.put(f"{KEYS.root}leader", b'{"name": "another", "lease": 1}')
    assert not journal.commit(Commit(job="job", guards={"job": 0}, job_record=JOB), guard)
    found = etcd.get(f"{KEYS.root}leader")
    assert found is not None
    assert found.create_revision == created.create_revision
    until(lambda: leader.leader == "another")


def test_one_daemon_leads_and_the_next_takes_over_when_its_lease_ends(etcd: Etcd, leader: Leadership) -> None:
    standby = Leadership(etcd, f"{KEYS.root}leader", "standby", 4.0)
    standby.start()
    until(lambda: standby.leader == "me")
    assert not standby.leading
    found = etcd.get(f"{KEYS.root}leader")
    assert found is not None
    etcd.revoke(found.lease)  # as etcd does with the lease of a daemon that was killed
    until(lambda: standby.leading != leader.leading)
    standby.stop()


def test_an_archive_larger_than_one_request_comes_back_whole(journal: Journal) -> None:
    data = bytes(range(256)) * (BLOB_CHUNK_BYTES * 3 // 256) + b"end"
    digest = journal.put_blob(data)
    assert journal.get_blob(digest) == data
    assert journal.put_blob(data) == digest


def test_a_missing_archive_is_named(journal: Journal) -> None:
    with pytest.raises(NotFoundError, match="submit the job again"):
        journal.get_blob("f" * 64)


def test_a_name_is_used_again_and_the_old_run_is_kept_under_its_number(
    journal: Journal, etcd: Etcd, leader: Leadership
) -> None:
    journal.create_job(JOB, EVENT, None)
    etcd.put(KEYS.hint("job"), encode(Hint((), 1, 1)))
    for node in ("job-abcde-1", "job-newer-1"):
        etcd.put(f"{KEYS.logs('job', node)}00000001", b"output")
    until(lambda: "job" in journal.read().jobs and journal.read().jobs["job"].hint is not None)
    runs = ["abcde", "newer", "third", "fourt", "fifth", "sixth", "seven"]
    of_first = replace(JOB, uid="abcde", run=1)
    curve = begun(Seen(Point(1.0, 1, 32, 0, 0.5, 2, 0.1), 1, 1.0))
    assert journal.put_curve(of_first, curve, leader.guard())

    def has_uid(uid: str) -> bool:
        return journal.read().jobs["job"].record.uid == uid

    for run, uid in enumerate(runs[1:], 2):
        present = journal.read().jobs["job"]
        record, event = replace(JOB, uid=uid, run=run), replace(EVENT, id=f"job-{uid}-000001")
        assert journal.create_job(record, event, present)
        assert not journal.create_job(record, event, present), "the record has changed"
        until(partial(has_uid, uid))
        assert journal.read().jobs["job"].hint is None
        assert journal.curve(of_first) == (curve if run <= KEPT_RUNS + 1 else None), "as long as its run is kept"
        logs = {chunk.node for chunk in journal.logs("job").chunks}
        assert logs == ({"job-abcde-1", "job-newer-1"} if run == 2 else {"job-newer-1"} if run == 3 else set())
    kept = runs[-1 - KEPT_RUNS : -1]
    assert [each.job.uid for each in journal.past_runs("job")] == kept
    assert {event.id for event in journal.events("job")} == {f"job-{uid}-000001" for uid in (*kept, runs[-1])}
    assert journal.past_run("job", 1) is None
    found = journal.past_run("job", 2)
    assert found is not None
    assert (found.job.uid, found.job.run) == ("newer", 2)
    assert [event.id for event in journal.events("job", task_id="job-newer")] == ["job-newer-000001"]


def test_a_broken_message_of_a_node_is_reported_and_affects_nothing_else(
    journal: Journal, etcd: Etcd, leader: Leadership
) -> None:
    journal.create_job(JOB, EVENT, None)
    revision = etcd.put(KEYS.member("job", "n1"), b"not json")
    reading = read(journal, revision)
    assert reading.jobs["job"].members == {}
    assert [key.rpartition("/run/")[2] for key in reading.unreadable] == ["job/member/n1"]


def test_an_event_of_another_schema_is_left_out(journal: Journal, etcd: Etcd) -> None:
    assert journal.create_job(JOB, EVENT, None)
    etcd.put(f"{KEYS.root}events/job/{EVENT.id}-older", b'{"schema": 1}')
    assert [event.id for event in journal.events("job")] == [EVENT.id]


def of_schema(record: JobRecord | NodeRecord, schema: int, **more: str) -> bytes:
    return json.dumps({**json.loads(dump(record)), "schema": schema, **more}).encode()


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (
            of_schema(JOB, SCHEMA_VERSION + 1),
            (
                f"jobs/job was written by a newer spotsupd (schema {SCHEMA_VERSION + 1}; this one reads "
                f"{SCHEMA_VERSION}): run the newer version, or restore an older backup"
            ),
        ),
        (
            of_schema(JOB, SCHEMA_VERSION, colour="red"),
            (
                "jobs/job was written by a newer spotsupd (it has `colour`): "
                "run the newer version, or restore an older backup"
            ),
        ),
        (
            of_schema(JOB, SCHEMA_VERSION - 1, taken="a field that was renamed"),
            (
                f"jobs/job was written by an older spotsupd (schema {SCHEMA_VERSION - 1}; this one reads "
                f"{SCHEMA_VERSION}): cancel the job with the older version, then submit it again with this one"
            ),
        ),
    ],
)
def test_a_record_of_another_schema_is_refused_in_one_sentence(raw: bytes, sentence: str) -> None:
    with pytest.raises(SchemaError) as refused:
        load(JobRecord, raw, "jobs/job")
    assert str(refused.value) == sentence


@pytest.mark.parametrize("raw", [b"no json", b"[]", b"{}", b'{"schema": "x"}'])
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    with pytest.raises(SchemaError, match="jobs/job in etcd is not a valid JobRecord"):
        load(JobRecord, raw, "jobs/job")


@pytest.mark.parametrize("other", ["older", "newer"])
def test_a_job_of_another_schema_is_left_out_and_named(journal: Journal, etcd: Etcd, other: str) -> None:
    assert journal.create_job(JOB, EVENT, None)
    assert journal.create_job(replace(JOB, name="other"), EVENT, None)
    raw = of_schema(NODE, SCHEMA_VERSION + (1 if other == "newer" else -1))
    reading = read(journal, etcd.put(f"{KEYS.world}nodes/job/{NODE.id}", raw))
    assert set(reading.jobs) == {"other"}
    assert list(reading.refused) == ["job"]
    assert f"{other} spotsupd" in reading.refused["job"]
    reading = read(journal, etcd.put(f"{KEYS.world}nodes/job/{NODE.id}", dump(NODE)))
    assert set(reading.jobs) == {"job", "other"}
    assert not reading.refused


def test_nodes_that_publish_without_a_record_are_unjournaled(journal: Journal, etcd: Etcd, leader: Leadership) -> None:
    assert journal.create_job(JOB, EVENT, None)
    revision = etcd.put(KEYS.agent("job", NODE.id), encode(AgentStatus(NODE.id, "boot", 1, 0.0, "test")))
    assert read(journal, revision).unjournaled == {NODE.id}
    assert journal.commit(Commit(job="job", guards={NODE.id: 0}, nodes=[NODE]), leader.guard())
    until(lambda: not journal.read().unjournaled)


def test_after_a_pause_no_daemon_commits_anything(journal: Journal, leader: Leadership) -> None:
    commit = Commit(job="job", guards={"job": 0}, job_record=JOB)
    journal.set_pause(DaemonPause(1.0, "upgrade"))
    assert not journal.commit(commit, leader.guard())
    until(lambda: journal.read().pause == DaemonPause(1.0, "upgrade"))
    assert journal.create_job(replace(JOB, name="other"), EVENT, None), "what users ask for is stored"
    journal.set_pause(None)
    assert journal.commit(commit, leader.guard())
    until(lambda: journal.read().pause is None)


def test_a_journal_is_created_once(journal: Journal, leader: Leadership) -> None:
    first, second = ClusterRecord(1.0, "me", "mark"), ClusterRecord(2.0, "you")
    assert journal.commit(Commit(job="", guards={}, cluster=first), leader.guard())
    assert not journal.commit(Commit(job="", guards={}, cluster=second), leader.guard())
    until(lambda: journal.read().cluster == first)


def test_records_survive_json() -> None:
    node = move_node(NODE, NodeState.PENDING, 3.0, "it was accepted")
    assert load(NodeRecord, dump(node), "") == node
    assert load(JobRecord, dump(JOB), "") == JOB
    assert load(Event, dump(EVENT), "") == EVENT


def test_an_etcd_that_is_absent_is_named_with_what_starts_one() -> None:
    store = EtcdStore(Etcd(["http://127.0.0.1:9"], timeout_s=0.2), KEYS.world)
    sentence = r"http://127\.0\.0\.1:9 does not answer: is it running.* `--embedded-etcd` starts one beside the daemon"
    with pytest.raises(JournalUnavailableError, match=sentence):
        store.start(0.3)
    store.close()
