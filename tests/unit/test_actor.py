"""Actions on threads: each one ends in an outcome, even if it raises."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from spotsup_simulator.clock import VirtualClock

from provisioners.base import Coverage, Instance, LaunchOutcome, LaunchRequest, Leftover, LeftoverKind, Owner, Unknown
from provisioners.readings import read_each
from supervisor.identity import Identity
from supervisor.planner.actions import (
    Action,
    Bootstrap,
    BootstrapDone,
    Launch,
    LaunchDone,
    ListDone,
    ListInstances,
    Outcome,
    Remove,
    RemoveDone,
    Terminate,
    TerminateDone,
)
from supervisor.planner.journal_guard import warnings
from supervisor.runtime.actor import NOT_STARTED, Effects, ThreadActor
from tests.unit.scene import OWNER, N, job, listing, machine, member, name, node, scene, view, world_of


def test_an_unexpected_error_becomes_the_outcome_that_claims_least() -> None:
    woken = threading.Semaphore(0)

    def perform(action: Action) -> Outcome:
        raise RuntimeError("a bug")

    actor = ThreadActor(perform, woken.release)
    for action in (Launch(member(1)), Terminate("local", "i-1", name(1))):
        actor.start(action)
        assert woken.acquire(timeout=10)
    launched, terminated = (outcome for _, outcome in actor.collect())
    assert isinstance(launched, LaunchDone)
    assert launched.outcome == Unknown("RuntimeError: a bug")
    assert terminated == TerminateDone(name(1), "i-1", "RuntimeError: a bug")


class OneCloud:
    """A cloud that only launches."""

    def __init__(self) -> None:
        self.disks_gb: list[int] = []

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        self.disks_gb.append(request.disk_gb)
        return Unknown("no answer")


def test_a_job_may_have_larger_disks_than_others() -> None:
    record = job(3)
    large = record.spec.model_copy(
        update={"resources": (record.spec.resources[0].model_copy(update={"disk_gb": 500}),)}
    )
    (launch,) = scene(member(1), member(2), node(3, N.REQUESTED), record=replace(record, spec=large)).does(Launch)
    cloud, nothing = OneCloud(), cast("Any", None)
    identity = Identity(b"a secret of 32 bytes, for the test")
    effects = Effects(
        owner=OWNER,
        provisioners=cast("Any", {"local": cloud}),
        identity=identity,
        preparer=nothing,
        evidence=nothing,
        senders={},
        clock=nothing,
    )
    effects.perform(launch)
    effects.perform(Launch(member(1)))
    assert cloud.disks_gb == [500, 0]


def test_an_action_that_changes_a_cloud_does_not_start_without_leadership_and_counts_as_no_failure() -> None:
    woken = threading.Semaphore(0)

    def perform(action: Action) -> Outcome:
        assert isinstance(action, ListInstances), "reading is allowed"
        return ListDone(action.cloud, 1.0)

    actor = ThreadActor(perform, woken.release, lambda: False)
    leftover = Leftover("disk-1", LeftoverKind.DISK, OWNER, name(1), "r")
    found = []
    actions = (
        Launch(member(1)),
        Bootstrap(member(1), job()),
        Terminate("local", "i-1", name(1)),
        Remove("local", leftover),
    )
    for action in (*actions, ListInstances("local")):
        actor.start(action)
        assert woken.acquire(timeout=10)
        found += [outcome for _, outcome in actor.collect()]
    launched, prepared, terminated, removed, listed = found
    assert isinstance(launched, LaunchDone)
    assert launched.outcome == Unknown(NOT_STARTED)
    assert prepared == BootstrapDone(name(1), NOT_STARTED, unreachable=True)
    assert terminated == TerminateDone(name(1), "i-1", NOT_STARTED)
    assert removed == RemoveDone("disk-1", NOT_STARTED)
    assert listed == ListDone("local", 1.0)


def listed_by(machines: Sequence[Instance]) -> ListDone:
    """What comes of a listing."""
    cloud = cast("Any", SimpleNamespace(coverage=lambda _: Coverage(), instances=lambda _, __: machines))
    nothing = cast("Any", None)
    effects = Effects(
        owner=OWNER,
        provisioners={"local": cloud},
        identity=nothing,
        preparer=nothing,
        evidence=nothing,
        senders={},
        clock=VirtualClock(),
    )
    done = effects.perform(ListInstances("local"))
    assert isinstance(done, ListDone)
    return done


def test_a_machine_that_cannot_be_read_is_listed_whoever_owns_it_and_one_of_others_is_not() -> None:
    ours, others = machine(1), replace(machine(2), owner=Owner("another", "0" * 16))
    (odd,) = read_each([{"id": "i-3"}], lambda raw: cast("Instance", raw["lacks"]), lambda raw: raw["id"])
    found = listed_by([ours, others, odd]).instances
    assert [each.id for each in found] == [ours.id, "i-3"]
    assert warnings(world_of(view(job(1), [member(1)]), volatile={"clouds": {"local": listing(*found)}})), "and told"
