"""The daemon keeps a curve of each training job in etcd; the report made from it agrees with `status` and `cost`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from spotsup_simulator.world import World
from spotsup_trainer.etcd import Compare

from provisioners.base import EndCause
from supervisor.api.jobs.report import OnDemand, report_row
from supervisor.api.jobs.views import cost_row, job_row
from supervisor.curve import Curve
from supervisor.errors import JournalUnavailableError, SchemaError
from supervisor.model import JobState
from supervisor.planner.world import JobView
from supervisor.runtime.curves import WRITE_S, CurveKeeper
from tests.sim.harness import in_state, machine_of, record, service, submit, training_world
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long


def at_once(call: Callable[[], Any], name: str) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        future.set_exception(error)
    return future


class Leads:
    """The leader election of the world's daemon."""

    def __init__(self, world: World) -> None:
        self._world = world

    def lease_valid(self) -> bool:
        return self._world.daemon.leader.leading

    def guard(self) -> Sequence[Compare]:
        return self._world.daemon.leader.guard()


class Kept:
    """A keeper beside the daemon, as the daemon's main loop has one."""

    def __init__(self, world: World, start: Callable[..., Future[Any]] = at_once) -> None:
        self.world = world
        self.keeper = CurveKeeper(world.daemon.journal, Leads(world), world.clock, start)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            self.world.run(0.5)
            self.keeper.follow()

    def run_until(self, predicate: Callable[[World], bool], seconds: float) -> None:
        for _ in range(int(seconds / 0.5)):
            if predicate(self.world):
                return
            self.run(0.5)
        raise AssertionError("it did not happen")

    @property
    def view(self) -> JobView:
        return jobs_of(self.world)["job"]

    @property
    def curve(self) -> Curve:
        found = self.world.daemon.journal.curve(record(self.world))
        assert found is not None
        return found


def test_the_curve_follows_a_job_through_preemptions_to_its_end() -> None:
    kept = Kept(training_world())
    kept.run(60.0)
    machine = machine_of(kept.world, 0)
    kept.world.cloud.end(machine, EndCause.PREEMPTED)
    round_before = kept.view.round
    assert round_before is not None
    kept.run_until(lambda _: kept.view.round is not None and kept.view.round.number > round_before.number, 120.0)
    kept.run_until(in_state(JobState.RUNNING), 200.0)
    kept.run(60.0)
    lost = next(each for each in kept.curve.pauses if each.cause == "lost")
    assert lost.seconds is not None
    assert 0 < lost.seconds < 60
    service(kept.world).commands.cancel("job")
    kept.run_until(in_state(JobState.CANCELLED), 60.0)
    kept.run(2.0)
    progress = kept.view.progress
    assert progress is not None
    assert kept.curve.newest.step == progress.step, "the last steps are in it, although no write was due"
    assert {each.nodes for each in kept.curve.speeds} <= {2, 3}
    assert sum(each.steps for each in kept.curve.speeds) > 0


def test_the_report_has_the_numbers_of_status_and_cost() -> None:
    kept = Kept(training_world(limits={"usd": 50.0}))
    kept.run(100.0)
    now = kept.world.clock.now()
    prices = OnDemand({("region-1", each.offer.instance_type): 0.3 for each in kept.view.nodes.values()})
    prices = OnDemand(
        {(n.offer.zone, n.offer.instance_type): 0.3 for n in kept.view.nodes.values()} | dict(prices.by_place)
    )
    row = report_row(kept.view, "3 of 3 nodes train", kept.curve, prices, now)
    assert row.items() >= job_row(kept.view, "3 of 3 nodes train", now).items()
    assert row["cost"] == cost_row(kept.view, now)
    assert row["points"][-1]["usd"] == row["usd"]
    hours = sum(each["hours"] for each in row["cost"]["node_list"])
    assert row["on_demand"]["usd"] == pytest.approx(0.3 * hours, abs=1e-3)
    assert row["on_demand"]["by_point"][-1] == pytest.approx(row["on_demand"]["usd"], abs=1e-3)
    assert row["on_demand"]["saved"] == pytest.approx(1 - row["usd"] / row["on_demand"]["usd"], abs=1e-3)


