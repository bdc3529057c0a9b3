"""Deciding only about jobs that may need it comes to the same as deciding about all of them, all the time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.planner.quiescence import Steady, skipped
from tests.sim.harness import RULES, empty_world, machine_of, service, submit
from tests.sim.promises import events_of, settled


def scenario(steady_s: float) -> World:
    """Two jobs: one of them loses, scales and gains nodes; the other is steady throughout."""
    world = empty_world(replace(RULES, steady_s=steady_s))
    submit(world, "job", 2, 3, 5, 1)
    submit(world, "other", 1, 2, 2)
    assert world.run_until(settled, 120.0)
    world.run(40.0)
    world.cloud.preempt(machine_of(world, 1), 30.0)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_JOINED)), 60.0)
    world.run(40.0)
    service(world).commands.scale("job", Scale(desired=4))
    world.run(40.0)
    world.cloud.end(machine_of(world, 0), EndCause.FAILED)
    assert world.run_until(settled, 120.0)
    service(world).commands.cancel("other")
    assert world.run_until(settled, 60.0)
    return world


def events(world: World, job: str) -> list[tuple[float, str]]:
    return [(round(event.at - world.started_at, 3), event.text) for event in world.journal.events(job)]


@pytest.mark.long
def test_skipping_steady_jobs_changes_no_event() -> None:
    always, steady = scenario(0.0), scenario(30.0)
    assert events(steady, "job") == events(always, "job")
    assert events(steady, "other") == events(always, "other")


def test_a_steady_job_is_skipped_until_something_changes() -> None:
    world = empty_world()
    submit(world, "job", 1, 2, 2)
    assert world.run_until(settled, 60.0)
    world.run(10.0)
    loop = world.daemon.loop
    view = loop._journal.read().jobs["job"]
    now = world.clock.now()
    whole = loop._world(loop._journal.read())
    steady = {"job": Steady(view, now)}
    assert skipped(whole, steady, [], now) == {"job"}
    assert skipped(whole, steady, ["job-xyz-1"], now) == {"job"}
    assert not skipped(whole, {}, [], now), "it was not found steady yet"
    assert not skipped(whole, steady, list(view.nodes), now), "a call about its node has ended"
    assert not skipped(whole, steady, [], now + whole.rules.steady_s), "time may have brought something"
    assert not skipped(whole, {"job": Steady(replace(view, nodes=dict(view.nodes)), now)}, [], now), (
        "its keys have changed"
    )
    changed = replace(whole, volatile=replace(whole.volatile, changed_jobs=frozenset({"job"})))
    assert view.progress is not None
    advanced = replace(view, progress=replace(view.progress, step=view.progress.step + 1))
    assert skipped(replace(whole, jobs={"job": advanced}), steady, [], now) == {"job"}, "steps advance, as they should"
    failing = replace(view, progress=replace(view.progress, checkpoint_problem="the disk is full"))
    assert not skipped(replace(whole, jobs={"job": failing}), steady, [], now), "checkpoints fail"
    assert not skipped(replace(whole, jobs={}), steady, [], now), "it is gone"
    assert not skipped(changed, steady, [], now), "its cloud lists a change"
    assert not skipped(replace(whole, unjournaled=frozenset({"job-xyz-9"})), steady, [], now), (
        "an unknown node publishes"
    )
