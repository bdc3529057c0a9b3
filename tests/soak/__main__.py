"""`make soak-training`: a job through hundreds of membership changes in a row, of every kind, drawn at random.

Real etcd, launchers and workers; the driver plays cloud, daemon and agents. Then as many rounds of the same launchers,
to see what piles up in them. Exits non-zero where a promise was broken, and says where the logs are. Writes
build/bench/soak-training.json; `--seed` draws the same plan again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.session.audit import AuditError

from benchmarks import results
from benchmarks.results import Row
from tests.soak import plan, verdict
from tests.soak.bed import CHECKPOINT_STEPS, Bed, Leftovers, bed
from tests.soak.etcd import EtcdFailedError
from tests.soak.face import conclude, console, stop_on_signals, write
from tests.soak.fleet import Done
from tests.soak.nodes import SoakError, Usage
from tests.soak.plan import Change
from tests.soak.verdict import Cost
from tools.stack import ROOT, InterruptedByUserError

LEASE_TTL_S = 2.0  # etcd gives no less
# A checkpoint is written beside training: until it is whole, the one before counts.
WRITTEN_MEANWHILE = 20
WARM_ROUNDS = 20
TOLERANCE = 1e-9


@dataclass
class Outcome:
    """What came of one job. `difference`: of its weights from those of an undisturbed run; None: not known."""

    changes: int
    costs: list[Cost] = field(default_factory=list)
    rounds: int = 0
    steps: int = 0
    samples_repeated: int | None = None
    samples_missed: int | None = None
    difference: float | None = None
    leftovers: Leftovers | None = None
    usage: dict[str, list[Usage]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "changes": self.changes,
            "changes_done": len(self.costs),
            "rounds": self.rounds,
            "steps": self.steps,
            "samples_repeated": self.samples_repeated,
            "samples_missed": self.samples_missed,
            "weights_differ_by": self.difference,
            "leftovers": asdict(self.leftovers) if self.leftovers else None,
            "usage": {
                node: {"first": asdict(usage[0]), "warm": asdict(usage[WARM_ROUNDS]), "last": asdict(usage[-1])}
                for node, usage in self.usage.items()
            },
            "wall_s": round(self.wall_s, 1),
        }


def soak(name: str, folder: Path, changes: Sequence[Change]) -> Outcome:
    """One job through all changes to its end. What goes wrong is in `broken`."""
    outcome, began = Outcome(len(changes)), time.monotonic()
    with bed(folder, plan.start(), lease_ttl_s=LEASE_TTL_S) as job:
        try:
            for change in changes:
                done = job.fleet.carry_out(change)
                _tell(f"{name} {change.number}/{len(changes)}", done, time.monotonic() - began)
            job.finish()
        except (SoakError, EtcdError) as error:
            number = len(job.fleet.done)
            what = f"change {number + 1}, {changes[number].kind}" if number < len(changes) else "the end"
            outcome.broken.append(f"{name}: {what}: {error}")
            console.print(f"{changes[number] if number < len(changes) else ''}\n{job.last_words()}", markup=False)
        else:
            outcome.leftovers = job.leftovers()
            outcome.broken += outcome.leftovers.in_words()
        _judge(outcome, job)
    outcome.wall_s = time.monotonic() - began
    return outcome


def _judge(outcome: Outcome, job: Bed) -> None:
    try:
        report = job.report()
    except AuditError as error:
        outcome.broken.append(str(error))
        return
    fleet, rounds = job.fleet, job.job.rounds
    outcome.costs = verdict.costs(fleet.done, report, fleet.struck_at)
    outcome.steps, outcome.rounds = report.steps, max(rounds)
    outcome.samples_repeated, outcome.samples_missed = report.samples_repeated, report.samples_missed
    outcome.broken += verdict.broken_promises(outcome.costs, report, rounds, CHECKPOINT_STEPS + WRITTEN_MEANWHILE)
    outcome.usage = {node: usage for node, usage in fleet.usage.items() if len(usage) > WARM_ROUNDS}
    for node, usage in fleet.usage.items():
        outcome.broken += verdict.growth(node, usage, WARM_ROUNDS)
    if outcome.leftovers is not None:
        outcome.difference = job.difference()
        if not outcome.difference <= TOLERANCE:
            outcome.broken.append(f"the weights differ by {outcome.difference:g} from those of an undisturbed run")


# -- telling -----------------------------------------------------------------------------------------------------


def _tell(where: str, done: Done, elapsed_s: float) -> None:
    change, took_s = done.change, done.ended_at - done.began_at
    struck = ", ".join(change.struck or change.joined)
    rounds = f"round {done.before}" + (f" → {done.after}" if done.after != done.before else "")
    console.print(
        f"[dim]{elapsed_s:6.1f} s[/dim]  {where}  {change.kind} ({struck}): {rounds}, "
        f"{len(change.after.members)} nodes, {took_s:.2f} s"
    )


def show(rows: Sequence[Row], outcomes: dict[str, Outcome]) -> None:
    """The tables at the end."""
    table = Table(title="Pauses by kind of change", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("change", "n", "rounds", "median", "p95", "max", "steps lost, at most"):
        table.add_column(column, justify="left" if column == "change" else "right")
    found = {(row.case, row.metric): row for row in rows}
    for case in dict.fromkeys(row.case for row in rows):
        pause, rounds = found[case, verdict.PAUSE], found[case, verdict.ROUNDS]
        times = (pause.median, found[case, verdict.PAUSE_P95].median, pause.max)
        told = (f"{value:.2f} s" if value is not None else "-" for value in times)
        lost = found[case, verdict.LOST].max
        table.add_row(case, str(pause.n), f"{(rounds.median or 0) * 1:g}", *told, f"{lost:g}")
    console.print()
    console.print(table)
    for name, outcome in outcomes.items():
        console.print()
        console.print(_in_words(name, outcome), markup=False)


def _in_words(name: str, outcome: Outcome) -> str:
    left, differ = outcome.leftovers, outcome.difference
    done = f"{len(outcome.costs)} of {outcome.changes} changes, {outcome.rounds} rounds, {outcome.steps} steps"
    lines = [f"{name}: {done}, {outcome.wall_s:.0f} s"]
    lines.append(f"  samples: {outcome.samples_repeated} repeated, {outcome.samples_missed} missed")
    lines.append(f"  weights: differ by {'?' if differ is None else f'{differ:.1e}'} from an undisturbed run's")
    if left is not None:
        counts = f"{len(left.processes)} processes, {len(left.ports)} ports, {len(left.temporary)} temporary files"
        lines.append(f"  left behind: {counts}; {left.keys} keys, which the daemon removes with the job")
    for node, usage in outcome.usage.items():
        first, last = usage[WARM_ROUNDS], usage[-1]
        lines.append(f"  {node}, rounds {first.round} → {last.round}: " + ", ".join(_grown(first, last)))
    return "\n".join(lines)


def _grown(first: Usage, last: Usage) -> list[str]:
    return [
        f"launcher {first.rss_kib} → {last.rss_kib} KiB",
        f"fork server {first.server_kib} → {last.server_kib} KiB",
        f"{first.files} → {last.files} descriptors",
        f"{first.threads} → {last.threads} threads",
        f"{first.run_dir} → {last.run_dir} files in its run folder",
    ]


def main() -> int:
    """Soak, judge, write, show. Exit status 0 where every promise was kept; 130 after Ctrl-C."""
    options = _parse()
    stop_on_signals()
    options.json.unlink(missing_ok=True)
    about, began = results.machine(), time.monotonic()
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
    rows = verdict.rows([cost for outcome in outcomes.values() for cost in outcome.costs])
    broken = [text for outcome in outcomes.values() for text in outcome.broken]
    jobs = {name: outcome.as_json() for name, outcome in outcomes.items()}
    wall_s = round(time.monotonic() - began, 1)
    write(options.json, rows, about, broken, seed=options.seed, wall_s=wall_s, jobs=jobs)
    show(rows, outcomes)
    if not broken:
        shutil.rmtree(options.folder)
    return conclude(broken, options.folder, f"make soak-training SEED={options.seed}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak-training", description=(__doc__ or "").splitlines()[0])
    build = ROOT / "build"
    parser.add_argument("--changes", type=int, default=200, metavar="N")
    parser.add_argument("--steady", type=int, metavar="N", help="rounds of the same launchers; as many as --changes")
    parser.add_argument("--seed", type=int, metavar="N", help="of the plan; by default another one each time")
    parser.add_argument(
        "--folder", type=Path, default=build / "soak-training", help="for all that is written meanwhile"
    )
    parser.add_argument("--json", type=Path, default=build / "bench" / "soak-training.json")
    options = parser.parse_args()
    options.steady = options.changes if options.steady is None else options.steady
    options.seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    options.folder = options.folder.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
