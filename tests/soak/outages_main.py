"""`make soak-outages`: etcd is killed, frozen, emptied, compacted under a job that trains, and the job must not care.

No worker may be started anew and no round formed, steps go on; and afterwards a node can join, and another be lost.
Exits non-zero where that was not so. Writes build/bench/soak-outages.json; `--quick` leaves the ten minutes out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from spotsup_trainer.etcd import EtcdError
from spotsup_trainer.session.audit import AuditError

from benchmarks import results
from benchmarks.results import Row, Sample
from provisioners.localcloud.processes import Identity
from tests.soak import plan
from tests.soak.bed import Bed, bed
from tests.soak.etcd import EtcdFailedError
from tests.soak.face import conclude, console, stop_on_signals, write
from tests.soak.nodes import SoakError
from tests.soak.outages import Case, cases, completed, largest_gap_s
from tests.soak.plan import Change, Cluster, Kind
from tests.soak.verdict import SUBJECT
from tools.stack import ROOT, InterruptedByUserError

LEASE_TTL_S = 5.0  # as a daemon's nodes have it
BEFORE_S = 5.0
# Leases end, amnesties pass, watches resume: what an outage leads to has come by then.
AFTER_S = 3 * LEASE_TTL_S
MAX_GAP_S = 2.0  # a machine that others use stops for a second now and then
GAP, USUAL_GAP, STEPS, JOIN, LOSS, RESUMED = (
    "largest gap between steps",
    "largest gap before",
    "steps meanwhile",
    "pause when a node joins afterwards",
    "pause when a node is lost afterwards",
    "from etcd's return to the next step",
)


@dataclass
class Outcome:
    """What one case has shown."""

    case: Case
    samples: list[Sample] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def note(self, metric: str, unit: str, value: float) -> None:
        """A measurement."""
        self.samples.append(Sample(self.case.name, SUBJECT, metric, unit, round(value, 3)))

    def told(self, metric: str) -> str:
        """For the table."""
        found = [sample for sample in self.samples if sample.metric == metric and sample.value is not None]
        if not found:
            return "-"
        worst = max(sample.value or 0.0 for sample in found)
        return f"{worst:.2f} s" if found[0].unit == "s" else f"{worst:g}"


class Trial:
    """One case with a job of its own."""

    def __init__(self, case: Case, job: Bed, outcome: Outcome) -> None:
        self.case, self.bed, self.outcome = case, job, outcome
        self.fleet = job.fleet
        self._changes = 0

    def run(self) -> None:
        """Raises SoakError or EtcdError where it cannot go on."""
        time.sleep(BEFORE_S)
        if self.case.loses:
            self._lose_meanwhile()
        else:
            self._undisturbed()
        members = self.fleet.cluster.members
        joins = self._change(Kind.JOINS, (), (self._fresh(),))
        lost = self._change(Kind.LOST, (members[0],), ())
        self.bed.finish()
        pauses = {change.after: change.pause_s for change in self.bed.report().changes}
        self.outcome.note(JOIN, "s", pauses[joins])
        self.outcome.note(LOSS, "s", pauses[lost])
        report = self.bed.report()
        if report.samples_repeated or report.samples_missed:
            self._broken(f"{report.samples_repeated} samples were repeated, {report.samples_missed} missed")
        for text in self.bed.leftovers().in_words():
            self._broken(text)

    def _undisturbed(self) -> None:
        number, workers, began = self._round(), self.fleet.workers(), time.time()
        with self.case.outage(self.bed):
            time.sleep(self.case.seconds)
            if self.case.etcds > 1:
                # With one endpoint gone all goes on as ever. What follows is about the round that this leads to.
                self._expect_undisturbed(number, workers, began, time.time())
                number, workers, began = (
                    self._change(Kind.JOINS, (), (self._fresh(),)),
                    self.fleet.workers(),
                    time.time(),
                )
                time.sleep(self.case.seconds)
            ended = time.time()
        time.sleep(AFTER_S)
        self._expect_undisturbed(number, workers, began, ended)
        self.fleet.hint_again()

    def _expect_undisturbed(self, number: int, workers: set[Identity], began: float, ended: float) -> None:
        """Since `began`, until now."""
        times = completed(self.bed.lines())
        gap_s = largest_gap_s(times, began, time.time())
        self.outcome.note(GAP, "s", gap_s)
        self.outcome.note(USUAL_GAP, "s", largest_gap_s(times, began - BEFORE_S, began))
        self.outcome.note(STEPS, "steps", sum(began <= at <= ended for at in times))
        if self.fleet.workers() != workers:
            self._broken("workers were started anew")
        if self._newest_round() != number:
            self._broken(f"round {number} was ended: round {self._newest_round()} trains now")
        if gap_s > MAX_GAP_S:
            self._broken(f"no step for {gap_s:.1f} s")

    def _lose_meanwhile(self) -> None:
        """Nobody can tell the others until etcd is back; then they go on by themselves."""
        lost, number = self.fleet.cluster.members[0], self._round()
        with self.case.outage(self.bed):
            self.fleet.network.nodes[lost].kill()
            time.sleep(self.case.seconds)
        back = time.time()
        self.fleet.lost(lost)
        after = self.bed.job.settled(self.fleet.cluster.members, number, 60.0).number
        self.outcome.note(RESUMED, "s", min(line.t for line in self.bed.lines() if line.round == after) - back)

    def _change(self, kind: Kind, struck: tuple[str, ...], joined: tuple[str, ...]) -> int:
        """Have a membership change; the round that it leads to."""
        self._changes += 1
        members = tuple(node for node in self.fleet.cluster.members if node not in struck) + joined
        change = Change(
            *(self._changes, kind, 1, struck, joined, (), joined),
            delay_s=0.0,
            told=True,
            silent=False,
            after=Cluster(members),
        )
        return self.fleet.carry_out(change).after

    def _fresh(self) -> str:
        return f"n{len(self.fleet.network.nodes) + 1}"

    def _round(self) -> int:
        found = self.bed.job.round()
        assert found is not None
        return found.number

    def _newest_round(self) -> int:
        """By what is trained, not by what etcd says."""
        return max(int(folder.name) for folder in self.bed.audit.iterdir())

    def _broken(self, text: str) -> None:
        self.outcome.broken.append(f"{self.case.name}: {text}")


def examine(case: Case, folder: Path) -> Outcome:
    """One case, from a job's start to its end."""
    outcome = Outcome(case)
    with bed(folder, plan.start(), etcds=case.etcds, lease_ttl_s=LEASE_TTL_S) as job:
        try:
            Trial(case, job, outcome).run()
        except (SoakError, EtcdError, EtcdFailedError, AuditError) as error:
            outcome.broken.append(f"{case.name}: {error}")
            console.print(f"{error}\n{job.last_words()}", markup=False)
    return outcome


