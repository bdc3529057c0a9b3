"""`make bench-bootstrap`: from a machine that answers on its SSH port to its worker, for 1, 8, 32 and 64 at once.

All machines are the local cloud's, on this computer: with more machines than cores their own work is measured too.
Writes build/bench/bootstrap.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import results
from benchmarks.bootstrap import machines as bootstrap
from benchmarks.command import add_repeat, measured, parser_of, progress, show
from benchmarks.recovery.watch import Stop
from benchmarks.results import Row, Sample

SPOTSUP, SECURED, FLOOR = "spotsup", "spotsup-secured", "floor"
GOAL_OVERHEAD = 0.2  # of TLS and users
SIZES = (1, 8, 32, 64)
NODE, AGENTS, WORKERS, OWN, ENVIRONMENT = "a node's agent", "all agents", "all workers", "commands alone", "environment"
COLD, WARM = "environment, nothing cached", "environment, cached"
SUBJECTS = {
    SPOTSUP: "bootstrap() in one thread per node, over SSH, and then the agent, its launcher and one worker",
    SECURED: "the same with an etcd that has TLS, and a user for each node, for each is a job of its own",
    FLOOR: "the same scripts by sh on this computer, one after the other, without SSH",
}
NOTES = """\
a node's agent: from the connection until the agent runs, of each node alone. all agents: until the last of them does.
all workers: until the last training program was started; each node's launcher imports torch for that.
commands alone: what the steps' own scripts take; the rest of a node's time is SSH, and us.
environment: code, trainer and a virtual environment with one empty package, by a node that has to build it, and by one
  that finds it in the cache."""


def case_of(size: int) -> str:
    """How many nodes."""
    return f"{size} node{'s' if size > 1 else ''}"


def measure(size: int, subject: str, folder: Path, stop: Stop) -> list[Sample]:
    """One size, once. Raises BenchError, InterruptedByUserError."""
    case = case_of(size)
    with bootstrap.fleet(folder, size, stop, secure=subject == SECURED) as ready:
        timing = bootstrap.measure(ready, stop)
        samples = [
            Sample(case, subject, NODE, "s", statistics.median(timing.each_s)),
            Sample(case, subject, AGENTS, "s", timing.agents_s),
            Sample(case, subject, WORKERS, "s", timing.workers_s),
        ]
        bootstrap.end(ready)
        if size == 1 and subject == SPOTSUP:
            samples.append(Sample(case, FLOOR, OWN, "s", bootstrap.own_s(ready.setups[0], folder / "own")))
    return samples


def measure_environment(folder: Path, stop: Stop) -> list[Sample]:
    """Two machines, one after the other."""
    with bootstrap.fleet(folder, 2, stop) as ready:
        cold_s, warm_s = bootstrap.environment_s(ready, folder / "cache")
    return [Sample(COLD, SPOTSUP, ENVIRONMENT, "s", cold_s), Sample(WARM, SPOTSUP, ENVIRONMENT, "s", warm_s)]


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    made = results.table_of("Bootstrap", ("", "until", "subject"), ("median", "min", "max", "n"))
    for row in rows:
        made.add_row(row.case, row.metric, row.subject, *results.figures(row, 2), str(row.n))
    return made


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Conclusions from the rows, one sentence each."""
    found = {(row.case, row.metric): row.median for row in rows if row.subject != SECURED}
    one, own = found.get(("1 node", NODE)), found.get(("1 node", OWN))
    if one and own:
        yield f"of one node's {one:.2f} s the commands take {own:.2f} s; {max(0.0, 1 - own / one):.0%} is SSH, and us"
    for metric in (AGENTS, WORKERS):
        first, last = found.get(("1 node", metric)), found.get(("64 nodes", metric))
        if first and last:
            yield f"{metric}: 64 nodes take {last / first:.1f} times as long as one ({last:.1f} s, {first:.2f} s)"
    cold, warm = found.get((COLD, ENVIRONMENT)), found.get((WARM, ENVIRONMENT))
    if cold and warm:
        yield f"an environment that is cached takes {warm:.2f} s, one that is not {cold:.2f} s"
    yield from overheads(rows)


def overheads(rows: Sequence[Row]) -> Iterator[str]:
    """What TLS and users cost each number of nodes."""
    median = {(row.subject, row.case, row.metric): row.median for row in rows}
    for size in SIZES:
        case = case_of(size)
        plain, secured = (median.get((subject, case, WORKERS)) for subject in (SPOTSUP, SECURED))
        if plain and secured:
            more = secured / plain - 1
            met = "met" if more <= GOAL_OVERHEAD else "missed"
            yield f"TLS and users, {case}: {more:+.0%} until all workers (goal {GOAL_OVERHEAD:.0%}): {met}"


def measure_all(options: argparse.Namespace, stop: Stop) -> list[Sample]:
    """Every size, and the environment. Raises BenchError, InterruptedByUserError."""
    samples: list[Sample] = []
    for repetition in range(options.repeat):
        for size in (each for each in SIZES if each <= options.most):
            for subject in (SPOTSUP, SECURED):
                said = f"repetition {repetition + 1} of {options.repeat}: {size} at once, {subject}"
                progress.print(f"[dim]{said}[/dim]")
                samples += measure(size, subject, options.folder, stop)
        samples += measure_environment(options.folder, stop)
    return samples


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options, about = _parse(), results.machine()
    rows = results.summarise(measured("bench-bootstrap", lambda stop: measure_all(options, stop)))
    results.write(options.json, rows, about, SUBJECTS)
    show([table(rows)], NOTES, options.json, sentences=verdicts(rows))
    return 0


def _parse() -> argparse.Namespace:
    parser = parser_of("bootstrap", __doc__)
    add_repeat(parser)
    parser.add_argument("--most", type=int, default=SIZES[-1], metavar="NODES", help="leave out what is larger")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
