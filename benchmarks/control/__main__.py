"""`make bench-control`: CPU, memory and latency of one daemon with 100, 1,000 and 10,000 nodes.

The daemon's loop, planner, journal and mirror are the real ones, on a real etcd; the cloud and the nodes are
simulated (daemon.py). Writes build/bench/control.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from spotsup_trainer.etcd import Delete, Etcd, Put
from spotsup_trainer.wire import Notice, Progress, encode

from benchmarks import results
from benchmarks.command import measured, parser_of, progress, show
from benchmarks.control import daemon as control
from benchmarks.recovery.watch import BenchError, Stop, last_line
from benchmarks.results import Row, Sample
from supervisor.journal.etcd_server import EmbeddedEtcd
from tools.stack import ROOT

SPOTSUP = "spotsup"
SETTLE_S = 8.0
ANSWER_S = 120.0
RECOVER_S = 120.0
CHURN_PER_NODE_S = 3600.0  # a spot machine that lives for an hour
MIN_CHURN_PER_S = 0.5
TICK_P50, TICK_P99, TICK_MAX = "tick p50", "tick p99", "tick max"
REQUESTED, GRANTED = "last requested after", "last granted after"
CPU, RSS, START, WRITES, BYTES = "CPU share", "resident memory", "start-up", "etcd writes per event", "bytes per event"
NODE_CPU, EVENT_CPU = "CPU per node", "CPU per event"
GOAL_SIZES, GOAL_GROWTH = (1_000, 10_000), 1.2

# All nodes of one size get a notice within a minute, from a cloud as EC2 is: an answer takes a second, and it takes 20
# requests a second (its bucket is 20, too). Machines are prepared in longer than the phase lasts, as real ones are.
NOTICES_S, NOTICE_S = 60.0, 180.0
PER_S = 20.0
CLOUD = {"answer_s": 1.0, "per_s": PER_S, "prepare_s": 150.0}
GOAL_REQUESTED_S = 2.0
NOTICED = 1_280
# How long the last of them waits for that bucket alone.
BUCKET_S = (NOTICED - PER_S) / PER_S - NOTICES_S

SUBJECTS = {SPOTSUP: "loop, planner, journal, mirror and leadership as in spotsupd, on an etcd of its own"}
NOTES = """\
idle: nothing changes. training: each job reports a step once a second. churn: each node is lost once an hour
  (at least one every 2 s in all), its replacement is asked for, prepared and in the round within 2 s.
