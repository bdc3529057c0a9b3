"""The daemon keeps in etcd what its jobs held of each pool and were refused there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from spotsup_simulator.world import World
from spotsup_trainer.etcd import Compare, Put

from provisioners.base import EndCause
from supervisor.errors import JournalUnavailableError
from supervisor.journal.journal import DayKey
from supervisor.pool_days import MAX_DAYS, MAX_POOLS, PoolDay, PoolName, Row, encode_day
from supervisor.runtime.pools import WRITE_S, PoolKeeper, _day_of
from tests.sim.harness import empty_world, machine_of, service, submit, training_world
from tests.sim.promises import jobs_of
from tests.sim.test_curves import Leads, at_once

pytestmark = pytest.mark.long

DAY_S = 86400.0
OLD = PoolDay(PoolName("local", "local", "zone-1", "small", "spot"), (Row(0, 2, 2, 0, 0.1),), 10)


class Kept:
    """A keeper beside the daemon, as the daemon's main loop has one."""

    def __init__(self, world: World, start: Callable[..., Future[Any]] = at_once) -> None:
        self.world = world
        self.calls = 0
        self.ahead_s = 0.0  # of the world's clock
        self._call = start
        self.keeper = PoolKeeper(world.daemon.journal, Leads(world), self, self._start)

    def now(self) -> float:
        return self.world.clock.now() + self.ahead_s

    def _start(self, call: Callable[[], Any], name: str) -> Future[Any]:
        self.calls += 1
        return self._call(call, name)

    def run(self, seconds: float, step_s: float = 1.0) -> None:
        for _ in range(int(seconds / step_s)):
            self.world.run(step_s)
            self.keeper.follow()

    @property
    def days(self) -> dict[DayKey, PoolDay]:
        return {key: day for key, day in self.world.daemon.journal.pool_days().items() if day is not None}

    @property
    def newest(self) -> dict[str, int]:
        """What was held last, by the key of the pool."""
        return {key[1]: day.rows[-1].held or 0 for key, day in sorted(self.days.items())}

    def answers(self) -> tuple[int, int]:
        rows = [row for day in self.days.values() for row in day.rows]
        return sum(row.granted for row in rows), sum(row.refused for row in rows)

    def put(self, key: str, value: bytes) -> None:
        journal = self.world.daemon.journal
        journal._store.txn([], [Put(f"{journal.keys.root}pools/{key}", value)])

    def key(self, days_ago: int = 0) -> str:
        return _day_of(self.now() - days_ago * DAY_S)[0]


def test_grants_losses_and_replacements_are_recorded_with_the_least_that_was_held() -> None:
    kept = Kept(empty_world())
    kept.run(5)
    submit(kept.world, "job", 2, 3, 4)
    kept.run(700, 5.0)
    machines = [node for node in jobs_of(kept.world)["job"].nodes.values() if node.launched_at and not node.ended_at]
    assert sum(kept.newest.values()) == 3 == len(machines)
    granted, _ = kept.answers()
    assert granted >= 3
    assert {day.rows[-1].usd_per_hour for day in kept.days.values() if day.rows[-1].held} == {
        node.offer.usd_per_hour for node in machines
    }
    kept.world.cloud.end(machine_of(kept.world, 0), EndCause.PREEMPTED)
    kept.run(900, 5.0)
    rows = [row for day in kept.days.values() for row in day.rows]
    assert any(row.held == 2 for row in rows)
    assert kept.answers()[0] > granted, "its replacement"
    service(kept.world).commands.cancel("job")
    kept.run(700, 5.0)
    assert sum(kept.newest.values()) == 0


def test_refusals_are_recorded() -> None:
    world = empty_world()
    kept = Kept(world)
    kept.run(5)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    submit(world, "job", 2, 3, 4)
    kept.run(900, 5.0)
    assert kept.answers()[0] == 0 < kept.answers()[1]
    assert sum(kept.newest.values()) == 0


