"""Installations that share an account, two of them with one cluster name: each knows its own machines only."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from spotsup_simulator.clock import VirtualClock
from spotsup_simulator.etcd import CLUSTER, SimEtcd
from spotsup_simulator.etcd_clients import EtcdClient
from spotsup_simulator.faults import FaultRng
from spotsup_trainer.wire import Keys

from provisioners.base import InstanceState, LaunchRequest, OfferQuery, Owner, Provisioner
from supervisor.api.daemon.adoption import Adoption
from supervisor.identity import Identity
from supervisor.journal.journal import Journal
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.actions import Action, AskDone, BootstrapDone, Outcome
from supervisor.planner.world import Rules
from supervisor.runtime.actor import Effects
from supervisor.runtime.loop import Loop
from supervisor.runtime.marks import Continuity
from tests.contract.harness import Harness
from tests.support.machines import TIMEOUT_S, launched_by, request_for

pytestmark = pytest.mark.long

FIRST, SECOND = (Identity(bytes([number]) * 32) for number in (1, 2))
NAME = "default"
THIRD = FIRST.owner("another")  # of a copied key
OWNERS = (FIRST.owner(NAME), SECOND.owner(NAME), THIRD)
TICK_S = 20.0


class Daemon:
    """The real loop over a journal of its own and the provider; its actions are carried out at once."""

    leading, leader = True, "me"

    def __init__(self, provisioner: Provisioner, identity: Identity) -> None:
        self.clock = VirtualClock()
        self.clock.time = time.time() - 600.0  # what the cloud launches now has appeared since this daemon leads
        self.journal = Journal(EtcdClient(SimEtcd(self.clock), FaultRng(1)), Keys(CLUSTER))
        self._done: list[tuple[Action, Outcome]] = []
        self._effects = Effects(
            owner=identity.owner(NAME),
            provisioners={provisioner.name: provisioner},
            identity=identity,
            preparer=NotUsed(),
            evidence=NotUsed(),
            senders={},
            clock=self.clock,
        )
        rules = Rules(listing_s=TICK_S, leftovers_s=TICK_S, orphan_grace_s=60.0)
        self._loop = Loop(self.journal, self, self, self.clock, rules, (provisioner.name,), Continuity(identity.mark))

    def guard(self) -> tuple[()]:
        """Nobody else leads."""
        return ()

    def start(self, action: Action) -> None:
        """At once."""
        self._done.append((action, self._effects.perform(action)))

    def collect(self) -> list[tuple[Action, Outcome]]:
        """What was done since."""
        done, self._done = self._done, []
        return done

    def run(self, seconds: float) -> None:
        """Tick for so long."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self._loop.tick()
            self.clock.time += TICK_S / 4


class NotUsed:
    """No node is prepared, and none is silent."""

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        """Never called."""
        raise AssertionError(f"{node.id} of {job.name} is prepared")

    def ask(self, node: NodeRecord) -> AskDone:
        """Never called."""
        raise AssertionError(f"{node.id} is asked")


def request_of(owner: Owner, provisioner: Provisioner, node: str) -> LaunchRequest:
    """The same request for each owner; where there is one machine of each, for another one by owner."""
    request, offers = request_for(provisioner, node), provisioner.offers(OfferQuery(), TIMEOUT_S)
    offer = offers[OWNERS.index(owner)] if request.offer.room == 1 else request.offer
    return replace(request, owner=owner, offer=offer)


def states(provisioner: Provisioner, owner: Owner) -> list[InstanceState]:
    """What an owner's listing shows."""
    return [each.state for each in provisioner.instances(owner, TIMEOUT_S)]


def test_each_lists_and_finds_only_its_own_even_under_one_token(harness: Harness) -> None:
    provisioner = harness.provisioner
    request = request_for(provisioner, "n1")
    assert provisioner.instances(None, TIMEOUT_S) == []
    machines = {}
    for owner in OWNERS:
        assert provisioner.find(owner, request.token, TIMEOUT_S) is None
        machines[owner] = launched_by(provisioner, request_of(owner, provisioner, "n1"))
    assert len({each.id for each in machines.values()}) == len(OWNERS)
    for owner, machine in machines.items():
        found = provisioner.find(owner, request.token, TIMEOUT_S)
        assert found is not None
        assert (found.id, found.owner) == (machine.id, owner)
        assert [(each.id, each.owner) for each in provisioner.instances(owner, TIMEOUT_S)] == [(machine.id, owner)]
        assert launched_by(provisioner, request_of(owner, provisioner, "n1")).id == machine.id
    assert {each.owner for each in provisioner.instances(None, TIMEOUT_S)} == {*OWNERS}


def test_an_ended_machine_is_listed_and_found_by_its_owner_alone(harness: Harness) -> None:
    provisioner = harness.provisioner
    request = replace(request_for(provisioner, "n1"), owner=OWNERS[0])
    provisioner.terminate(launched_by(provisioner, request).id, TIMEOUT_S)
    assert len(states(provisioner, OWNERS[0])) == 1
    for other in OWNERS[1:]:
        assert not states(provisioner, other)
        assert provisioner.find(other, request.token, TIMEOUT_S) is None


def test_each_is_shown_only_what_its_own_machines_left(harness: Harness) -> None:
    provisioner = harness.provisioner
    left = [harness.leave_behind(owner, "gone") for owner in OWNERS]
    for owner in OWNERS:
        found = provisioner.leftovers(owner, TIMEOUT_S)
        assert bool(found) is left[0]
        assert {each.owner for each in found} <= {owner}


def test_an_installation_that_began_while_idle_ends_its_own_orphans_and_nothing_of_others(
    harness: Harness,
) -> None:
    provisioner = harness.provisioner
    second = Daemon(provisioner, SECOND)
    second.run(60.0)
    assert second.journal.read().cluster is not None, "its journal began"
    for owner in OWNERS:
        launched_by(provisioner, request_of(owner, provisioner, "job-abcde-1"))
        harness.leave_behind(owner, "job-abcde-9")
    second.run(180.0)
    ending = {InstanceState.STOPPING, InstanceState.TERMINATED}
    for owner in OWNERS:
        ours = owner == SECOND.owner(NAME)
        assert (set(states(provisioner, owner)) <= ending) is ours
        if harness.leave_behind(THIRD, "job-abcde-8"):
            assert bool(provisioner.leftovers(owner, TIMEOUT_S)) is not ours


def test_machines_of_others_neither_hold_up_a_journal_nor_are_adopted(harness: Harness) -> None:
    provisioner = harness.provisioner
    for owner in OWNERS[1:]:
        launched_by(provisioner, request_of(owner, provisioner, "job-abcde-1"))
    first = Daemon(provisioner, FIRST)
    first.run(TICK_S)
    assert first.journal.read().cluster is not None
    by_name = {provisioner.name: provisioner}
    adoption = Adoption(first.journal, by_name, FIRST.owner(NAME), first.clock, lambda _, __: True)
    assert adoption.adopt(()) == []
    launched_by(provisioner, request_of(FIRST.owner(NAME), provisioner, "job-abcde-1"))
    (adopted,) = adoption.adopt(("job",))
    assert len(adopted.nodes) == 1
