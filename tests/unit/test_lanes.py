"""Who goes first where more is to do than may run at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from supervisor.planner.actions import Action, Bootstrap, BootstrapDone, Launch, ListDone, ListInstances, Outcome
from supervisor.runtime.actor import ThreadActor
from supervisor.runtime.lanes import LANES, Lanes
from tests.unit.scene import N, as_job, job, node

FEW = {**LANES, "prepare": 2, "list": 3}


def bootstrap(number: int, of: str = "job") -> Action:
    return Bootstrap(as_job(node(number, N.BOOTSTRAPPING), of), as_job(job(), of))


def started(lanes: Lanes, lane: str = "prepare") -> list[str]:
    """The nodes of what may begin now."""
    found = []
    while (action := lanes.take(lane)) is not None:
        assert isinstance(action, Bootstrap | Launch)
        found.append(action.node.id)
    return found


def test_no_kind_waits_behind_another() -> None:
    lanes = Lanes(FEW)
    for number in range(9):
        lanes.add(bootstrap(number), 0.0)
    lanes.add(Launch(node(10, N.REQUESTED)), 1.0)
    lanes.add(ListInstances("local"), 1.0)
    assert len(started(lanes)) == 2
    assert lanes.is_full
    assert len(started(lanes, "launch")) == 1
    assert lanes.take("list") == ListInstances("local")
    assert lanes.waits_s(5.0) == dict.fromkeys(LANES, 0.0) | {"prepare": 5.0}


def test_the_job_with_the_fewest_under_way_is_first_and_the_oldest_among_equals() -> None:
    lanes = Lanes(FEW)
    actions = [bootstrap(number, "slow") for number in range(5)]
    for at, action in enumerate([*actions, bootstrap(7, "good"), bootstrap(8, "other")]):
        lanes.add(action, float(at))
    assert [each.partition("-")[0] for each in started(lanes)] == ["slow", "good"]
    lanes.end(actions[0])
    assert [each.partition("-")[0] for each in started(lanes)] == ["slow"], (
        "neither slow nor other has any under way: the oldest"
    )
    order = []
    lanes = Lanes({**FEW, "prepare": 1})
    for action in [*actions[:2], bootstrap(7, "good"), bootstrap(8, "good")]:
        lanes.add(action, 0.0)
    for _ in range(4):
        taken: Any = lanes.take("prepare")
        order.append(taken.node.job)
        lanes.end(taken)
    assert order == ["slow", "slow", "good", "good"], "one at a time: none is under way when the next is chosen"


def test_more_actions_than_threads_wait_their_turn() -> None:
    lock, gate, over = threading.Lock(), threading.Event(), threading.Semaphore(0)
    running, most = 0, 0

    def perform(action: Any) -> Outcome:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == FEW["list"]:
                gate.set()
        assert gate.wait(30)
        with lock:
            running -= 1
        return ListDone(action.cloud, 1.0)

    actor = ThreadActor(perform, over.release, limits=FEW)
    for number in range(30):
        actor.start(ListInstances(str(number)))
    assert all(over.acquire(timeout=30) for _ in range(30))
    assert {action.key for action, _ in actor.collect()} == {f"list:{number}" for number in range(30)}
    assert (actor.collect(), most) == ([], FEW["list"])


@pytest.mark.parametrize("busy", [2, 40])
def test_machines_that_are_prepared_slowly_delay_no_call_to_a_cloud(busy: int) -> None:
    gate, over = threading.Event(), threading.Semaphore(0)

    def perform(action: Action) -> Outcome:
        if isinstance(action, Bootstrap):
            assert gate.wait(30)
            return BootstrapDone(action.node.id)
        assert isinstance(action, ListInstances)
        return ListDone(action.cloud, 1.0)

    actor = ThreadActor(perform, over.release, limits=FEW)
    for number in range(busy):
        actor.start(bootstrap(number))
    actor.start(ListInstances("local"))
    assert over.acquire(timeout=30), "the listing, while all others wait"
    assert [action for action, _ in actor.collect()] == [ListInstances("local")]
    waits = actor.waits_s()
    assert waits["list"] == 0.0
    assert waits["prepare"] > 0.0 or busy <= FEW["prepare"]
    gate.set()
    assert all(over.acquire(timeout=30) for _ in range(busy))