def show(outcomes: Sequence[Outcome]) -> None:
    """The table at the end."""
    table = Table(title="A job while etcd fails", title_justify="left", title_style="bold", box=None, pad_edge=False)
    heads = ("case", "largest gap\n(before)", "steps\nmeanwhile", "joins\nafterwards", "lost\nafterwards", "")
    for head in heads:
        table.add_column(head, justify="left" if head == "case" else "right")
    for outcome in outcomes:
        told = outcome.told
        gap = f"{told(GAP)} ({told(USUAL_GAP)})" if told(GAP) != "-" else f"on {told(RESUMED)} after"
        verdict = "[red]broken[/red]" if outcome.broken else "[green]kept[/green]"
        table.add_row(outcome.case.name, gap, told(STEPS), told(JOIN), told(LOSS), verdict)
    console.print()
    console.print(table)


def main() -> int:
    """Examine, write, show. Exit status 0 where every case went well; 130 after Ctrl-C."""
    options = _parse()
    stop_on_signals()
    options.json.unlink(missing_ok=True)
    about, began = results.machine(), time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for number, case in enumerate(cases(quick=options.quick)):
            if any(text in case.name for text in options.only.split(",")):
                console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {case.name}")
                outcomes.append(examine(case, options.folder / f"{number}"))
    except InterruptedByUserError:
        console.print("interrupted; every process was ended")
        return 130
    except (SoakError, EtcdError, EtcdFailedError) as error:
        console.print(f"soak-outages: {error}; logs: {options.folder}", style="red", markup=False)
        return 1
    rows: list[Row] = results.summarise([sample for outcome in outcomes for sample in outcome.samples])
    broken = [text for outcome in outcomes for text in outcome.broken]
    write(options.json, rows, about, broken, wall_s=round(time.monotonic() - began, 1))
    show(outcomes)
    if not broken:
        shutil.rmtree(options.folder)
    return conclude(broken, options.folder, "make soak-outages")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak-outages", description=(__doc__ or "").splitlines()[0])
    build = ROOT / "build"
    parser.add_argument("--quick", action="store_true", help="without the outage of ten minutes")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains it; several: a,b")
    parser.add_argument("--folder", type=Path, default=build / "soak-outages", help="for what is written meanwhile")
    parser.add_argument("--json", type=Path, default=build / "bench" / "soak-outages.json")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
