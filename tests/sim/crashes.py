"""`make sim-crashes`: a crash at every boundary (before an intent, after it, after the call, after its outcome).

Each scenario runs once without a fault, to count the boundaries that the daemon passes; then once more for each
boundary and each way to break there. The end must be the same: no leak, no double, no false kill, and each alert sent
at least once under one id.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

from spotsup_simulator.cloud import CAPACITY
from spotsup_simulator.daemon import Daemon, DiedError
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.errors import SpotsupError
from supervisor.events import ALERT_KINDS
from supervisor.model import OPEN_NODE_STATES, JobState, NodeState
from supervisor.spec_limits import LimitChanges
from tests.sim.harness import NO_FAULTS, RULES, machine_of, service, submit
from tests.sim.promises import Promises, Violation, jobs_of, settled

WAYS = ("crash", "hang", "raise")
HANG_S = 20.0
QUIET_S = 600.0
# Reads happen all the time: the first boundaries of each kind stand for the others.
READS = ("ListInstances", "ListLeftovers", "FetchOffers")
MAX_OF_A_READ = 2
SIGNS = {"leaks": "P1", "doubles": "P2", "false kills": "P4"}
SCENARIO_RULES = replace(RULES, leftovers_s=20.0)


@dataclass(frozen=True)
class Boundary:
    """The `number`th time that a daemon passes here."""

    where: str
    kind: str
    number: int


@dataclass(frozen=True)
class End:
    """What must be the same at the end of every run of a scenario."""

    jobs: tuple[tuple[str, str, int, int, int], ...]
    machines: int
    alerts: tuple[str, ...]


class CrashRun:
    """One scenario in one world; the daemon breaks at the first boundary of `breaks`, its successor at the next."""

    def __init__(self, scenario: Callable[[World], None], breaks: dict[int, tuple[Boundary, str]]) -> None:
        self.passed: list[Boundary] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._breaks = breaks
        self._scenario = scenario
        self._broken = 0
        self.world = World(Conditions(1, NO_FAULTS, SCENARIO_RULES))
        self.world.idle_tick_s = 2.0
        Promises(self.world)
        self.world.hooks.boundary.append(self._at_boundary)

    def play(self) -> End:
        """Run to the end. Raises Violation."""
        world = self.world
        world.run(1.0)
        self._scenario(world)
        if not world.run_until(lambda w: settled(w) and _quiet(w), QUIET_S):
            raise Violation("liveness: the world does not settle")
        return _end(world)

    def _at_boundary(self, daemon: Daemon, where: str, kind: str) -> None:
        self._counts[where, kind] += 1
        here = Boundary(where, kind, self._counts[where, kind])
        self.passed.append(here)
        due = self._breaks.get(self._broken)
        if due is None or due[0] != here:
            return
        self._broken += 1
        self._counts.clear()
        self.passed.clear()
        self._break(daemon, due[1])

    def _break(self, daemon: Daemon, way: str) -> None:
        world = self.world
        if way == "raise":
            raise RuntimeError("broken by the test")
        world.daemon = world.start_daemon()
        if way == "crash":
            raise DiedError
        world.hang(daemon, HANG_S)


def _quiet(world: World) -> bool:
    """No alert is pending, nothing is left behind, and no machine is unjournaled."""
    unjournaled = {m.instance.node for m in world.cloud.machines.values() if m.billed}
    known = {
        n.machine_name for job in jobs_of(world).values() for n in job.nodes.values() if n.state in OPEN_NODE_STATES
    }
    return not world.journal.read().alerts and not world.cloud.leftover_by_id and unjournaled <= known


def _end(world: World) -> End:
    sent: dict[str, str] = {}
    for event in world.sent:
        if sent.setdefault(event.id, event.text) != event.text:
            raise Violation(f"alerts: {event.id} was sent with two texts")
    jobs = jobs_of(world)
    events = [event for name in jobs for event in world.journal.events(name)]
    unsent = [event for event in events if event.kind in ALERT_KINDS and event.id not in sent]
    if unsent:
        raise Violation(f"alerts: {unsent[0].id} was never sent: {unsent[0].text}")
    return End(
        tuple((n, j.record.state, j.record.desired_nodes, j.record.spare_nodes, _open(j)) for n, j in jobs.items()),
        sum(machine.billed for machine in world.cloud.machines.values()),
        tuple(sorted({str(event.kind) for event in world.sent if event.kind in ALERT_KINDS})),
    )


def _open(job: object) -> int:
    return sum(node.state in OPEN_NODE_STATES for node in job.nodes.values())  # type: ignore[attr-defined]


# -- scenarios ---------------------------------------------------------------------------------------------


def _command(world: World, command: Callable[[World], object]) -> None:
    """Give a command, again until a reply arrives."""
    for _ in range(20):
        try:
            command(world)
        except SpotsupError:
            world.run(2.0)
        else:
            return
    raise Violation("liveness: no daemon takes a command")


def _train(world: World, spares: int = 0) -> None:
    _command(world, lambda w: submit(w, "job", 1, 2, 3, spares))
    _settle(world)


def _settle(world: World) -> None:
    if not world.run_until(settled, QUIET_S):
        raise Violation("liveness: the world does not settle between two steps")


def _start(world: World) -> None:
    _train(world, spares=1)


def _notice(world: World) -> None:
    _train(world)
    world.cloud.preempt(machine_of(world, 1), 60.0)
    world.run(1.0)


def _kill(world: World) -> None:
    _train(world)
    world.cloud.end(machine_of(world, 0), EndCause.UNKNOWN)
    world.run(8.0)


def _silence(world: World) -> None:
    _train(world)
    machine_of(world, 1).silent = True
    world.run(8.0)


def _scale(world: World) -> None:
    _train(world)
    _command(world, lambda w: service(w).commands.scale("job", Scale(desired=3)))
    _settle(world)
    _command(world, lambda w: service(w).commands.scale("job", Scale(desired=1)))
    world.run(1.0)


def _cancel(world: World) -> None:
    _train(world)
    _command(world, lambda w: service(w).commands.cancel("job"))
    world.run(1.0)


def _limit(world: World) -> None:
    """The job pauses for its limit, and goes on when that is raised."""
    _train(world)
    _command(world, lambda w: service(w).commands.limits("job", LimitChanges(hours=0.001)))
    if not world.run_until(lambda w: jobs_of(w)["job"].record.state is JobState.PAUSED, QUIET_S):
        raise Violation("P12: the limit does not pause the job")
    _command(world, lambda w: service(w).commands.limits("job", LimitChanges(hours=1000.0)))


def _again(world: World) -> None:
    """The name of a job that has ended is used again."""
    _cancel(world)
    _settle(world)
    old = jobs_of(world)["job"].record.uid
    _train(world)
    if [run.job.uid for run in world.journal.past_runs("job")] != [old]:
        raise Violation("P12: the old run is lost")


def _succeed(world: World) -> None:
    _train(world)
    world.nodes.trainings["job"].finish()
    world.run_until(lambda w: jobs_of(w)["job"].record.state is JobState.SUCCEEDED, 60.0)


def _lost_replies(world: World) -> None:
    """No launch is answered at first: machines are looked up by token."""
    world.set_fault_rates(FaultRates(lost_reply=1.0))
    _command(world, lambda w: submit(w, "job", 1, 2, 3))
    world.run(30.0)
    world.set_fault_rates(NO_FAULTS)


def _full(world: World) -> None:
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 1)
    _command(world, lambda w: submit(w, "job", 1, 2, 3))
    world.run(20.0)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, CAPACITY)


def _failed_bootstrap(world: World) -> None:
    world.set_fault_rates(FaultRates(bootstrap=1.0))
    _command(world, lambda w: submit(w, "job", 1, 2, 3))
    world.run(4.0)
    world.set_fault_rates(NO_FAULTS)


def _unjournaled(world: World) -> None:
    """A machine whose node is gone, by the journal, and a disk of no node."""
    _train(world)
    _command(world, lambda w: service(w).commands.scale("job", Scale(desired=1)))
    _settle(world)
    gone = next(node for node in jobs_of(world)["job"].nodes.values() if node.state is NodeState.GONE)
    world.cloud.add_unjournaled(gone.id)
    world.cloud.add_leftover("disk-1", "")
    world.run(1.0)


SCENARIOS: dict[str, Callable[[World], None]] = {
    "start": _start,
    "notice": _notice,
    "kill": _kill,
    "silence": _silence,
    "scale": _scale,
    "cancel": _cancel,
    "limit": _limit,
    "name used again": _again,
    "success": _succeed,
    "lost launch replies": _lost_replies,
    "full zones": _full,
    "failed bootstrap": _failed_bootstrap,
    "unjournaled": _unjournaled,
}


# -- all of them -------------------------------------------------------------------------------------------


def boundaries(passed: list[Boundary], limit: int | None) -> list[Boundary]:
    """Where to break: at all boundaries of each kind, or the first `limit`; of reads at a few."""
    return [b for b in passed if b.number <= (MAX_OF_A_READ if b.kind in READS else limit or b.number)]


@dataclass
class Tally:
    """What was tried, and each failure: scenario, where and how, what was wrong."""

    scenarios: int = 0
    runs: int = 0
    pairs: int = 0
    places: set[tuple[str, str]] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.scenarios += other.scenarios
        self.runs += other.runs
        self.pairs += other.pairs
        self.places |= other.places
        self.failures += other.failures

    def line(self) -> str:
        """The tally in one line."""
        tried = f"{self.scenarios} scenarios, {len(self.places)} boundaries, {self.runs} runs ({self.pairs} of pairs)"
        broken = {what: sum(f": {sign}" in text for text in self.failures) for what, sign in SIGNS.items()}
        counts = ", ".join(f"{what} {count}" for what, count in broken.items())
        return f"sim-crashes: {tried}, {counts}, failures in all {len(self.failures)}"


def enumerate_crashes(
    names: tuple[str, ...], ways: tuple[str, ...] = WAYS, limit: int | None = None, *, pairs: int = 0, seed: int = 1
) -> Tally:
    """Each scenario, each boundary, each way; and after each of them `pairs` second breaks, drawn by `seed` from all
    boundaries that the recovery passes, in all ways."""
    tally = Tally()
    for name in names:
        tally.scenarios += 1
        plain = CrashRun(SCENARIOS[name], {})
        expected = plain.play()
        for first in boundaries(plain.passed, limit):
            tally.places.add((first.where, first.kind))
            for way in ways:
                run = _try(tally, name, {0: (first, way)}, expected)
                again = list(product(boundaries(run.passed, limit), WAYS))
                rng = random.Random(f"{seed} {name} {first} {way}")
                for second in rng.sample(again, min(pairs, len(again))):
                    tally.pairs += 1
                    _try(tally, name, {0: (first, way), 1: second}, expected)
    return tally


def _enumerate(asked: tuple[str, int, int]) -> tuple[str, Tally]:
    """For worker processes."""
    from tests.sim.run import quiet

    quiet()
    name, pairs, seed = asked
    return name, enumerate_crashes((name,), pairs=pairs, seed=seed)


def _try(tally: Tally, name: str, breaks: dict[int, tuple[Boundary, str]], expected: End) -> CrashRun:
    run = CrashRun(SCENARIOS[name], breaks)
    tally.runs += 1
    wrong = ""
    try:
        end = run.play()
        if (end.jobs, end.machines) != (expected.jobs, expected.machines):
            wrong = f"the end is {end}, not {expected}"
    except Violation as violation:
        wrong = str(violation)
    if wrong:
        how = ", then ".join(f"{way} {b.where} of {b.kind} {b.number}" for b, way in breaks.values())
        tally.failures.append(f"{name}: {how}: {wrong}")
    return run


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.sim.crashes", description=__doc__)
    parser.add_argument("--pairs", type=int, default=0, help="how many second breaks are drawn after each first one")
    parser.add_argument("--seed", type=int, default=1, help="for the draw")
    parser.add_argument("--only", choices=sorted(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args()
    begun, total = time.monotonic(), Tally()
    asked = [(name, args.pairs, args.seed) for name in ([args.only] if args.only else SCENARIOS)]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for name, tally in pool.imap_unordered(_enumerate, asked):
            total.add(tally)
            print(f"{name}: {tally.runs} runs, failures {len(tally.failures)}", *tally.failures, sep="\n  ", flush=True)
    for where, kind in sorted(total.places):
        print(f"  {where:<16}{kind}")
    print(f"{total.line()}, {time.monotonic() - begun:.0f} s")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
