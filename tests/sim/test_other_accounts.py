"""Credentials of another account: its listings work and are empty, and ending an unknown machine is no error there.
Nothing is taken for ended, nothing is launched beside what works, and people are told (P4, P13, P15)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import NO_FAULTS, RULES, adopt, record, sentence, service, submit
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long

OURS, THEIRS = "account-1", "account-2"


def other_account(*, says: bool, after_s: float = 60.0) -> World:
    """A job of four trains in our account, and the daemon has another's credentials now. `says`: the cloud says whose
    they are."""
    world = World(Conditions(1, NO_FAULTS, replace(RULES, listing_s=5.0)))
    world.cloud.says_account = says
    world.run(1.0)
    submit(world, "job", 2, 4, 4)
    assert world.run_until(lambda w: record(w).state is JobState.RUNNING, 120.0)
    world.run(200.0)
    world.cloud.account = THEIRS
    world.run(after_s)
    return world


def billing(world: World) -> list[str]:
    """The account of each machine that bills."""
    return sorted(each.account for each in world.cloud.machines.values() if each.billed)


def told(world: World) -> list[str]:
    return [event.text for event in world.sent if event.kind is EventKind.LISTING_DOUBTED]


def states(world: World) -> set[NodeState]:
    return {node.state for node in jobs_of(world)["job"].nodes.values()}


@pytest.mark.parametrize("says", [True, False])
def test_a_cut_from_etcd_loses_no_node_and_launches_none_beside_them(says: bool) -> None:
    world = other_account(says=says)
    assert len(told(world)) == 1
    assert ("are its credentials, project, subscription and regions those of before?" in told(world)[0]) is not says
    for machine in world.cloud.machines.values():
        machine.cut = True
    world.run(15.0)
    for machine in world.cloud.machines.values():
        machine.cut = False
    world.wake_daemons()
    world.run(300.0)
    assert billing(world) == [OURS] * 4
    assert record(world).state is JobState.RUNNING


@pytest.mark.parametrize("says", [True, False])
def test_a_cancelled_job_is_not_booked_as_released_while_its_machines_bill(says: bool) -> None:
    world = other_account(says=says)
    service(world).commands.cancel("job")
    world.run(1200.0)
    assert billing(world) == [OURS] * 4
    assert states(world) == {NodeState.TERMINATING}, "none is gone that bills"
    assert [event.kind for event in world.sent].count(EventKind.NOT_ENDED) == 1
    world.cloud.account = OURS
    world.run(900.0)
    assert billing(world) == []
    assert states(world) == {NodeState.GONE}


@pytest.mark.parametrize("says", [True, False])
def test_with_the_right_credentials_again_all_is_as_before(says: bool) -> None:
    world = other_account(says=says)
    world.cloud.account = OURS
    world.run(30.0)
    assert [event.text for event in world.sent if event.kind is EventKind.SOLVED] == [
        "local answers for the account of the machines in the journal"
        if says
        else "local lists all machines whose nodes work"
    ]
    victim = next(iter(world.cloud.machines.values()))
    world.cloud.preempt(victim, 30.0)
    world.run(120.0)
    assert record(world).state is JobState.RUNNING


def test_where_the_cloud_says_its_account_people_are_told_at_once_and_a_notice_buys_nothing() -> None:
    world = other_account(says=True, after_s=12.0)
    (text,) = told(world)
    assert text.startswith(f"spotsup's credentials for local are of {THEIRS}, and the machines in the journal are in")
    assert "`spotsupd adopt --account local`" in text
    world.cloud.preempt(next(iter(world.cloud.machines.values())), 30.0)
    world.run(300.0)
    assert billing(world) == [OURS] * 3, "nothing was launched beside what works"
    assert "nothing is launched there" in sentence(world)


def test_a_machine_that_is_gone_with_its_account_is_written_off_once_an_operator_says_so() -> None:
    world = other_account(says=True)
    for machine in world.cloud.machines.values():
        world.cloud.vanish(machine)
    world.run(300.0)
    assert billing(world) == []
    adopt(world)
    world.run(60.0)
    assert billing(world) == [], "the journal is believed anyway: it is the account that is not"
    adopt(world, accounts=["local"])
    assert world.run_until(lambda w: billing(w) == [THEIRS] * 4, 200.0)
    assert world.run_until(lambda w: record(w).state is JobState.RUNNING, 100.0)


def test_an_account_without_a_machine_of_ours_may_change() -> None:
    world = other_account(says=True, after_s=0.0)
    world.cloud.account = OURS
    service(world).commands.cancel("job")
    assert world.run_until(lambda w: states(w) == {NodeState.GONE}, 200.0)
    world.cloud.account = THEIRS
    world.crash_daemon()
    submit(world, "next", 1, 1, 1)
    assert world.run_until(lambda w: record(w, "next").state is JobState.RUNNING, 100.0)
    assert billing(world) == [THEIRS]
    assert told(world) == []


def test_a_region_that_left_the_configuration_keeps_its_machines_in_the_books() -> None:
    world = other_account(says=True, after_s=0.0)
    world.cloud.account, world.cloud.regions = OURS, ("elsewhere",)
    hidden = {each.instance.id: each for each in world.cloud.machines.values()}
    world.cloud.unlisted |= hidden.keys()
    service(world).commands.cancel("job")
    world.run(900.0)
    assert states(world) == {NodeState.TERMINATING}
    (text,) = [event.text for event in world.sent if event.kind is EventKind.CLOUD_MISSING]
    assert text.startswith("spotsupd.toml has local of local no more, where 4 machines of job may run")
    world.cloud.unlisted.clear()
    world.cloud.regions = ()
    world.run(900.0)
    assert states(world) == {NodeState.GONE}
