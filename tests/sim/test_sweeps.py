"""Sweeps in the simulated world: as many jobs as are allowed at a time, none twice, whatever happens to daemons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.world import World
from spotsup_trainer.etcd import Compare

from supervisor.access import Caller, Role
from supervisor.api.service import Service
from supervisor.api.sweeps import SweepBody, Sweeps
from supervisor.errors import CommandRefusedError, JournalUnavailableError
from supervisor.market.admission import QueueRules
from supervisor.runtime.sweeps import STUCK_S, SweepKeeper
from tests.sim.harness import empty_world, service
from tests.sim.promises import jobs_of

ANN, BOB = Caller("ann", Role.SUBMITTER), Caller("bob", Role.SUBMITTER)


class Leads:
    """The leader election of the world's daemon."""

    def __init__(self, world: World) -> None:
        self._world = world

    def lease_valid(self) -> bool:
        return self._world.daemon.leader.leading

    def guard(self) -> Sequence[Compare]:
        return self._world.daemon.leader.guard()


def at_once(call: Callable[[], Any], _: str) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        future.set_exception(error)
    return future


def sweeps_of(api: Service, world: World) -> Sweeps:
    return Sweeps(api, world.daemon.journal, world.clock, QueueRules())


def sweeps(world: World) -> Sweeps:
    return sweeps_of(service(world), world)


def body(world: World, **changes: Any) -> SweepBody:
    digest = service(world).submissions.put_blob(b"code")
    known: dict[str, Any] = {
        "spec": {"name": "lr", "nodes": 1, "run": "train.py"},
        "code_sha256": digest,
        "submission": "submission 1",
        "axes": [{"name": "lr", "values": ["0.1", "0.01"]}, {"name": "seed", "values": [1, 2]}],
        "parallel": 2,
    }
    return SweepBody(**(known | changes))


def running(world: World) -> list[str]:
    return sorted(name for name, view in jobs_of(world).items() if not view.record.ended)


def run(world: World, seconds: float, keeper: SweepKeeper | None = None) -> None:
    """As the daemon's main loop does: the keeper follows each tick."""
    keeper = keeper or SweepKeeper(world.daemon.journal, Leads(world), world.clock, at_once)
    for _ in range(int(seconds)):
        world.run(1.0)
        keeper.follow()


def end(world: World, name: str) -> None:
    service(world).commands.cancel(name)


def test_so_many_run_at_a_time_until_all_have_ended() -> None:
    world = empty_world()
    verbs = sweeps(world)
    sweep = verbs.submit(body(world), ANN)
    assert verbs.submit(body(world), ANN) == sweep, "sent again it is the same one"
    run(world, 5)
    assert running(world) == ["lr-1", "lr-2"]
    assert jobs_of(world)["lr-2"].record.spec.command == ("train.py", "--lr", "0.1", "--seed", "2")
    assert jobs_of(world)["lr-1"].record.owner == "ann"
    for ended, then in (("lr-1", ["lr-2", "lr-3"]), ("lr-2", ["lr-3", "lr-4"]), ("lr-3", ["lr-4"]), ("lr-4", [])):
        end(world, ended)
        run(world, 30)
        assert running(world) == then
    row = verbs.row(verbs.one("lr"))
    assert (row["state"], [each["state"] for each in row["members"]]) == ("finished", ["cancelled"] * 4)
    assert row["usd"] == pytest.approx(sum(each["usd"] for each in row["members"]))
    assert row["members"][3]["parameters"] == {"lr": "0.01", "seed": 2}
    with pytest.raises(CommandRefusedError, match="has ended"):
        verbs.cancel("lr", ANN)


def test_a_takeover_at_any_write_loses_no_member_and_makes_none_twice() -> None:
    """The daemon dies after each of its writes in turn; another one goes on."""
    for writes in range(1, 7):
        world = empty_world()
        sweeps(world).submit(body(world), ANN)
        run(world, 1, dying(world, writes))
        run(world, 10)
        assert running(world) == ["lr-1", "lr-2"], writes
        submitted = [each for each in events(world) if "submitted by the sweep" in each]
        assert len(submitted) == 2, (writes, submitted)


def dying(world: World, writes: int) -> SweepKeeper:
    """A keeper whose daemon dies after so many writes."""
    journal = world.daemon.journal
    left = [writes]

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(journal, name)

        def _counted(self, call: Callable[..., Any], *given: Any) -> Any:
            if not left[0]:
                raise JournalUnavailableError("it is dead")
            left[0] -= 1
            return call(*given)

        def put_sweep(self, *given: Any) -> int:
            return int(self._counted(journal.put_sweep, *given))

        def create_job(self, *given: Any) -> bool:
            return bool(self._counted(journal.create_job, *given))

    return SweepKeeper(Dying(), Leads(world), world.clock, at_once)  # type: ignore[arg-type]


def events(world: World) -> list[str]:
    journal = world.daemon.journal
    return [event.text for name in jobs_of(world) for event in journal.events(name)]


