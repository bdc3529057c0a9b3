"""Broken messages beside two jobs that train: nothing is ended, nothing stops, people are told once per key."""

from __future__ import annotations

import json

import pytest

from supervisor.events import EventKind
from supervisor.model import JobState
from tests.sim.harness import alive, in_state, submit, training_world
from tests.sim.promises import jobs_of

DEEP = b"[" * 200_000
LIE = json.dumps({"node": "somebody", "deadline": 5.0, "seen_at": 1.0, "source": "aws"}).encode()


@pytest.mark.long
def test_broken_messages_below_one_job_and_below_none_disturb_no_job() -> None:
    world = training_world(desired=2)
    submit(world, "other", 2, 2, 2)
    assert world.run_until(lambda w: jobs_of(w)["other"].record.state is JobState.RUNNING, 60.0)
    keys, machines = world.nodes.keys, alive(world)
    rounds = {name: job.round for name, job in jobs_of(world).items()}
    node = next(iter(jobs_of(world)["job"].nodes))
    broken = {
        keys.progress("nobody"): DEEP,
        keys.notice("job", node): LIE,
        keys.ended("job", node): json.dumps({"node": node, "outcome": 5}).encode(),
        keys.notice("other", "\x1b[2J"): b"\xff" * 1000,
        f"{keys.run('job')}result": b'{"outcome":"success","message":5,"round":1}',
        f"{keys.world}run/": b"x" * 1_200_000,
    }
    for _ in range(3):
        for key, value in broken.items():
            world.etcd.put(key, value)
        world.wake_daemons()
        world.run(120.0)
    assert in_state(JobState.RUNNING)(world)
    assert alive(world) == machines
    assert {name: job.round for name, job in jobs_of(world).items()} == rounds
    alerts = [event for event in world.sent if event.kind is EventKind.UNREADABLE]
    assert len(alerts) == 5, "the last one is no key of ours"
    # That of no node of ours is deleted: put again, it counts again, without another alert.
    assert world.daemon.loop.status.counters["messages_unreadable"] == 7
    world.crash_daemon()
    world.run(60.0)
    assert in_state(JobState.RUNNING)(world)
    assert alive(world) == machines
