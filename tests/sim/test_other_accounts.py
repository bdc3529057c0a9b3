"""Credentials of another account: its listings work and are empty, and ending an unknown machine is no error there.
Nothing is taken for ended, nothing is launched beside what works, and people are told (P4, P13, P15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spotsup_simulator.cloud import SimCloud
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from provisioners.base import Instance, LaunchOutcome, LaunchRequest, Owner
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import NO_FAULTS, RULES, record, service, submit
from tests.sim.promises import jobs_of


class TwoAccounts(SimCloud):
    """A cloud in which we have two accounts. Each sees its own machines alone."""

    account = "A"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.account_of: dict[str, str] = {}

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        before = set(self.machines)
        outcome = super().launch(request, timeout_s)
        self.account_of |= dict.fromkeys(set(self.machines) - before, self.account)
        return outcome

    def _mine(self, instance_id: str) -> bool:
        return self.account_of.get(instance_id, self.account) == self.account

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        return [each for each in super().instances(owner, timeout_s) if self._mine(each.id)]

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        found = super().find(owner, token, timeout_s)
        return found if found is not None and self._mine(found.id) else None

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        if self._mine(instance_id):
            super().terminate(instance_id, timeout_s)


def two_accounts() -> World:
    """A job of four trains in account A, and the daemon has B's credentials now."""
    world = World(Conditions(1, NO_FAULTS, replace(RULES, listing_s=5.0), make_cloud=TwoAccounts))
    world.run(1.0)
    submit(world, "job", 2, 4, 4)
    assert world.run_until(lambda w: record(w).state is JobState.RUNNING, 120.0)
    world.run(200.0)
    assert isinstance(world.cloud, TwoAccounts)
    world.cloud.account = "B"
    world.run(60.0)
    return world


def machines(world: World) -> list[str]:
    """The account of each machine that bills."""
    assert isinstance(world.cloud, TwoAccounts)
    return sorted(world.cloud.account_of[each.instance.id] for each in world.cloud.machines.values() if each.billed)


def told(world: World) -> list[str]:
    return [event.text for event in world.sent if event.kind is EventKind.LISTING_DOUBTED]


def test_a_cut_from_etcd_loses_no_node_and_launches_none_beside_them() -> None:
    world = two_accounts()
    assert len(told(world)) == 1
    assert "are its credentials, project, subscription and regions those of before?" in told(world)[0]
    for machine in world.cloud.machines.values():
        machine.cut = True
    world.run(15.0)
    for machine in world.cloud.machines.values():
        machine.cut = False
    world.wake_daemons()
    world.run(300.0)
    assert machines(world) == ["A"] * 4
    assert record(world).state is JobState.RUNNING


def test_a_cancelled_job_is_not_booked_as_released_while_its_machines_bill() -> None:
    world = two_accounts()
    service(world).cancel("job")
    world.run(1200.0)
    states = {node.state for node in jobs_of(world)["job"].nodes.values()}
    assert machines(world) == ["A"] * 4
    assert states == {NodeState.TERMINATING}, "none is gone that bills"
    assert [event.kind for event in world.sent].count(EventKind.NOT_ENDED) == 1
    assert isinstance(world.cloud, TwoAccounts)
    world.cloud.account = "A"
    world.run(900.0)
    assert machines(world) == []
    assert {node.state for node in jobs_of(world)["job"].nodes.values()} == {NodeState.GONE}


def test_with_the_right_credentials_again_all_is_as_before() -> None:
    world = two_accounts()
    assert isinstance(world.cloud, TwoAccounts)
    world.cloud.account = "A"
    world.run(30.0)
    assert [event.text for event in world.sent if event.kind is EventKind.SOLVED] == [
        "local lists all machines whose nodes work"
    ]
    victim = next(iter(world.cloud.machines.values()))
    world.cloud.preempt(victim, 30.0)
    world.run(120.0)
    assert record(world).state is JobState.RUNNING
