"""P15: what costs money without progress is told, and again while it lasts; and the check sees where it is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.events import EventKind
from supervisor.features.waits.record import WaitsRules
from supervisor.model import JobState
from tests.sim.harness import NO_FAULTS, RULES, empty_world, in_state, machine_of, service, submit
from tests.sim.promises import Violation, jobs_of
from tests.sim.told_check import ToldCheck

pytestmark = pytest.mark.long

HOUR_S = 3600.0


def a_job_that_trains() -> World:
    world = empty_world(replace(RULES, waits=WaitsRules(alert_s=900.0, lacks_s=600.0)))
    submit(world, "job", 2, 2, 2)
    assert world.run_until(in_state(JobState.RUNNING), 120.0)
    world.idle_tick_s = 30.0
    return world


def hangs(world: World) -> None:
    world.nodes.trainings["job"].hang(world.clock.now())


def ends_nothing(world: World) -> None:
    world.set_fault_rates(replace(NO_FAULTS, false_success=1.0))
    service(world).commands.cancel("job")


def told(world: World, kind: EventKind) -> list[float]:
    """When people were told of it, in hours."""
    return [(event.at - world.started_at) / HOUR_S for event in world.sent if event.kind is kind]


def deaf(world: World, *, after: int) -> None:
    """A check that hears of so many alerts, and of no further."""
    check = ToldCheck(world)
    hear = world.hooks.commit.pop()
    heard = [0]

    def some(*commit: object) -> None:
        if heard[0] < after:
            before = sum(len(each.told_at) for each in check._states.values())
            hear(*commit)  # type: ignore[arg-type]
            heard[0] += sum(len(each.told_at) for each in check._states.values()) > before

    def look() -> None:
        if wrong := check.check(jobs_of(world)):
            raise Violation(wrong)

    world.hooks.commit.append(some)
    world.hooks.step.append(look)


def test_steps_that_hang_are_told_again_for_as_long_as_they_do() -> None:
    world = a_job_that_trains()
    hangs(world)
    world.run(5 * HOUR_S)
    assert [round(each) for each in told(world, EventKind.STEPS_HANG)] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("happens", "after", "wrong"),
    [
        (hangs, 0, r"P15: job costs money without a step for \d+ s, and nobody was told$"),
        (hangs, 1, r"P15: job costs money without a step for \d+ s, and nobody was told again after \d+ s"),
        (ends_nothing, 0, r"P15: job-\w+-\d does not end for \d+ s, and nobody was told$"),
    ],
)
def test_the_check_sees_what_nobody_is_told_of(happens: object, after: int, wrong: str) -> None:
    world = a_job_that_trains()
    deaf(world, after=after)
    happens(world)  # type: ignore[operator]
    with pytest.raises(Violation, match=wrong):
        world.run(5 * HOUR_S)


def test_the_check_sees_what_is_not_sent() -> None:
    world = a_job_that_trains()

    def away(message: Outgoing) -> Receipt:
        return Receipt(error=f"{len(message.events)} are not taken: it is away")

    world.send = away  # type: ignore[method-assign]
    world.cloud.preempt(machine_of(world, 1), 60.0)
    with pytest.raises(Violation, match=r"P15: job-\w+-\d+ has not been sent for \d+ s"):
        world.run(4 * HOUR_S)


def test_what_etcd_does_not_take_is_told_as_soon_as_it_does() -> None:
    world = a_job_that_trains()
    world.etcd.full = True
    world.cloud.add_unjournaled("lost-x-1")
    world.run(300.0)
    unwritten = world.daemon.loop.status.counters["commits_unanswered"]
    assert unwritten > 1, "the next plan tries again"
    world.etcd.full = False
    assert world.run_until(lambda w: bool(told(w, EventKind.UNJOURNALED)), 120.0)


def test_clouds_that_do_not_answer_are_told_and_again() -> None:
    world = a_job_that_trains()
    sent: list[str] = []

    def take(message: Outgoing) -> Receipt:
        sent.extend(event.id for event in message.events)
        return Receipt(tuple(event.id for event in message.events))

    world.send = take  # type: ignore[method-assign]
    world.set_fault_rates(replace(NO_FAULTS, unreachable=1.0))
    world.run(2.5 * HOUR_S)
    causes = Counter(event.rpartition("-")[0] for event in sent if event.startswith(str(EventKind.NOT_LISTED)))
    assert causes == {"not-listed-local": 2}, "once, and an hour later; not of what machines left behind as well"