def test_a_new_leader_goes_on_with_the_curve_and_measures_no_pause_that_it_did_not_watch() -> None:
    kept = Kept(training_world())
    kept.run(60.0)
    before = kept.curve
    kept.world.cloud.end(machine_of(kept.world, 0), EndCause.PREEMPTED)
    kept.world.run(40.0)  # nobody keeps the curve
    assert kept.world.run_until(in_state(JobState.RUNNING), 200.0)
    successor = Kept(kept.world)
    successor.run(60.0)
    after = successor.curve
    assert after.points[: len(before.points)] == before.points
    assert [each.seconds for each in after.pauses] == [None]
    assert after.newest.step > before.newest.step


def test_it_is_written_seldom_and_by_the_leader_alone() -> None:
    kept = Kept(training_world())
    written: list[float] = []
    put = kept.world.daemon.journal.put_curve
    kept.keeper._journal = Recorded(kept.world.daemon.journal, written, put)  # type: ignore[assignment]
    kept.run(10 * WRITE_S)
    assert 8 <= len(written) <= 11
    kept.world.daemon.leader.step_down()
    count = len(written)
    kept.keeper.follow()
    assert len(written) == count
    assert not put(record(kept.world), kept.curve, [Compare("/nobody", "create", 7)])


class Recorded:
    """A journal whose writes of curves are noted."""

    def __init__(self, journal: Any, written: list[float], put: Any) -> None:
        self._journal, self._written, self._put = journal, written, put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def put_curve(self, *arguments: Any) -> bool:
        self._written.append(0.0)
        return bool(self._put(*arguments))


@pytest.mark.parametrize(
    "error", [JournalUnavailableError("away"), SchemaError("of another version"), RuntimeError("?")]
)
def test_whatever_fails_only_leaves_a_gap(error: Exception) -> None:
    calls = []

    def failing(call: Callable[[], Any], name: str) -> Future[Any]:
        calls.append(name)
        future: Future[Any] = Future()
        future.set_exception(error)
        return future

    kept = Kept(training_world(), failing)
    kept.run(100.0)
    assert kept.world.daemon.journal.curve(record(kept.world)) is None
    assert len(calls) <= 100 / WRITE_S + 2, "it is tried again, and not all the time"
    assert record(kept.world).state is JobState.RUNNING


def test_with_more_jobs_than_it_can_write_each_gets_its_turn() -> None:
    world = training_world(1, 1, 1)
    for name in ("second", "third", "fourth", "fifth", "sixth"):
        submit(world, name, 1, 1, 1)
    assert world.run_until(lambda w: all(view.progress for view in jobs_of(w).values()), 100.0)
    keeper = CurveKeeper(world.daemon.journal, Leads(world), world.clock, at_once)
    for _ in range(24):
        world.run(16.0)
        keeper.follow()  # which starts one call
    curves = [world.daemon.journal.curve(view.record) for view in jobs_of(world).values()]
    assert all(curves)


def test_a_report_on_the_leader_is_of_now_and_not_of_the_last_write() -> None:
    kept = Kept(training_world())
    kept.run(40.0)
    own = kept.keeper.curve(record(kept.world))
    assert own is not None
    assert own.newest.step > kept.curve.newest.step
    standby = CurveKeeper(kept.world.daemon.journal, Leads(kept.world), kept.world.clock, at_once)
    assert standby.curve(record(kept.world)) == kept.curve


def test_a_job_that_had_ended_before_is_not_read_again() -> None:
    kept = Kept(training_world())
    kept.run(40.0)
    service(kept.world).commands.cancel("job")
    kept.run_until(in_state(JobState.CANCELLED), 60.0)
    kept.run(5.0)
    calls: list[str] = []

    def noted(call: Callable[[], Any], name: str) -> Future[Any]:
        calls.append(name)
        return at_once(call, name)

    later = Kept(kept.world, noted)
    later.run(60.0)
    assert calls == []
