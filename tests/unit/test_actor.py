"""Actions on threads: every one ends in an outcome, whatever happens inside."""

from __future__ import annotations

import threading

from provisioners.base import Market, Offer, Unknown
from supervisor.model import NodeRecord
from supervisor.planner.actions import (
    Action,
    Launch,
    LaunchDone,
    ListDone,
    ListInstances,
    Outcome,
    Terminate,
    TerminateDone,
)
from supervisor.runtime.actor import ThreadActor

NODE = NodeRecord("n1", "job", "token", Offer("local", "l", "z", "t", Market.SPOT, None), 0.0)


def test_actions_run_side_by_side_and_each_outcome_wakes_the_loop() -> None:
    both_run = threading.Barrier(2, timeout=10)
    woken = threading.Semaphore(0)

    def perform(action: Action) -> Outcome:
        assert isinstance(action, ListInstances)
        both_run.wait()
        return ListDone(action.cloud, 1.0)

    actor = ThreadActor(perform, woken.release)
    actor.start(ListInstances("a"))
    actor.start(ListInstances("b"))
    assert woken.acquire(timeout=10)
    assert woken.acquire(timeout=10)
    assert {action.key for action, _ in actor.collect()} == {"list:a", "list:b"}
    assert actor.collect() == []


def test_an_unforeseen_error_becomes_the_outcome_that_promises_least() -> None:
    woken = threading.Semaphore(0)

    def perform(action: Action) -> Outcome:
        raise RuntimeError("bad luck")

    actor = ThreadActor(perform, woken.release)
    for action in (Launch(NODE), Terminate("local", "i-1", "n1")):
        actor.start(action)
        assert woken.acquire(timeout=10)
    launched, terminated = (outcome for _, outcome in actor.collect())
    assert isinstance(launched, LaunchDone)
    assert launched.outcome == Unknown("RuntimeError: bad luck")
    assert terminated == TerminateDone("n1", "i-1", "RuntimeError: bad luck")