def test_writes_are_few_and_the_leaders_alone() -> None:
    kept = Kept(training_world())
    kept.run(1800, 5.0)
    assert kept.calls <= 2 + len(kept.days) * (1800 / WRITE_S + 1)
    kept.world.daemon.leader.step_down()
    calls = kept.calls
    kept.keeper.follow()
    assert kept.calls == calls
    key = next(iter(kept.days))
    assert not kept.world.daemon.journal.put_pool_day(key, OLD, [Compare("/nobody", "create", 7)])
    assert not kept.world.daemon.journal.delete_pool_days([key], [Compare("/nobody", "create", 7)])


def test_a_new_leader_goes_on_with_the_day_and_leaves_a_gap_where_nobody_watched() -> None:
    kept = Kept(training_world())
    kept.run(900, 5.0)
    before = kept.days
    kept.world.run(1200.0)
    successor = Kept(kept.world)
    successor.run(900, 5.0)
    for key, day in before.items():
        if key[0] != successor.key() or not day.rows[-1].held:
            continue
        after = successor.days[key]
        assert after.rows[: len(day.rows)] == day.rows
        assert None in [row.held for row in after.rows]
        assert after.rows[-1].held == day.rows[-1].held
    granted = kept.answers()[0]
    assert successor.answers()[0] == granted, "nothing is counted twice"


def test_a_day_follows_a_day_and_old_ones_are_deleted() -> None:
    kept = Kept(training_world())
    kept.ahead_s = DAY_S - kept.now() % DAY_S - 900  # a quarter of an hour before midnight
    for back in (1, MAX_DAYS - 1, MAX_DAYS, 40):
        kept.put(f"{kept.key(back)}/{OLD.pool.key}", encode_day(OLD))
    kept.put("nonsense", b"{}")
    kept.put(f"{kept.key()}/nonsense", b"{}")
    first = kept.key()
    kept.run(60, 5.0)
    days = {day for day, _ in kept.world.daemon.journal.pool_days()}
    assert kept.key(1) in days
    assert kept.key(MAX_DAYS - 1) in days
    assert not days & {kept.key(MAX_DAYS), kept.key(40), "nonsense"}
    assert (first, "nonsense") in kept.world.daemon.journal.pool_days(), "of today, what cannot be read is left alone"
    kept.run(1800, 5.0)
    today = {key: day for key, day in kept.days.items() if key[0] == kept.key()}
    assert sum(day.rows[0].held or 0 for day in today.values()) == 3
    assert {day.rows[0].minute for day in today.values() if day.rows[0].held} == {0}
    full = [day for key, day in kept.days.items() if key[0] == first and day.rows[-1].held]
    assert {day.until for day in full} == {1440}


@pytest.mark.parametrize("error", [JournalUnavailableError("away"), RuntimeError("?"), TimeoutError("slow")])
def test_whatever_fails_only_loses_rows(error: Exception) -> None:
    fails = True

    def failing(call: Callable[[], Any], name: str) -> Future[Any]:
        future: Future[Any] = Future()
        if not fails:
            return at_once(call, name)
        future.set_exception(error)
        return future

    kept = Kept(training_world(), failing)
    kept.run(300, 5.0)
    assert kept.days == {}
    assert kept.calls <= 12, "it is tried again, and not all the time"
    fails = False
    kept.run(60)
    assert sum(kept.newest.values()) == 3


def test_a_day_has_a_limited_number_of_pools() -> None:
    kept = Kept(training_world())
    for number in range(MAX_POOLS):
        pool = OLD.pool._replace(zone=f"elsewhere-{number}")
        kept.put(f"{kept.key()}/{pool.key}", encode_day(PoolDay(pool, OLD.rows, 10)))
    kept.run(900, 5.0)
    assert len([key for key in kept.days if key[0] == kept.key()]) == MAX_POOLS


def test_a_pause_of_the_daemons_and_a_clock_that_jumps_leave_gaps() -> None:
    kept = Kept(training_world())
    kept.run(400, 5.0)
    service(kept.world).daemons.pause("")
    calls = kept.calls
    kept.run(300, 5.0)
    assert kept.calls == calls
    service(kept.world).daemons.resume()
    kept.run(400, 5.0)
    assert kept.calls > calls
    kept.world.run(1200.0)
    kept.run(700, 5.0)
    assert None in [row.held for day in kept.days.values() for row in day.rows]