CPU share: of one core, the daemon's process alone. event: a lost node, until another is in its place.
start-up: from an etcd that holds all records to the first decision about all jobs."""


@dataclass(frozen=True, slots=True)
class Size:
    """`jobs` jobs with `nodes` nodes each."""

    jobs: int
    nodes: int

    @property
    def total(self) -> int:
        """Nodes of all jobs."""
        return self.jobs * self.nodes

    @property
    def case(self) -> str:
        """Its name in the table."""
        return f"{self.total:,} nodes in {self.jobs} job{'s' if self.jobs > 1 else ''}"


SIZES = (Size(1, 50), Size(2, 50), Size(20, 50), Size(20, 64), Size(200, 50))


class Daemon:
    """The process under test."""

    def __init__(self, endpoint: str, log: Path) -> None:
        with log.open("w") as file:
            command = [sys.executable, "-m", "benchmarks.control.daemon", endpoint]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=file, text=True)
        self._log = log
        self.start_s = float(self._answer()["start_s"])

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command. Raises BenchError when the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BenchError(f"the daemon has ended: {last_line(self._log)}") from error
        return self._answer()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the daemon has ended: {last_line(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def etcd_in(folder: Path) -> Iterator[Etcd]:
    """An empty etcd."""
    shutil.rmtree(folder, ignore_errors=True)
    server = EmbeddedEtcd(folder / "etcd")
    server.start()
    try:
        with closing(Etcd([server.endpoint])) as etcd:
            yield etcd
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(size: Size, options: argparse.Namespace, stop: Stop) -> list[Sample]:
    """All measurements of one size. Raises BenchError, InterruptedByUserError."""
    with etcd_in(options.folder) as etcd:
        found = control.population(size.jobs, size.nodes, time.time())
        for chunk in control.chunks([Put(key, value) for key, value in found.items()]):
            stop.check()
            etcd.txn([], chunk)
        log = options.folder / "daemon.log"
        daemon = Daemon(etcd.endpoints[0], log)
        try:
            samples = [Sample(f"{size.case}: start", SPOTSUP, START, "s", daemon.start_s)]
            _wait(SETTLE_S, stop)
            samples += _phase(size, "idle", daemon, lambda: _wait(options.seconds, stop))
            samples += _phase(size, "training", daemon, lambda: _train(size, etcd, options.seconds, stop))
            events = max(1, round(options.seconds * _churn_per_s(size)))
            samples += _phase(size, "churn", daemon, lambda: _churn(size, etcd, daemon, events, stop), events)
            if size.total == NOTICED:
                samples += _notices(size, etcd, daemon, stop)
            daemon.ask(stop=True)
        finally:
            daemon.kill()
    return samples


def _phase(size: Size, name: str, daemon: Daemon, happen: Callable[[], None], events: int = 0) -> list[Sample]:
    case, began = f"{size.case}: {name}", time.monotonic()
    daemon.ask(begin=True)
    happen()
    report = daemon.ask(report=True)
    cpu_s = report["cpu"] * (time.monotonic() - began)
    ticks = sorted(report["ticks_s"])
    if not ticks:
        raise BenchError(f"{case}: the daemon did not tick at all")
    values = [
        (TICK_P50, "s", _quantile(ticks, 0.5)),
        (TICK_P99, "s", _quantile(ticks, 0.99)),
        (TICK_MAX, "s", ticks[-1]),
        (CPU, "1", report["cpu"]),
        (RSS, "MiB", report["rss_mib"]),
        (NODE_CPU, "us/s", 1e6 * report["cpu"] / size.total),
    ]
    if events:
        values += [(EVENT_CPU, "ms", 1e3 * cpu_s / events)]
        values += [(WRITES, "1", report["writes"] / events), (BYTES, "B", report["written_bytes"] / events)]
    return [Sample(case, SPOTSUP, metric, unit, value) for metric, unit, value in values]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _wait(seconds: float, stop: Stop) -> None:
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        stop.check()
        time.sleep(min(0.1, left_s))


def _train(size: Size, etcd: Etcd, seconds: float, stop: Stop) -> None:
    """Each job in turn, each once a second."""
    end, step = time.monotonic() + seconds, 1000
    while time.monotonic() < end:
        step += 1
        began, now = time.monotonic(), time.time()
        for number in range(size.jobs):
            stop.check()
            etcd.put(control.KEYS.progress(control.job_name(number)), encode(Progress(1, step, now, now)))
            ahead_s = began + (number + 1) / size.jobs - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)


def _churn_per_s(size: Size) -> float:
    return max(MIN_CHURN_PER_S, size.total / CHURN_PER_NODE_S)


def _churn(size: Size, etcd: Etcd, daemon: Daemon, events: int, stop: Stop) -> None:
    """Lose so many nodes one after the other, each of another job; wait until all are replaced."""
    every_s, began = 1.0 / _churn_per_s(size), time.monotonic()
    for event in range(events):
        job = control.job_name(event % size.jobs)
        node = f"{job}-bench-{1 + event // size.jobs}"
        etcd.txn([], [Delete(control.KEYS.agent(job, node)), Delete(control.KEYS.member(job, node))])
        daemon.ask(end=[f"i-{node}"])
        _wait(began + (event + 1) * every_s - time.monotonic(), stop)
    whole = f"{size.nodes} of {size.nodes} nodes train"
    deadline = time.monotonic() + RECOVER_S
    while not all(each.startswith(whole) for each in daemon.ask(sentences=True).values()):
        if time.monotonic() > deadline:
            sentences = [each for each in daemon.ask(sentences=True).values() if not each.startswith(whole)]
            raise BenchError(f"{size.case}: not all as before after {RECOVER_S:g} s: {sentences[0]}")
        _wait(0.5, stop)


def _notices(size: Size, etcd: Etcd, daemon: Daemon, stop: Stop) -> list[Sample]:
    """Give every node a notice, evenly over a minute; wait until each has a replacement's machine. How long after a
    job's n-th notice its n-th replacement was requested, and granted, at most."""
    rounds = {job: etcd.get(control.KEYS.round(job)) for job in map(control.job_name, range(size.jobs))}
    members = [
        [(job, each["node"]) for each in json.loads(found.value)["members"]] for job, found in rounds.items() if found
    ]
    nodes = [each for of_each_job in zip(*members, strict=True) for each in of_each_job]
    noticed: dict[str, list[float]] = {job: [] for job in rounds}

    def happen() -> None:
        daemon.ask(slow=CLOUD)
        began = time.monotonic()
        for number, (job, node) in enumerate(nodes):
            now = time.time()
            noticed[job].append(now)
            etcd.put(control.KEYS.notice(job, node), encode(Notice(node, now + NOTICE_S, now, "aws")))
            _wait(began + (number + 1) * NOTICES_S / len(nodes) - time.monotonic(), stop)
        deadline = time.monotonic() + RECOVER_S
        while not all(len(_replaced(daemon, job, 1)) >= size.nodes for job in rounds):
            if time.monotonic() > deadline:
                raise BenchError(f"{size.case}: not all nodes have a replacement {RECOVER_S:g} s after the last notice")
            _wait(0.5, stop)

    samples = _phase(size, "notices", daemon, happen, len(nodes))
    for metric, which in ((REQUESTED, 0), (GRANTED, 1)):
        late_s = max(
            at - of for job in rounds for of, at in zip(noticed[job], _replaced(daemon, job, which), strict=False)
        )
        samples.append(Sample(f"{size.case}: notices", SPOTSUP, metric, "s", late_s))
    return samples


