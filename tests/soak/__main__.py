"""`make soak-training`: a job through 200 random membership changes in a row, of every kind.

Real etcd, launchers and workers; the driver plays cloud, daemon and agents. Then as many rounds of the same launchers,
to see what they accumulate. Exits non-zero if a promise was broken, and names the logs. Writes
build/soak-training.json; `--seed` draws the same plan again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.session.audit import AuditError

from tests.soak import plan, verdict
from tests.soak.fleet import Done
from tests.soak.harness import CHECKPOINT_STEPS, Harness, Leftovers, harness
from tests.soak.nodes import SoakError
from tests.soak.plan import Change
from tests.soak.verdict import Cost
from tests.support.console import console, stop_on_signals, write_result
from tests.support.etcd_members import EtcdFailedError
from tools.stack import ROOT, InterruptedByUserError

LEASE_TTL_S = 2.0  # etcd's minimum
# Steps that may be made while a checkpoint is written: until it is complete, the previous one counts.
STEPS_WHILE_WRITING = 20
WARM_ROUNDS = 20
TOLERANCE = 1e-9


@dataclass
class Outcome:
    """The result of one job."""

    changes: int
    costs: list[Cost] = field(default_factory=list)
    rounds: int = 0
    steps: int = 0
    samples_repeated: int | None = None
    samples_missed: int | None = None
    # From the weights of an undisturbed run.
    weights_differ_by: float | None = None
    leftovers: Leftovers | None = None
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        pauses: defaultdict[str, list[float]] = defaultdict(list)
        for cost in self.costs:
            pauses[cost.done.change.kind].append(round(cost.pause_s, 2))
        leftovers = asdict(self.leftovers) if self.leftovers else None
        return {
            "changes": self.changes,
            "changes_done": len(self.costs),
            "rounds": self.rounds,
            "steps": self.steps,
            "samples_repeated": self.samples_repeated,
            "samples_missed": self.samples_missed,
            "weights_differ_by": self.weights_differ_by,
            "leftovers": leftovers,
            "pauses_s": dict(sorted(pauses.items())),
        }


def soak(name: str, folder: Path, changes: Sequence[Change]) -> Outcome:
    """Take one job through all changes to its end."""
    outcome, began = Outcome(len(changes)), time.monotonic()
    with harness(folder, plan.start(), lease_ttl_s=LEASE_TTL_S) as job:
        try:
            for change in changes:
                done = job.fleet.carry_out(change)
                _log(f"{name} {change.number}/{len(changes)}", done, time.monotonic() - began)
            job.finish()
        except (SoakError, EtcdError) as error:
            number = len(job.fleet.done)
            what = f"change {number + 1}, {changes[number].kind}" if number < len(changes) else "the end"
            outcome.broken.append(f"{name}: {what}: {error}")
            console.print(f"{changes[number] if number < len(changes) else ''}\n{job.log_tails()}", markup=False)
        else:
            outcome.leftovers = job.leftovers()
            outcome.broken += outcome.leftovers.violations()
        _judge(outcome, job)
    return outcome


def _judge(outcome: Outcome, job: Harness) -> None:
    try:
        report = job.report()
    except AuditError as error:
        outcome.broken.append(str(error))
        return
    fleet, rounds = job.fleet, job.job.rounds
    outcome.costs = verdict.costs(fleet.done, report, fleet.change_began_at)
    outcome.steps, outcome.rounds = report.steps, max(rounds)
    outcome.samples_repeated, outcome.samples_missed = report.samples_repeated, report.samples_missed
    outcome.broken += verdict.broken_promises(outcome.costs, report, rounds, CHECKPOINT_STEPS + STEPS_WHILE_WRITING)
    for node, usage in fleet.usage.items():
        outcome.broken += verdict.growth(node, usage, WARM_ROUNDS)
    if outcome.leftovers is not None:
        outcome.weights_differ_by = job.difference()
        if not outcome.weights_differ_by <= TOLERANCE:
            outcome.broken.append(f"the weights differ by {outcome.weights_differ_by:g} from an undisturbed run's")


def _log(where: str, done: Done, elapsed_s: float) -> None:
    change, took_s = done.change, done.ended_at - done.began_at
    nodes = ", ".join(change.victims or change.joined)
    rounds = f"round {done.before}" + (f" → {done.after}" if done.after != done.before else "")
    console.print(
        f"[dim]{elapsed_s:6.1f} s[/dim]  {where}  {change.kind} ({nodes}): {rounds}, "
        f"{len(change.after.members)} nodes, {took_s:.2f} s"
    )


def main() -> int:
    """The command line. Exit status 0 if every promise was kept; 130 after Ctrl-C."""
    options = _parse()
    stop_on_signals()
    options.json.unlink(missing_ok=True)
    began = time.monotonic()
    console.print(f"seed {options.seed}: {options.changes} changes; SEED={options.seed} draws the same again")
    parts = {"random": plan.draw(options.seed, options.changes), "steady": plan.steady(options.steady)}
    outcomes: dict[str, Outcome] = {}
    try:
        for name, changes in parts.items():
            if changes:
                outcomes[name] = soak(name, options.folder / name, changes)
    except InterruptedByUserError:
        console.print("interrupted; every process was ended")
        return 130
    except (SoakError, EtcdError, EtcdFailedError) as error:
        console.print(f"soak-training: {error}; logs: {options.folder}", style="red", markup=False)
        return 1
    broken = [text for outcome in outcomes.values() for text in outcome.broken]
    jobs = {name: outcome.as_json() for name, outcome in outcomes.items()}
    wall_s = round(time.monotonic() - began, 1)
    result = {"ok": not broken, "broken": broken, "seed": options.seed, "wall_s": wall_s, "jobs": jobs}
    write_result(options.json, result)
    for text in broken:
        console.print(f"broken: {text}", style="red", markup=False)
    changes_done = sum(len(outcome.costs) for outcome in outcomes.values())
    console.print(
        f"soak-training: seed {options.seed}, {changes_done} changes, {wall_s:.0f} s, "
        f"{len(broken)} broken promises   ({options.folder if broken else options.json})"
    )
    if not broken:
        shutil.rmtree(options.folder)
    return 1 if broken else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak-training", description=(__doc__ or "").splitlines()[0])
    build = ROOT / "build"
    parser.add_argument("--changes", type=int, default=200, metavar="N")
    parser.add_argument("--steady", type=int, metavar="N", help="rounds of the same launchers; default: as --changes")
    parser.add_argument("--seed", type=int, metavar="N", help="of the plan; default: random")
    parser.add_argument("--folder", type=Path, default=build / "soak-training", help="for everything that is written")
    parser.add_argument("--json", type=Path, default=build / "soak-training.json")
    options = parser.parse_args()
    options.steady = options.changes if options.steady is None else options.steady
    options.seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    options.folder = options.folder.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
