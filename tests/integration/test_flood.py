"""A node that writes below its job's prefix without end, in a real etcd: what the mirror holds, and how it is read."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import pytest
from spotsup_trainer.etcd import Etcd, Put
from spotsup_trainer.etcd.client import FIRST_PAGE_KEYS, MAX_PAGE_KEYS
from spotsup_trainer.etcd.mirror import Mirror
from spotsup_trainer.etcd.quota import Quota
from spotsup_trainer.wire import Keys

from supervisor.features.flood.record import MAX_JOB_KEYS
from supervisor.features.flood.rule import FLOOD
from supervisor.features.pause.record import PauseRecord
from supervisor.journal.output_sizes import OutputSizes
from supervisor.journal.reading import Reading
from supervisor.journal.store import EtcdStore
from supervisor.model import JobRecord, JobState, NodeRecord
from supervisor.planner.world import JobView
from tests.unit.scene import NOW, N, job, member, node, view

if TYPE_CHECKING:
    from supervisor.journal.journal import Journal

pytestmark = pytest.mark.long

WAIT_S = 60.0
KEYS = Keys("flood")
EVIL, ANN = KEYS.run("evil"), KEYS.run("ann")


def fill(etcd: Etcd, prefix: str, count: int, value: bytes = b"x") -> None:
    for begin in range(0, count, 128):
        etcd.txn([], [Put(f"{prefix}agent/{number:06d}", value) for number in range(begin, min(count, begin + 128))])


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    client = Etcd([etcd_endpoint])
    client.delete("/", prefix=True)
    yield client
    client.delete("/", prefix=True)
    client.close()


def test_a_daemon_that_starts_reads_what_a_job_may_have_and_all_of_the_others(etcd: Etcd) -> None:
    fill(etcd, EVIL, MAX_JOB_KEYS + 1000)
    fill(etcd, ANN, 200)
    store = EtcdStore(etcd, KEYS.world)
    store.start(WAIT_S)
    try:
        view = store.view()
        assert sum(key.startswith(EVIL) for key in view.keys) == MAX_JOB_KEYS
        assert sum(key.startswith(ANN) for key in view.keys) == 200
        assert view.over == {"evil"}
        etcd.put(f"{ANN}round", b"1")
        assert store._mirror.wait(lambda found: f"{ANN}round" in found.keys, WAIT_S)
        etcd.delete(EVIL, prefix=True)
        assert store._mirror.wait(lambda found: not found.over, WAIT_S)
        etcd.put(f"{EVIL}round", b"1")
        assert store._mirror.wait(lambda found: f"{EVIL}round" in found.keys, WAIT_S)
    finally:
        store.close()


class Jobs:
    """The journal's jobs, as the leader's housekeeping sees them."""

    def __init__(self, *views: JobView) -> None:
        self.keys, self.over_output = KEYS, frozenset[str]()
        self.views = {each.record.name: each for each in views}

    def read(self) -> Reading:
        return Reading(MappingProxyType(dict(self.views)), (), 9, live=True, unreadable={})


def called(name: str, record: JobRecord, *nodes: NodeRecord) -> JobView:
    return view(replace(record, name=name, uid=name), nodes)


def put_output(etcd: Etcd, job: str, begin: int, count: int) -> None:
    for number in range(begin, begin + count):
        etcd.put(f"{KEYS.logs(job)}{job}-1/{number:08d}", b"x" * 2**20)


def test_output_without_end_is_noticed_and_deleted_once_nobody_writes_it_any_more(etcd: Etcd) -> None:
    jobs = Jobs(called("ann", job(), member(1)), called("evil", job(), member(1)))
    sizes = OutputSizes(etcd, cast("Journal", jobs), list, max_bytes=20 * 2**20)
    put_output(etcd, "ann", 0, 3)
    put_output(etcd, "evil", 0, 10)
    assert (sizes.run(), jobs.over_output) == ("", frozenset())
    put_output(etcd, "ann", 0, 3)
    put_output(etcd, "evil", 10, 8)
    assert (sizes.run(), jobs.over_output) == ("", frozenset())
    put_output(etcd, "evil", 0, 4)
    assert (sizes.run(), jobs.over_output) == ("", frozenset()), "what is written again takes the room of before"
    put_output(etcd, "evil", 18, 3)
    for _ in range(2):
        assert (sizes.run(), jobs.over_output) == ("", frozenset({"evil"}))
    paused = replace(job(), pause=PauseRecord(NOW, FLOOD))
    jobs.views["evil"] = called("evil", paused, member(1))
    assert (sizes.run(), jobs.over_output) == ("", frozenset({"evil"}))
    jobs.views["evil"] = called("evil", paused, node(1, N.GONE))
    assert sizes.run() == "deleted the output of evil: there was too much of it in etcd"
    assert jobs.over_output == frozenset()
    assert etcd.range(KEYS.logs("evil"), keys_only=True).kvs == ()
    assert len(etcd.range(KEYS.logs("ann"), keys_only=True).kvs) == 3


def test_of_ended_jobs_the_output_of_those_is_kept_that_ended_last(etcd: Etcd) -> None:
    ended = replace(job(state=JobState.SUCCEEDED), ended_at=NOW)
    jobs = Jobs(
        called("newest", ended),
        called("middle", replace(ended, ended_at=NOW - 1)),
        called("oldest", replace(ended, ended_at=NOW - 2)),
        called("leaving", replace(ended, ended_at=NOW - 3), node(1, N.DRAINING)),
        called("runs", job(), member(1)),
    )
    sizes = OutputSizes(etcd, cast("Journal", jobs), list, max_ended_bytes=10 * 2**20)
    for name in jobs.views:
        put_output(etcd, name, 0, 3)
    assert sizes.run() == ""
    put_output(etcd, "newest", 0, 3)
    assert sizes.run() == "", "nobody writes there any more"
    jobs.views["newest"] = view(replace(ended, name="newest", uid="again"), [])
    put_output(etcd, "newest", 3, 1)
    assert sizes.run() == "deleted the output of oldest: there was too much of it in etcd"
    assert sizes.run() == ""
    left = {kv.key.removeprefix(f"{KEYS.root}logs/").partition("/")[0] for kv in etcd.range(f"{KEYS.root}logs/").kvs}
    assert left == {"newest", "middle", "leaving", "runs"}


def test_very_many_small_keys_are_too_much_output_too(etcd: Etcd) -> None:
    jobs = Jobs(called("evil", job(), member(1)))
    fill(etcd, KEYS.logs("evil"), 1001, b"")
    OutputSizes(etcd, cast("Journal", jobs), list, max_keys=1000).run()
    assert jobs.over_output == {"evil"}


def test_a_flood_that_comes_while_it_runs_is_left_out_too(etcd: Etcd) -> None:
    quota = Quota(lambda key: key.split("/")[2], 100, 10_000, 50)
    mirror = Mirror(etcd, "/m/", quota=quota)
    mirror.start()
    try:
        assert mirror.wait_live(WAIT_S)
        fill(etcd, "/m/evil/", 300)
        etcd.put("/m/large/1", b"x" * 51)
        etcd.put("/m/ann/1", b"x")
        assert mirror.wait(lambda view: "/m/ann/1" in view.keys, WAIT_S)
        view = mirror.view()
        assert len(view.keys) == 101
        assert view.over == {"evil", "large"}
    finally:
        mirror.close()


@pytest.mark.parametrize("count", [0, 1, FIRST_PAGE_KEYS, FIRST_PAGE_KEYS + 1, 3 * MAX_PAGE_KEYS])
def test_pages_have_all_keys_once_in_order_as_of_one_revision(etcd: Etcd, count: int) -> None:
    fill(etcd, "/p/", count)
    found, revisions = [], set()
    for number, page in enumerate(etcd.pages("/p/")):
        found += [kv.key for kv in page.kvs]
        revisions.add(page.revision)
        if number == 0:
            etcd.put("/p/agent/zzz", b"later")
    assert found == [f"/p/agent/{number:06d}" for number in range(count)]
    assert len(revisions) == 1


def test_keys_that_are_no_text_hold_up_nothing(etcd: Etcd) -> None:
    for number in range(3 * FIRST_PAGE_KEYS):
        raw = base64.b64encode(b"/b/\xff\xfe" + bytes([number])).decode()
        etcd.call("/v3/kv/put", {"key": raw, "value": ""})
    found = [kv.key for page in etcd.pages("/b/") for kv in page.kvs]
    assert len(found) == len(set(found)) == 3 * FIRST_PAGE_KEYS


def test_large_values_come_in_small_pages(etcd: Etcd) -> None:
    for number in range(40):
        etcd.put(f"/l/{number:02d}", b"x" * 500_000)
    sizes = [len(page.kvs) for page in etcd.pages("/l/")]
    assert sum(sizes) == 40
    assert max(sizes[1:]) <= 8, "of 4 MiB each"
