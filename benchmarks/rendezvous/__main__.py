"""`make bench-rendezvous`: how long many nodes take to agree on a round: spotsup, and torch's own backends.

Each handler has a process of its own, all on this machine: with more handlers than cores it measures the work that they
make, too. Writes build/bench/rendezvous.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from rich.table import Table

from benchmarks import results
from benchmarks.command import measured, progress, show
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.rendezvous.handlers import C10D, ETCD_V2, SPOTSUP, SUBJECTS, Crew, Subject, check_v2, with_python_etcd
from benchmarks.results import Row, Sample
from supervisor.journal.etcd_server import EmbeddedEtcd
from tools.stack import ROOT

FIRST, AGAIN, REPLACED = "first round", "re-formation", "one replaced"
AGAINS = 2
GOAL_NODES, GOAL_S, GOAL_SPEEDUP = 64, 0.5, 5.0
NOTES = """\
Seconds until the last of all is in the round; times: how many times as long c10d takes.
first round: from nothing but a store (etcd, c10d's TCPStore) that is there.
re-formation: all were in a round and want to be in the next one, at the same moment.
one replaced: one is killed, and a tombstone is written as a daemon would; a spare takes its place. Of
  spotsup only: with the others a lost node is one whose heartbeats were missed, for 15 s by default."""


class Bench:
    """All measurements, one after the other, on one etcd."""

    def __init__(self, options: argparse.Namespace, stop: Stop) -> None:
        self.samples: list[Sample] = []
        self._options = options
        self._stop = stop
        self._began = time.monotonic()

    def run(self) -> tuple[list[Subject], list[Sample]]:
        """Each repetition measures every subject in turn, so that a busy machine affects all of them."""
        folder = self._options.folder
        etcd = EmbeddedEtcd(folder / "etcd")
        etcd.stop()  # one that a killed run has left
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.environ["ETCD_ENABLE_V2"] = "true"  # etcd reads its options from there, too
        etcd = EmbeddedEtcd(folder / "etcd")
        try:
            etcd.start()
            subjects = list(self._available(etcd.endpoint))
            for repetition in range(self._options.repeat):
                self._print(f"[bold]repetition {repetition + 1} of {self._options.repeat}[/bold]")
                for size in self._options.sizes:
                    for subject in subjects:
                        self._measure(subject, size, etcd.endpoint, f"{subject.name}-{size}-{repetition}")
        finally:
            etcd.stop()
        return subjects, self.samples

    def _available(self, endpoint: str) -> Iterator[Subject]:
        for subject in SUBJECTS:
            if subject.name not in self._options.subjects:
                continue
            if subject is not ETCD_V2:
                yield subject
                continue
            try:
                check_v2(endpoint)
                yield with_python_etcd(subject, self._options.folder.parent / "python-etcd")
            except BenchError as error:
                progress.print(f"{subject.name} is left out: {error}", style="yellow", markup=False, soft_wrap=True)

    def _measure(self, subject: Subject, size: int, endpoint: str, job: str) -> None:
        log = self._options.folder / f"{job}.log"
        with closing(Crew(subject, size, endpoint, job, log, self._stop)) as crew:
            steps: list[tuple[str, Callable[[], float]]] = [(FIRST, crew.form), *[(AGAIN, crew.form)] * AGAINS]
            if subject is SPOTSUP:
                steps += [(REPLACED, crew.replace_one)]
            found = [Sample(case(size), subject.name, metric, "s", step()) for metric, step in steps]
        self.samples += found
        figures = ", ".join(f"{sample.metric} {sample.value:.3f} s" for sample in found)
        self._print(f"{case(size)}, {subject.name}: {figures}")

    def _print(self, text: str) -> None:
        progress.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}", soft_wrap=True)


def case(size: int) -> str:
    """How many nodes."""
    return f"{size} nodes"


def median_of(rows: Sequence[Row], of: Row, subject: str) -> float | None:
    """The same measurement of another subject, in seconds."""
    same = (row for row in rows if (row.case, row.metric, row.subject) == (of.case, of.metric, subject))
    return next((row.median for row in same), None)


def speedup(rows: Sequence[Row], row: Row) -> float | None:
    """How many times as long c10d takes."""
    theirs = median_of(rows, row, C10D.name)
    return theirs / row.median if theirs and row.median else None


def table(rows: Sequence[Row]) -> Table:
    """The rows for people: those of one number of nodes and one measurement together."""
    made = Table(title="Nodes agree on a round", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("", "until all are in", "subject"):
        made.add_column(column, no_wrap=True)
    for column in ("median", "min", "max", "n", "times"):
        made.add_column(column, no_wrap=True, justify="right")
    groups = dict.fromkeys((row.case, row.metric) for row in rows)
    for group in groups:
        made.add_row()
        for row in rows:
            if (row.case, row.metric) == group:
                times = speedup(rows, row)
                numbers = [f"{value:.3f} s" for value in (row.median, row.min, row.max) if value is not None]
                made.add_row(row.case, row.metric, row.subject, *numbers, str(row.n), f"{times:.1f}" if times else "")
    return made


def verdict(rows: Sequence[Row]) -> str:
    """Whether the goals are met; empty where they were not measured."""
    mine = [row for row in rows if (row.case, row.metric, row.subject) == (case(GOAL_NODES), AGAIN, SPOTSUP.name)]
    if not mine or mine[0].median is None:
        return ""
    times = speedup(rows, mine[0])
    met = mine[0].median <= GOAL_S and (times or 0.0) >= GOAL_SPEEDUP
    comparison = f"{times:.1f} times as fast as c10d (goal {GOAL_SPEEDUP:g})" if times else "c10d was not measured"
    return (
        f"re-formation of {GOAL_NODES}: {mine[0].median:.3f} s (goal {GOAL_S:g} s), {comparison}: "
        f"{'met' if met else 'missed'}"
    )


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options, about = _parse(), results.machine()
    options.json.unlink(missing_ok=True)
    subjects, samples = measured("bench-rendezvous", lambda stop: Bench(options, stop).run())
    rows = results.summarise(samples)
    results.write(options.json, rows, about, {subject.name: subject.describe for subject in subjects})
    show([table(rows)], NOTES, options.json, sentences=[verdict(rows)])
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-rendezvous", description=(__doc__ or "").splitlines()[0])
    build, names = ROOT / "build" / "bench", [subject.name for subject in SUBJECTS]
    parser.add_argument("--repeat", type=_count, default=3, metavar="N")
    parser.add_argument("--quick", action="store_true", help="the same as --repeat 1")
    parser.add_argument("--sizes", type=_count, nargs="+", default=[8, 32, GOAL_NODES], metavar="N")
    parser.add_argument("--subjects", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--folder", type=Path, default=build / "rendezvous", help="for all that is written meanwhile")
    parser.add_argument("--json", type=Path, default=build / "rendezvous.json")
    options = parser.parse_args()
    if options.quick:
        options.repeat = 1
    options.folder = options.folder.absolute()
    return options


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
