"""Ten nights: a trouble at 03:00, played in the simulated world, and what people are sent and shown of it.

`python -m tests.sim.night`, of `make docs`, writes them into docs/night.md; test_night.py says when they are stale.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from spotsup_simulator.cloud import ZONES
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.alerts.digests import clock
from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.alerts.texts import slack_text
from supervisor.events import Level
from supervisor.model import JobState
from supervisor.planner.world import Rules
from tests.sim.harness import NO_FAULTS, machine_with, record, service, submit
from tests.sim.promises import jobs_of
from tools.stack import ROOT
from tools.states import put

DOCUMENT = ROOT / "docs" / "night.md"
JOB = "bert"
STRIKES_AT = datetime(2026, 1, 13, 3, tzinfo=UTC).timestamp()
WIDTH = 118


@dataclass(frozen=True)
class Night:
    """What was sent and shown."""

    sent: tuple[tuple[int, Outgoing], ...]  # in whole minutes after the trouble began
    headline: str
    status: str  # the first line of `spotsupctl status`
    until: float

    def told(self) -> list[tuple[int, str]]:
        """Return when people were told of what: alerts of the level `warning` and above."""
        return [
            (minute, str(event.kind))
            for minute, message in self.sent
            for event in message.events
            if event.kind.level >= Level.WARNING
        ]

    def text(self) -> str:
        """Return all that a person reads, in order."""
        rows: list[tuple[str, str]] = []
        for minute, message in self.sent:
            for line in slack_text(message.events).splitlines():
                text = re.sub(r"  \([^()]*\)$", "", line)
                again = any(text == before for _, before in rows)
                rows.append(
                    (f"{clock(STRIKES_AT + 60 * minute)[:5]}  ", f"{text[: WIDTH // 2]}… (the same)" if again else text)
                )
        shown = [
            (f"{clock(self.until)[:5]}  ", "$ spotsupctl daemon status"),
            ("       ", f"leader: {self.headline}"),
            ("       ", f"$ spotsupctl status {JOB}"),
            ("       ", self.status),
        ]
        lines = [
            textwrap.fill(text, WIDTH, initial_indent=at, subsequent_indent=" " * 9, break_on_hyphens=False)
            for at, text in (*rows, *shown)
        ]
        return "\n".join(["```text", *lines, "```", ""])


def _evening() -> World:
    """A job that trains on 4 nodes, and needs 2, with the rules and the channel of Slack that one has by default."""
    world = World(Conditions(1, NO_FAULTS, Rules(alerts=True, channels=(Channel(),))))
    world.run(1.0)
    world.clock.time = STRIKES_AT - 420.0
    world.bootstrap_s, world.nodes.progress_every_s = 120.0, 10.0
    submit(world, JOB, 2, 4, 4)
    assert world.run_until(lambda w: record(w, JOB).state is JobState.RUNNING, 400.0)
    world.nodes.trainings[JOB].save()
    world.min_tick_s, world.busy_tick_s, world.idle_tick_s = (
        5.0,
        10.0,
        60.0,
    )  # right to the minute, and ten times as fast
    world.run(STRIKES_AT - world.clock.now())
    return world


def play(trouble: str) -> Night:
    """Play the night of a trouble."""
    minutes, strike = TROUBLES[trouble]
    world, sent = _evening(), []

    def take(message: Outgoing) -> Receipt:
        sent.append((int(world.clock.now() - STRIKES_AT) // 60, message))
        return Receipt(tuple(event.id for event in message.events))

    world.send = take  # type: ignore[method-assign]  # Slack answers, whatever else does not
    strike(world)
    world.run(60.0 * minutes)
    status = world.daemon.loop.status
    first = f"{JOB}  {record(world, JOB).state}  {status.about(JOB)}"
    return Night(tuple(sent), status.headline, first, world.clock.now())


def _ends(world: World, count: int) -> None:
    """Machines are preempted without a notice."""
    current = jobs_of(world)[JOB].round
    assert current is not None
    for node in current.nodes()[:count]:
        world.cloud.end(machine_with(world, node), EndCause.PREEMPTED)


def _full(world: World, lost: int) -> None:
    world.cloud.capacity = dict.fromkeys(ZONES, 0)
    _ends(world, lost)


def _always(world: World, fault: str, lost: int = 0) -> None:
    world.set_fault_rates(replace(NO_FAULTS, **{fault: 1.0}))
    _ends(world, lost)


def _used_up(world: World) -> None:
    world.cloud.used_up = frozenset(world.cloud.types)
    _ends(world, 1)


def _ends_nothing(world: World) -> None:
    _always(world, "false_success")
    service(world).commands.cancel(JOB)


def _other_account(world: World) -> None:
    world.cloud.account = "account-2"


def _cut_off(world: World) -> None:
    for machine in world.cloud.machines.values():
        machine.cut, machine.ssh = True, "refuses"


# By name, as docs/night.md has it: for how many minutes it is looked at, and what happens.
TROUBLES: dict[str, tuple[float, Callable[[World], None]]] = {
    "one node lost, no capacity": (35, lambda world: _full(world, 1)),
    "too few nodes left, no capacity": (35, lambda world: _full(world, 3)),
    "the cloud's API is away": (66, lambda world: _always(world, "unreachable")),
    "credentials denied": (63, lambda world: _always(world, "denied", 1)),
    "machines do not end": (72, _ends_nothing),
    "the program hangs": (62, lambda world: world.nodes.trainings[JOB].hang(world.clock.now())),
    "a quota is used up": (35, _used_up),
    "credentials of another account": (62, _other_account),
    "all machines silent": (63, _cut_off),
    "machines cannot be bootstrapped": (35, lambda world: _always(world, "bootstrap", 1)),
}


def written(text: str, nights: dict[str, Night]) -> str:
    """Return the document with what was seen in these nights."""
    for name, night in nights.items():
        text = put(text, name, night.text())
    return text


if __name__ == "__main__":
    from tests.sim.run import quiet

    quiet()
    found = {name: play(name) for name in TROUBLES}
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), found), encoding="utf-8")
