"""`make bench-cli`: how long `spotsupctl` takes, beside a Python that does nothing.

The daemon has 20 jobs with 64 nodes each, on paper. What is submitted begins a month later: none asks for nodes.
Writes build/bench/cli.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from spotsup.transport import Transport
from spotsup.upload import upload
from spotsup_trainer.etcd import Put

from benchmarks import results
from benchmarks.command import add_repeat, measured, parser_of, show, stopwatch
from benchmarks.control import daemon as control
from benchmarks.control.__main__ import etcd_in
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Row, Sample
from supervisor.cli.submission import prepare
from tools.stack import ROOT

# As the installed command does.
ENTRY = "import spotsup_entry; spotsup_entry.spotsupctl()"
START_S = 120.0
LARGE_BYTES = 10_000_000
HELP = "--help"
MANY_GOAL_S = 10.0
NOTES = """\
Goals: what a command takes more than `python -c pass`, by the lowest of all runs: other programs only add to it.
Submits are those of one client of the API, one after the other; all else is a process, from its start to its end."""


@dataclass(frozen=True)
class Size:
    """How much there is to list, and to submit."""

    jobs: int = 20
    nodes: int = 64
    many: int = 100
    large_bytes: int = LARGE_BYTES
    runs: int = 5  # of single commands, at least

    @property
    def listing(self) -> str:
        return f"list, {self.jobs} jobs × {self.nodes} nodes"

    @property
    def status(self) -> str:
        return f"status, {self.nodes} nodes"

    @property
    def submit(self) -> str:
        return f"submit of {self.large_bytes / 1e6:g} MB"

    @property
    def submits(self) -> str:
        return f"{self.many} submits"

    @property
    def cancels(self) -> str:
        return f"{self.many} cancels, one command"

    @property
    def goals_s(self) -> dict[str, float]:
        """Seconds, beside a Python that does nothing."""
        return {HELP: 0.15, self.listing: 0.15, self.status: 0.15, self.submit: 1.0}


WHOLE, SMALL = Size(), Size(jobs=2, nodes=4, many=3, large_bytes=100_000, runs=1)


@contextmanager
def serving(options: argparse.Namespace, stop: Stop) -> Iterator[Path]:
    """The socket of a daemon that has all its jobs. Raises BenchError."""
    with etcd_in(options.folder) as etcd, tempfile.TemporaryDirectory(prefix="bench-") as short:
        found = control.population(options.size.jobs, options.size.nodes, time.time())
        for chunk in control.chunks([Put(key, value) for key, value in found.items()]):
            stop.check()
            etcd.txn([], chunk)
        socket, log = Path(short) / "s", options.folder / "daemon.log"
        command = [sys.executable, "-m", "benchmarks.cli.daemon", etcd.endpoints[0], str(socket)]
        with log.open("w") as file:
            pipe = subprocess.PIPE
            running = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=file, text=True)
        too_late = threading.Timer(START_S, running.kill)
        too_late.start()
        try:
            assert running.stdout is not None
            while (line := running.stdout.readline()) != "ready\n":
                if not line:
                    raise BenchError(f"the daemon has ended, or was not ready within {START_S:g} s; see {log}")
            too_late.cancel()
            yield socket
        finally:
            too_late.cancel()
            running.kill()
            running.communicate()


def took_s(*command: str) -> float:
    """How long a process of Python takes. Raises BenchError."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return time.monotonic() - began


def measure(options: argparse.Namespace, stop: Stop, report: Callable[[str], None]) -> list[Sample]:
    """All samples. Raises BenchError, InterruptedByUserError."""
    samples: list[Sample] = []
    size: Size = options.size

    def add(case: str, value: float, subject: str = "spotsup", metric: str = "wall") -> None:
        samples.append(Sample(case, subject, metric, "s", value))

    with serving(options, stop) as socket:

        def spotsupctl(*arguments: str) -> float:
            stop.check()
            return took_s("-c", ENTRY, "--socket", str(socket), *arguments)

        report("the daemon has its jobs")
        for _ in range(max(size.runs, options.repeat)):
            add("python -c pass", took_s("-c", "pass"), "floor")
            add(HELP, spotsupctl("--help"))
            add(size.listing, spotsupctl("list"))
            add(size.status, spotsupctl("status", control.job_name(1)))
        report("single commands are done")
        large = options.folder / "large"
        large.mkdir()
        (large / "train.py").write_text("")
        later = ("--nodes", "1", "--start-after", _next_month())
        for number in range(options.repeat):
            (large / "weights.bin").write_bytes(os.urandom(size.large_bytes))  # which no compression makes smaller
            add(
                size.submit,
                spotsupctl("submit", "--name", f"large-{number}", "--code", str(large), *later, "--", "train.py"),
            )
        report("large submits are done")
        (large / "weights.bin").unlink()
        for number in range(options.repeat):
            names = [f"many-{number}-{each}" for each in range(size.many)]
            add(size.submits, _submit_all(socket, large, names, stop))
            add(size.cancels, spotsupctl("cancel", *names))
        report("many submits and cancels are done")
    return samples


def _next_month() -> str:
    """A time to begin at, so that no node is asked for."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(time.time() + 30 * 86400))


def _submit_all(socket: Path, code: Path, names: Sequence[str], stop: Stop) -> float:
    began = time.monotonic()
    with closing(Transport(socket)) as daemon:
        for name in names:
            stop.check()
            options = {"name": name, "nodes": 1, "start_after": _next_month(), "code": str(code)}
            prepared = prepare(("train.py",), options)
            asked = {"spec": prepared.spec, "resume_from": ""}
            daemon.post("/v1/check", asked)
            digest = upload(prepared.pack(), daemon)
            daemon.post("/v1/jobs", {**asked, "code_sha256": digest, "submission": uuid.uuid4().hex})
    return time.monotonic() - began


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    made = results.table_of("spotsupctl", ("", "subject"), ("median", "min", "max", "n"))
    for row in rows:
        made.add_row(row.case, row.subject, *results.figures(row, 3), str(row.n))
    return made


def verdicts(rows: Sequence[Row], size: Size = WHOLE) -> list[str]:
    """Whether each goal is met."""
    lowest = {row.case: row.min or 0.0 for row in rows}
    floor = lowest.get("python -c pass", 0.0)
    found = [(case, lowest[case] - floor, goal) for case, goal in size.goals_s.items() if case in lowest]
    if size.submits in lowest:
        found.append((f"{size.submits} and cancels", lowest[size.submits] + lowest[size.cancels], MANY_GOAL_S))
    return [
        f"{case}: {took:.3f} s, goal {goal:g} s {'met' if took <= goal else 'MISSED'}" for case, took, goal in found
    ]


def main() -> int:
    """The command line."""
    parser = parser_of("cli", __doc__)
    add_repeat(parser)
    parser.add_argument(
        "--small",
        action="store_const",
        dest="size",
        const=SMALL,
        default=WHOLE,
        help="2 jobs of 4 nodes, 3 submits: whether it runs at all; no goal counts",
    )
    options = parser.parse_args()
    about = results.machine()
    samples = measured("bench-cli", lambda stop: measure(options, stop, stopwatch()))
    rows = results.summarise(samples)
    subjects = {"spotsup": "spotsupctl, as it is installed", "floor": "a Python that does nothing"}
    results.write(options.json, rows, about, subjects)
    found = [] if options.size is SMALL else verdicts(rows)
    show([table(rows)], NOTES, options.json, sentences=found)
    return 0 if all("MISSED" not in each for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
