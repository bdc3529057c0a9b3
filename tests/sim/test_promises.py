"""Worlds drawn by Hypothesis: users, clouds and daemons do what they do, and the promises hold at every step."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from spotsup_trainer.wire import Ended, encode

from provisioners.base import EndCause
from supervisor.api.service import Scale
from supervisor.errors import RefusedError, SpotsupError
from supervisor.model import EventKind, JobState
from tests.sim.promises import events_of, settled, truth
from tests.sim.scenes import CALM, RULES, calm_world, empty_world, machine_of, service, submit
from tests.sim.world import Faults, World

QUIET_S = 400.0


def test_a_notice_brings_a_replacement_in_the_same_tick_and_one_change_of_membership() -> None:
    world = calm_world()
    before = truth(world)["job"].round
    assert before is not None
    doomed = machine_of(world, 1)
    world.cloud.preempt(doomed, 60.0)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_REQUESTED)), 1.0)
    assert world.run_until(settled, 120.0)
    after = truth(world)["job"].round
    assert after is not None
    assert after.number == before.number + 1
    assert doomed.instance.node not in after.nodes()
    assert world.nodes.trainings["job"].lost_steps == 0
    assert {event.kind for event in world.sent} >= {
        EventKind.NOTICE,
        EventKind.REPLACEMENT_REQUESTED,
        EventKind.REPLACEMENT_JOINED,
    }


def test_a_notice_without_capacity_leaves_in_time_and_loses_no_step() -> None:
    world = calm_world()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    doomed = machine_of(world, 0)
    world.cloud.preempt(doomed, 30.0)
    assert world.run_until(lambda w: truth(w)["job"].record.state is JobState.DEGRADED, 60.0)
    world.run(40.0)
    assert world.nodes.trainings["job"].lost_steps == 0
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 8)
    assert world.run_until(settled, 120.0)


def test_a_machine_that_vanishes_is_replaced_and_buried() -> None:
    world = calm_world()
    victim = machine_of(world, 2)
    world.cloud.end(victim, EndCause.UNKNOWN)
    assert world.run_until(lambda w: bool(truth(w)["job"].tombstones), 10.0)
    assert world.run_until(settled, 120.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [victim.instance.node]


def test_a_silent_machine_that_its_cloud_calls_running_is_suspected_then_replaced() -> None:
    world = calm_world()
    victim = machine_of(world, 2)
    victim.silent = True
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_SUSPECT)), 15.0)
    assert victim.alive
    assert world.run_until(settled, 120.0)
    assert not victim.alive


def test_a_machine_whose_agent_was_told_to_stop_is_replaced_at_once() -> None:
    world = calm_world()
    victim = machine_of(world, 1)
    node = victim.instance.node
    world.store.put(world.nodes.keys.ended("job", node), encode(Ended(node, "left", 0, "told to leave", 0.0)))
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_REQUESTED)), 1.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [node]
    assert not events_of(world, "job", EventKind.NODE_SUSPECT)
    assert world.run_until(settled, 120.0)
    assert not victim.alive


def test_a_machine_that_was_silent_for_a_moment_is_not_killed() -> None:
    world = calm_world()
    victim = machine_of(world, 1)
    victim.silent = True
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_SUSPECT)), 15.0)
    world.run(RULES.suspect_s / 2)
    victim.silent = False
    world.run(60.0)
    assert victim.alive
    assert settled(world)


def test_a_daemon_that_was_replaced_changes_nothing() -> None:
    world = calm_world()
    old = world.daemon
    world.crash_daemon()
    world.run(5.0)
    before = {key: kv.mod_revision for key, kv in world.store.keys.items() if "/world/jobs/" in key}
    world.cloud.preempt(machine_of(world, 0), 60.0)
    world.nodes.step()  # the notice is in etcd, and only the old daemon is awake
    world.store.remember()
    for _ in range(20):
        old.loop.tick()
    assert old.loop.status.counters.get("commits_stale", 0) > 0
    assert before == {key: kv.mod_revision for key, kv in world.store.keys.items() if "/world/jobs/" in key}


def test_scaling_up_and_down_and_the_end_release_every_machine() -> None:
    world = calm_world()
    service(world).scale("job", Scale(desired=4))
    assert world.run_until(lambda w: settled(w) and len(truth(w)["job"].round.nodes()) == 4, 60.0)  # type: ignore[union-attr]
    service(world).scale("job", Scale(desired=2))
    assert world.run_until(lambda w: settled(w) and len(truth(w)["job"].round.nodes()) == 2, 60.0)  # type: ignore[union-attr]
    training_of = world.nodes.trainings["job"]
    assert training_of.lost_steps == 0
    training_of.target_steps = 1
    assert world.run_until(lambda w: truth(w)["job"].record.state is JobState.SUCCEEDED and settled(w), 60.0)
    assert not any(machine.alive for machine in world.cloud.machines.values())


FAULTS = st.builds(
    Faults,
    transient=st.sampled_from([0.0, 0.3]),
    lost_reply=st.sampled_from([0.0, 0.4]),
    unreachable=st.sampled_from([0.0, 0.2]),
    bootstrap=st.sampled_from([0.0, 0.2]),
    unanswered_commit=st.sampled_from([0.0, 0.1]),
    slow_call=st.sampled_from([0.0, 0.2]),
    listing_lag_s=st.sampled_from([0.0, 5.0]),
    mirror_lag_s=st.sampled_from([0.0, 0.5]),
)
FAULTY = ("notice", "short notice", "vanish", "silence", "voice", "crash", "no daemon", "full", "room", "etcd")
COMMANDS = ("scale", "spares", "cancel")
STRIKES = st.lists(
    st.tuples(
        st.sampled_from([*FAULTY, *COMMANDS]),
        st.integers(0, 7),
        st.sampled_from([0.25, 2.0, 10.0, 40.0]),
    ),
    min_size=3,
    max_size=14,
)


def strike(world: World, kind: str, number: int) -> None:
    """One thing that happens to the world."""
    alive = [machine for machine in world.cloud.machines.values() if machine.alive]
    victim = alive[number % len(alive)] if alive else None
    match kind:
        case "notice" if victim:
            world.cloud.preempt(victim, 60.0)
        case "short notice" if victim:
            world.cloud.preempt(victim, 2.0)
        case "vanish" if victim:
            world.cloud.preempt(victim, 0.0)
        case "silence" if victim:
            victim.silent = True
        case "voice" if victim:
            victim.silent = False
        case "crash":
            world.crash_daemon()
        case "no daemon":
            world.lose_daemon()
        case "full":
            world.cloud.capacity["zone-a" if number % 2 else "zone-b"] = number % 3
        case "room":
            world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 16)
        case "etcd":
            world.store.away = not world.store.away
        case _ if kind in COMMANDS and not world.daemon_away:
            _ask(world, kind, number)
        case _:
            pass


def _ask(world: World, kind: str, number: int) -> None:
    """A user's command; what is acknowledged must be in the journal (P6)."""
    try:
        if kind == "cancel":
            service(world).cancel("other")
            assert truth(world)["other"].record.cancel_requested
        elif kind == "spares":
            service(world).scale("job", Scale(spares=number % 3))
            assert truth(world)["job"].record.spare_nodes == number % 3
        else:
            desired = 2 + number % 3
            service(world).scale("job", Scale(desired=desired))
            assert truth(world)["job"].record.desired_nodes == desired
    except (RefusedError, SpotsupError):
        return  # refused, or no answer: then nothing was promised