def test_a_daemon_that_does_not_lead_makes_nothing() -> None:
    world = empty_world()
    sweeps(world).submit(body(world), ANN)

    class Stale(Leads):
        def guard(self) -> Sequence[Compare]:
            return (Compare("/nobody/leads", "mod", 7),)

    run(world, 5, SweepKeeper(world.daemon.journal, Stale(world), world.clock, at_once))
    assert running(world) == []


def test_cancelling_a_sweep_ends_its_jobs_and_begins_no_more() -> None:
    world = empty_world()
    verbs = sweeps(world)
    verbs.submit(body(world), ANN)
    run(world, 5)
    with pytest.raises(CommandRefusedError, match="ann"):
        verbs.cancel("lr", BOB)
    assert verbs.cancel("lr", ANN).cancel_requested
    run(world, 40)
    assert running(world) == []
    row = verbs.row(verbs.one("lr"))
    assert (row["state"], sorted(jobs_of(world))) == ("cancelled", ["lr-1", "lr-2"])
    assert verbs.cancel("lr", ANN).cancel_requested, "repeating it is fine"
    assert verbs.submit(body(world, submission="submission 2"), ANN).uid != "", "its name is free again"


def test_a_name_that_somebody_uses_is_waited_for_and_said() -> None:
    world = empty_world()
    api = service(world)
    verbs = sweeps(world)
    verbs.submit(body(world), ANN)
    api.submissions.submit(
        {"name": "lr-1", "nodes": 1, "run": "t.py"}, body(world).code_sha256, "another one", owner="bob"
    )
    run(world, 5)
    assert running(world) == ["lr-1"]
    assert verbs.row(verbs.one("lr"))["problem"] == "the name lr-1 is in use: cancel that job, or the sweep"
    assert jobs_of(world)["lr-1"].record.owner == "bob"


def test_the_code_of_a_sweep_is_kept_for_those_that_are_yet_to_begin() -> None:
    world = empty_world()
    verbs = sweeps(world)
    wanted = body(world)
    verbs.submit(wanted, ANN)
    journal = world.daemon.journal
    found = journal.find_blob(wanted.code_sha256)
    assert found is not None
    assert not journal.delete_code(wanted.code_sha256, found.mod_revision)
    verbs.cancel("lr", ANN)
    run(world, 5)
    found = journal.find_blob(wanted.code_sha256)
    assert found is not None
    assert journal.delete_code(wanted.code_sha256, found.mod_revision)


def test_members_are_compared_by_what_their_programs_report() -> None:
    world = empty_world()
    verbs = sweeps(world)
    verbs.submit(body(world, parallel=4, metric="accuracy", mode="max"), ANN)
    run(world, 5)
    for number, accuracy in enumerate((0.3, 0.9, 0.5, None), 1):
        assert world.run_until(lambda w, name=f"lr-{number}": name in w.nodes.trainings, 60.0)  # type: ignore[misc]
        world.nodes.trainings[f"lr-{number}"].metrics = {} if accuracy is None else {"accuracy": accuracy}
    run(world, 90)
    row = verbs.row(verbs.one("lr"))
    assert (row["metric"], row["mode"]) == ("accuracy", "max")
    assert [each["value"] for each in row["members"]] == [0.3, 0.9, 0.5, None]
    assert (row["best"], running(world)) == (None, ["lr-1", "lr-2", "lr-3", "lr-4"])
    for number in range(1, 5):
        end(world, f"lr-{number}")
    run(world, 30)
    assert verbs.row(verbs.one("lr"))["best"] == "lr-2"


def test_people_are_told_of_a_sweep_that_cannot_go_on() -> None:
    world = empty_world()
    verbs, journal = sweeps(world), world.daemon.journal
    broken = verbs.submit(body(world, spec={"name": "aa", "nodes": 1, "run": "train.py"}), ANN)
    found = journal.sweep("aa")
    assert found is not None
    assert journal.put_sweep(replace(broken, base={**broken.base, "nodes": "two"}), found[1])
    keeper = SweepKeeper(journal, Leads(world), world.daemon.clock, at_once)
    keeper.look()
    began = world.clock.now()
    world.run(60.0)
    keeper.look()
    (one,) = keeper.problems()
    assert (one.since, one.after_s) == (began, STUCK_S)
    assert "the sweep aa cannot go on since" in one.text
    assert "'two' is not a number" in one.text
    verbs.cancel("aa", ANN)
    keeper.look()
    assert keeper.problems() == ()


def test_a_sweep_that_cannot_go_on_says_so_and_keeps_none_other_from_it() -> None:
    world = empty_world()
    verbs, journal = sweeps(world), world.daemon.journal
    broken = verbs.submit(body(world, spec={"name": "aa", "nodes": 1, "run": "train.py"}), ANN)
    found = journal.sweep("aa")
    assert found is not None
    assert journal.put_sweep(replace(broken, base={**broken.base, "nodes": "two"}), found[1])
    verbs.submit(body(world), ANN)
    run(world, 5)
    assert running(world) == ["lr-1", "lr-2"]
    assert "'two' is not a number" in str(verbs.row(verbs.one("aa"))["problem"])
