"""What pools granted, kept in a real etcd: written by the leader alone, read back, bounded, whatever else is there."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from spotsup_trainer.etcd import Etcd

from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.model import ClusterRecord, NodeState
from supervisor.pool_days import PoolDay, Row, encode_day, pool_of
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.leader import Leadership
from supervisor.runtime.pools import PoolKeeper, _day_of
from tests.integration.test_journal import EVENT, JOB, KEYS, NODE, OFFER, etcd, journal, leader, store
from tests.support.waiting import until

__all__ = ["etcd", "journal", "leader", "store"]  # fixtures

POOL = pool_of(OFFER)
RUNS = replace(NODE, state=NodeState.MEMBER, launched_at=3.0)
ROWS = (Row(0, 1, 1, 0, 0.1),)


@pytest.fixture
def keeper(journal: Journal, leader: Leadership, etcd: Etcd) -> PoolKeeper:
    """Of a daemon that leads a cluster with one job and one machine."""
    etcd.put(f"{KEYS.world}cluster", dump(ClusterRecord(1.0, "me")))
    journal.create_job(JOB, EVENT, None)
    etcd.put(f"{KEYS.world}nodes/job/{NODE.id}", dump(RUNS))
    until(lambda: bool((read := journal.read()).cluster and "job" in read.jobs and read.jobs["job"].nodes))
    return PoolKeeper(journal, leader, SystemClock())


def followed(keeper: PoolKeeper, journal: Journal, key: tuple[str, str]) -> PoolDay:
    """What is kept under a key, once something is."""

    def look() -> bool:
        keeper.follow()
        return journal.pool_days().get(key) is not None

    until(look)
    found = journal.pool_days()[key]
    assert found is not None
    return found


def test_what_is_held_is_written_beside_the_loop_and_nothing_broken_is_in_the_way(
    keeper: PoolKeeper, journal: Journal, etcd: Etcd
) -> None:
    day, _ = _day_of(time.time())
    broken = {
        f"{day}/local/other/small/spot": b"\xff",
        f"{day}/local/third/small/spot": encode_day(PoolDay(POOL, ROWS)),  # of another pool than its key
        "1999-01-01/local/local-a/small/spot": encode_day(PoolDay(POOL, ROWS)),
        "x/y/z": b"[" * 10_000,
        "x": b"",
    }
    for key, value in broken.items():
        etcd.put(f"{KEYS.root}pools/{key}", value)
    record = followed(keeper, journal, (day, POOL.key))
    assert (record.pool, [row.held for row in record.rows]) == (POOL, [1])

    def old_ones_are_gone() -> bool:
        keeper.follow()
        return {name for name, _ in journal.pool_days()} == {day}

    until(old_ones_are_gone)
    assert [key for key, found in journal.pool_days().items() if found is None] == [
        (day, "local/other/small/spot"),
        (day, "local/third/small/spot"),
    ]


def test_who_does_not_lead_writes_and_deletes_nothing(
    keeper: PoolKeeper, journal: Journal, etcd: Etcd, leader: Leadership
) -> None:
    day, _ = _day_of(time.time())
    followed(keeper, journal, (day, POOL.key))
    guard = leader.guard()
    leader.stop()
    until(lambda: etcd.get(f"{KEYS.root}leader") is None)
    assert not journal.put_pool_day((day, POOL.key), PoolDay(POOL), guard)
    assert not journal.delete_pool_days([(day, POOL.key)], guard)
    keeper.follow()
    assert journal.pool_days()[day, POOL.key] is not None