def _replaced(daemon: Daemon, job: str, which: int) -> list[float]:
    """When a job's replacements were requested (0), or granted (1), in order."""
    return sorted(each[which] for each in daemon.ask(replacements=job).values() if each[which])


def table(rows: Sequence[Row]) -> Table:
    """The rows for people: one line per case."""
    columns = (REQUESTED, GRANTED, TICK_P50, TICK_P99, TICK_MAX, CPU, NODE_CPU, EVENT_CPU, RSS, START, WRITES, BYTES)
    made = results.table_of("One daemon", [""], [])
    for column in columns:
        made.add_column(column, justify="right")
    for case in dict.fromkeys(row.case for row in rows):
        found = {row.metric: row for row in rows if row.case == case}
        made.add_row(case, *(_shown(found.get(column)) for column in columns))
    return made


def _shown(row: Row | None) -> str:
    if row is None or row.median is None:
        return ""
    if row.metric == CPU:
        return f"{row.median:.1%}"
    shown = {"s": ".3f", "MiB": ".0f", "B": ".0f", "us/s": ".0f", "ms": ".1f"}.get(row.unit)
    return f"{row.median:{shown}} {row.unit}" if shown else f"{row.median:.1f}"


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """How the cost per node grows with the number of nodes, one sentence each."""
    found = {(row.case, row.metric): row.median for row in rows}
    few, many = (next(size for size in SIZES if size.total == total) for total in GOAL_SIZES)
    for name, metric in (("training", NODE_CPU), ("churn", EVENT_CPU)):
        small, large = (found.get((f"{size.case}: {name}", metric)) for size in (few, many))
        if small and large:
            met = "met" if large / small <= GOAL_GROWTH else "missed"
            yield (
                f"{name}: {metric} with {many.total:,} nodes is {large / small:.2f} times that with {few.total:,} "
                f"(goal at most {GOAL_GROWTH:g}): {met}"
            )


def _in_time(rows: Sequence[Row]) -> Iterator[str]:
    """Whether each of many nodes that get a notice at once is replaced in time."""
    for row in rows:
        if row.metric == REQUESTED and row.median is not None:
            late_s = row.median - BUCKET_S
            met = "met" if late_s <= GOAL_REQUESTED_S else "missed"
            yield (
                f"{row.case}: the last replacement was requested {row.median:.1f} s after its notice. The cloud's "
                f"bucket alone takes {BUCKET_S:.1f} s; the rest, {late_s:.1f} s, is the daemon's (goal at most "
                f"{GOAL_REQUESTED_S:g} s): {met}"
            )


def measure_all(options: argparse.Namespace, stop: Stop) -> list[Sample]:
    """Every size. Raises BenchError, InterruptedByUserError."""
    samples: list[Sample] = []
    for size in (each for each in SIZES if options.least <= each.total <= options.most):
        progress.print(f"[dim]{size.case}, about {3 * options.seconds + SETTLE_S:.0f} s[/dim]")
        samples += measure(size, options, stop)
    return samples


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options, about = _parse(), results.machine()
    rows = results.summarise(measured("bench-control", lambda stop: measure_all(options, stop)))
    results.write(options.json, rows, about, SUBJECTS)
    show([table(rows)], NOTES, options.json, sentences=[*verdicts(rows), *_in_time(rows)])
    return 0


def _parse() -> argparse.Namespace:
    parser = parser_of("control", __doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long each phase is measured")
    parser.add_argument("--least", type=int, default=0, metavar="NODES", help="leave out what is smaller")
    parser.add_argument("--most", type=int, default=10_000, metavar="NODES", help="leave out what is larger")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
