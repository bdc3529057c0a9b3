"""`make bench-rendezvous`: how long many nodes take to agree on a round: spotsup, and torch's own backends.

Each handler has a process of its own, all on this machine: with more handlers than cores it measures the work that they
make, too. Writes build/bench/rendezvous.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from rich.table import Table
from spotsup_trainer.etcd import Etcd

from benchmarks import results
from benchmarks.command import add_repeat, count, measured, parser_of, progress, show, stopwatch
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.rendezvous.handlers import (
    C10D,
    CLUSTER,
    ETCD_V2,
    SECURED,
    SPOTSUP,
    SUBJECTS,
    Crew,
    Store,
    Subject,
    check_v2,
    with_python_etcd,
)
from benchmarks.results import Row, Sample
from benchmarks.secured import Secured, secured_etcd
from supervisor.journal.etcd_server import EmbeddedEtcd

FIRST, AGAIN, REPLACED = "first round", "re-formation", "one replaced"
AGAINS = 2
GOAL_NODES, GOAL_S, GOAL_SPEEDUP = 64, 0.5, 5.0
GOAL_OVERHEAD = 0.2  # of TLS and users
NOTES = """\
Seconds until the last of all is in the round; times: how many times as long c10d takes.
first round: from nothing but a store (etcd, c10d's TCPStore) that is there.
re-formation: all were in a round and want to be in the next one, at the same moment.
one replaced: one is killed, and a tombstone is written as a daemon would; a spare takes its place. Of
  spotsup only: with the others a lost node is one whose heartbeats were missed, for 15 s by default."""


class Bench:
    """All measurements, one after the other, on one etcd, or on one that has TLS and users."""

    def __init__(self, options: argparse.Namespace, stop: Stop) -> None:
        self.samples: list[Sample] = []
        self._options = options
        self._stop = stop
        self._print = stopwatch()

    def run(self) -> tuple[list[Subject], list[Sample]]:
        """Each repetition measures every subject in turn, so that a busy machine affects all of them."""
        folder = self._options.folder
        for name in ("etcd", "secured/etcd"):
            EmbeddedEtcd(folder / name).stop()  # one that a killed run has left
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.environ["ETCD_ENABLE_V2"] = "true"  # etcd reads its options from there, too
        etcd = EmbeddedEtcd(folder / "etcd")
        with ExitStack() as stack:
            stack.callback(etcd.stop)
            etcd.start()
            plain = Store(etcd.endpoint, lambda: Etcd([etcd.endpoint]))
            subjects = list(self._available(etcd.endpoint))
            secured = plain
            if SECURED in subjects:
                server = stack.enter_context(secured_etcd(folder / "secured", CLUSTER))
                secured = secured_store(server, folder / "secured")
            for repetition in range(self._options.repeat):
                self._print(f"[bold]repetition {repetition + 1} of {self._options.repeat}[/bold]")
                for size in self._options.sizes:
                    for subject in subjects:
                        store = secured if subject.secured else plain
                        self._measure(subject, size, store, f"{subject.name}-{size}-{repetition}")
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

    def _measure(self, subject: Subject, size: int, store: Store, job: str) -> None:
        log = self._options.folder / f"{job}.log"
        with closing(Crew(subject, size, store, job, log, self._stop)) as crew:
            steps: list[tuple[str, Callable[[], float]]] = [(FIRST, crew.form), *[(AGAIN, crew.form)] * AGAINS]
            if subject.backend == SPOTSUP.backend:
                steps += [(REPLACED, crew.replace_one)]
            found = [Sample(case(size), subject.name, metric, "s", step()) for metric, step in steps]
        self.samples += found
        figures = ", ".join(f"{sample.metric} {sample.value:.3f} s" for sample in found)
        self._print(f"{case(size)}, {subject.name}: {figures}")


def secured_store(secured: Secured, folder: Path) -> Store:
    """The store of an etcd with TLS and users. Each job's access is a file in `folder`."""

    def access(job: str) -> str:
        file = folder / f"{job}.json"
        file.write_bytes(secured.access(job))
        return str(file)

    return Store(secured.endpoint, secured.connect, access)


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
    heads = ("", "until all are in", "subject"), ("median", "min", "max", "n", "times")
    made = results.table_of("Nodes agree on a round", *heads)
    groups = dict.fromkeys((row.case, row.metric) for row in rows)
    for group in groups:
        made.add_row()
        for row in rows:
            if (row.case, row.metric) == group:
                times = speedup(rows, row)
                numbers = [*results.figures(row, 3), str(row.n), f"{times:.1f}" if times else ""]
                made.add_row(row.case, row.metric, row.subject, *numbers)
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


def overhead(rows: Sequence[Row]) -> str:
    """What TLS and users cost; empty where that was not measured."""
    mine = [row for row in rows if (row.case, row.metric, row.subject) == (case(GOAL_NODES), AGAIN, SECURED.name)]
    plain = median_of(rows, mine[0], SPOTSUP.name) if mine else None
    if not plain or mine[0].median is None:
        return ""
    more = mine[0].median / plain - 1
    met = "met" if more <= GOAL_OVERHEAD else "missed"
    return f"TLS and users: {more:+.0%} (goal {GOAL_OVERHEAD:.0%}): {met}"


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options, about = _parse(), results.machine()
    options.json.unlink(missing_ok=True)
    subjects, samples = measured("bench-rendezvous", lambda stop: Bench(options, stop).run())
    rows = results.summarise(samples)
    results.write(options.json, rows, about, {subject.name: subject.describe for subject in subjects})
    show([table(rows)], NOTES, options.json, sentences=[each for each in (verdict(rows), overhead(rows)) if each])
    return 0


def _parse() -> argparse.Namespace:
    parser, names = parser_of("rendezvous", __doc__), [subject.name for subject in SUBJECTS]
    add_repeat(parser)
    parser.add_argument("--sizes", type=count, nargs="+", default=[8, 32, GOAL_NODES], metavar="N")
    parser.add_argument("--subjects", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
