"""`make sim`: the scenarios of many seeds, each run under a virtual clock. A failing seed is shrunk and explained.

The last line is the result. Exit status 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path

import structlog
from spotsup_simulator.world import World

from tests.sim.promises import Violation
from tests.sim.scenario import HOURS, Scenario, draw, draw_long
from tests.sim.scenario_run import ScenarioRun
from tests.sim.shrink import shrunk

ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 60


@dataclass
class Counts:
    """What happened, of one scenario or of all."""

    virtual_s: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    ticks: int = 0
    checks: int = 0
    launched: int = 0
    commands: int = 0
    injected: Counter[str] = field(default_factory=Counter)


@dataclass
class Result(Counts):
    """The result of one scenario. `digest`: of everything that happened; equal for equal seeds."""

    seed: int = 0
    broken: str = ""
    digest: str = ""
    log: tuple[str, ...] = ()


def run_scenario(scenario: Scenario, mutate: Callable[[World], None] = lambda _: None) -> Result:
    """Run one scenario. Never raises for what happens in it."""
    begun = time.process_time()
    run = ScenarioRun(scenario, mutate)
    broken = ""
    try:
        run.run()
    except Violation as violation:
        broken = str(violation)
    except Exception as error:  # noqa: BLE001 - an exception of the daemon's own code is a failure, too
        where = _innermost(error)
        broken = f"crash: {type(error).__name__}: {error} ({where})"
    world = run.world
    return Result(
        seed=scenario.seed,
        broken=broken,
        digest=world.digest(),
        virtual_s=world.clock.now() - world.started_at,
        cpu_s=time.process_time() - begun,
        events=world.steps,
        ticks=world.ticks,
        checks=run.promises.checked,
        launched=world.cloud.launched,
        commands=run.users.acknowledged,
        injected=world.rng.injected,
        log=tuple(world.log[-LAST_LINES:]) if broken else (),
    )


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""


def scenario_of(seed: int, hours: float) -> Scenario:
    """The scenario of a seed; a long one if `hours` is 0."""
    return draw(seed, hours) if hours else draw_long(seed)


def run_seed(asked: tuple[int, float]) -> Result:
    """For worker processes."""
    quiet()
    return run_scenario(scenario_of(*asked))


def quiet() -> None:
    """The daemon's own log lines would be millions."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def results(seeds: Iterator[int], hours: float, jobs: int) -> Iterator[Result]:
    """The results of all seeds, in the order in which they end. At most twice as many as processes are pending."""
    if jobs == 1:
        yield from (run_seed((seed, hours)) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(run_seed, (seed, hours)) for seed in islice(seeds, 2 * jobs)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(run_seed, (seed, hours)) for seed in islice(seeds, len(done))}
            yield from (each.result() for each in done)


def explain(seed: int, hours: float, broken: str) -> str:
    """A failure, shrunk, with all that is needed to reproduce it."""
    scenario, result = shrunk(scenario_of(seed, hours), run_scenario, broken)
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    injections = [f"  {s.at:9.1f} s  {s.kind} ({s.number}, {s.size:.2f})" for s in scenario.injections]
    rates = {name: value for name, value in vars(scenario.fault_rates).items() if value}
    return "\n".join(
        [
            f"seed {seed} at commit {commit.stdout.strip() or 'unknown'}: {broken}",
            f"reproduce: make sim SEED={seed}" + ("" if hours == HOURS else f" HOURS={hours:g}"),
            f"shrunk to {len(scenario.injections)} injections, fault rates {rates}, jobs {scenario.jobs}:",
            result.broken,
            *injections,
            "the end of its log:",
            *(f"  {line}" for line in result.log),
        ]
    )


@dataclass
class Total(Counts):
    """The sum of all results."""

    seeds: int = 0
    broken: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Add one result."""
        self.seeds += 1
        for each in fields(Counts):
            setattr(self, each.name, getattr(self, each.name) + getattr(result, each.name))
        if result.broken:
            self.broken.append(result)

    def line(self) -> str:
        """The totals in one line."""
        ratio = self.virtual_s / self.cpu_s if self.cpu_s else 0.0
        return (
            f"sim: {self.seeds} seeds, {self.virtual_s / 3600:,.0f} virtual hours, {self.injected.total():,} faults, "
            f"{self.checks:,} checks, {ratio:,.0f} : 1 per core, violations {len(self.broken)}"
        )

    def table(self) -> str:
        """The totals as a table."""
        rows = [
            ("virtual time", f"{self.virtual_s / 3600:,.0f} h ({self.virtual_s / 3600 / 24 / 365.25:.2f} years)"),
            ("CPU time", f"{self.cpu_s:,.0f} s"),
            ("simulated : real, per core", f"{self.virtual_s / max(self.cpu_s, 1e-9):,.0f} : 1"),
            ("seeds", f"{self.seeds:,}"),
            ("events", f"{self.events:,}"),
            ("decisions", f"{self.ticks:,}"),
            ("checks of all promises", f"{self.checks:,}"),
            ("machines launched", f"{self.launched:,}"),
            ("commands acknowledged", f"{self.commands:,}"),
            *((f"  {kind}", f"{count:,}") for kind, count in sorted(self.injected.items())),
            ("faults and commands injected", f"{self.injected.total():,}"),
            ("violations", f"{len(self.broken)}"),
        ]
        return "\n".join(f"{name:<32}{value:>24}" for name, value in rows)

    def data(self) -> dict[str, object]:
        """The totals as JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in {"broken", "injected"}}
        broken = [{"seed": result.seed, "broken": result.broken} for result in self.broken]
        return {**plain, "injected": dict(sorted(self.injected.items())), "violations": broken}


def _seeds(start: int, count: int | None, max_s: float | None) -> Iterator[int]:
    ends = time.monotonic() + max_s if max_s else None
    number = start
    while (count is None or number < start + count) and (ends is None or time.monotonic() < ends):
        yield number
        number += 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one, with its log")
    parser.add_argument(
        "--hours", type=float, default=HOURS, help="virtual hours with faults, per seed; 0: one day to a week"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, help="as many seeds as fit into this time, instead of --seeds")
    parser.add_argument("--table", action="store_true", help="print a table, and write build/sim.json")
    args = parser.parse_args()
    quiet()
    if args.seed is not None:
        return _run_one(args.seed, args.hours)
    count = None if args.minutes else args.seeds
    total, begun = Total(), time.monotonic()
    for result in results(
        _seeds(args.start, count, 60 * args.minutes if args.minutes else None), args.hours, args.jobs
    ):
        total.add(result)
        if result.broken:
            print(f"seed {result.seed}: {result.broken}", flush=True)
    for result in total.broken[:3]:
        print(explain(result.seed, args.hours, result.broken), flush=True)
    if args.table:
        print(total.table())
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / "sim.json").write_text(json.dumps({**total.data(), "wall_s": time.monotonic() - begun}))
    print(total.line())
    return 1 if total.broken else 0


def _run_one(seed: int, hours: float) -> int:
    result = run_scenario(scenario_of(seed, hours))
    if result.broken:
        print(explain(seed, hours, result.broken))
    print(f"sim: seed {seed}, digest {result.digest}, {result.events:,} events: {result.broken or 'no violation'}")
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