@settings(
    max_examples=int(os.environ.get("SPOTSUP_SIM_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(seed=st.integers(0, 2**32), faults=FAULTS, strikes=STRIKES, spares=st.integers(0, 2), all_there=st.booleans())
def test_promises_hold_in_any_world_and_calm_brings_everything_back(
    seed: int, faults: Faults, strikes: list[tuple[str, int, float]], spares: int, all_there: bool
) -> None:
    world = empty_world(seed=seed)
    submit(world, "job", 2, 3, 4, spares)
    submit(world, "other", 1, 2, 2, spares // 2)
    assert not all_there or world.run_until(settled, 60.0)
    world.set_faults(faults)
    for kind, number, wait_s in strikes:
        strike(world, kind, number)
        world.run(wait_s)
    world.set_faults(replace(CALM))
    world.store.away = False
    if world.daemon_away:
        world.crash_daemon()
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 16)
    assert world.run_until(settled, QUIET_S), _picture(world)


def _picture(world: World) -> str:
    """What is stuck, for the reader of a failure."""
    lines = [f"{name}: {text}" for name, text in world.daemon.loop.status.sentences.items()]
    for job in truth(world).values():
        lines.append(f"{job.record.name} {job.record.state} hint {job.hint} round {job.round and job.round.nodes()}")
        lines += [f"  {node.id} {node.state} {node.error} {node.notice}" for node in job.nodes.values()]
    return "\n".join(lines)
