"""`make bench-api`: how fast the API answers people while many follow jobs, and what memory that takes.

The daemon has 20 jobs with 64 nodes each, on paper; each job reports a step a second. All come over HTTPS, with tokens.
Writes build/bench/api.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from spotsup_trainer.etcd import Etcd, Put
from spotsup_trainer.wire import Progress, encode

from benchmarks import results
from benchmarks.api.readers import Seen, Target, end, follow, read, show_dashboard
from benchmarks.command import add_repeat, count, measured, parser_of, show, stopwatch
from benchmarks.control import daemon as control
from benchmarks.control.__main__ import etcd_in
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Row, Sample
from supervisor.api.security.tls import own_files
from supervisor.config import parse_config
from supervisor.runtime.descriptors import raise_limit
from tools.stack import ROOT

JOBS, NODES = 20, 64
PEOPLE, READS_PER_S, TABS = 20, 100.0, 10
ALONE, ALL = "reads alone", "all at once"
READ_P50, READ_P99, PAGE_P99, NEWS_P99 = "read p50", "read p99", "page p99", "step to reader p99"
CPU, RSS, WATCHERS, READS = "CPU share", "resident memory", "readers that follow", "reads"
GOAL_READ_S, GOAL_MIB = 0.05, 250.0
BEGIN_S = 60.0
NOTES = """\
reads alone: list, job, events, cost, nodes and health, 100 a second by 20 people. all at once: the same, while others
  follow jobs by server-sent events, and ten tabs of the dashboard are open, which were opened one after the other. Each
  read counts from when it was due.
step to reader: from before a job's step is written to etcd until a reader that follows the job has it.
CPU share: of one core, the daemon's process alone. The readers are in one other process, on the same computer."""


class Daemon:
    """The process under test."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"the daemon has ended; see {folder / 'daemon.log'}")
        found = json.loads(line)
        self.process, self.port, self.tokens = process, int(found["port"]), list(found["tokens"])
        config = parse_config({"state_dir": str(folder / "state"), "api": {"listen": "127.0.0.1:0"}}, "bench-api")
        self.context = ssl.create_default_context(cadata=own_files(config).ca.read_text())

    def rss_mib(self) -> float:
        """The most that it has had."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    def cpu_s(self) -> float:
        """What it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def serving(options: argparse.Namespace, stop: Stop) -> Iterator[tuple[Daemon, Etcd]]:
    """The daemon with all its jobs, and its etcd. Raises BenchError."""
    with etcd_in(options.folder) as etcd:
        found = control.population(options.jobs, options.nodes, time.time())
        for chunk in control.chunks([Put(key, value) for key, value in found.items()]):
            stop.check()
            etcd.txn([], chunk)
        command = [sys.executable, "-m", "benchmarks.api.daemon", etcd.endpoints[0], str(options.folder / "state")]
        pipe = subprocess.PIPE
        with (options.folder / "daemon.log").open("w") as file:
            running = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=file, text=True)
        try:
            yield Daemon(running, options.folder), etcd
        finally:
            running.kill()
            running.communicate()


async def train(etcd: Etcd, jobs: Sequence[str], written: dict[tuple[str, int], float]) -> None:
    """Each job in turn, each once a second."""
    step = 1000
    while True:
        step, began, now = step + 1, time.monotonic(), time.time()
        for number, job in enumerate(jobs):
            written[job, step] = time.monotonic()
            await asyncio.to_thread(etcd.put, control.KEYS.progress(job), encode(Progress(1, step, now, now)))
            written.pop((job, step - 30), None)
            await asyncio.sleep(max(0.0, began + (number + 1) / len(jobs) - time.monotonic()))


async def measure(
    daemon: Daemon, etcd: Etcd, options: argparse.Namespace, stop: Stop, report: Callable[[str], None]
) -> list[Sample]:
    """All samples. Raises BenchError, InterruptedByUserError."""
    jobs = [control.job_name(number) for number in range(options.jobs)]
    target = Target(daemon.port, daemon.tokens, daemon.context, jobs)
    written: dict[tuple[str, int], float] = {}
    samples: list[Sample] = []
    tasks = [asyncio.create_task(train(etcd, jobs, written))]
    try:
        seen = Seen()
        people = [asyncio.create_task(read(target, number, PEOPLE / READS_PER_S, seen)) for number in range(PEOPLE)]
        tasks += people
        await _phase(seen, daemon, options.seconds, stop, tasks)
        samples += _samples(ALONE, seen, await _phase(seen, daemon, options.seconds, stop, tasks), daemon)
        report("reads alone are done")
        for number in range(options.watchers):
            tasks.append(asyncio.create_task(follow(target, number, written, seen)))
            await asyncio.sleep(0.005)
        tasks += [asyncio.create_task(show_dashboard(target, number, TABS, seen)) for number in range(TABS)]
        deadline = time.monotonic() + BEGIN_S
        while seen.following < options.watchers:
            _check(seen, tasks)
            if time.monotonic() > deadline:
                raise BenchError(f"{seen.following} of {options.watchers} readers follow after {BEGIN_S:g} s")
            stop.check()
            await asyncio.sleep(0.1)
        report(f"{seen.following} readers follow")
        share = await _phase(seen, daemon, options.seconds, stop, tasks, pages=True)
        samples += _samples(ALL, seen, share, daemon)
        samples.append(Sample(ALL, "spotsup", WATCHERS, "1", float(seen.following)))
    finally:
        await end(tasks)
    return samples


async def _phase(
    seen: Seen,
    daemon: Daemon,
    seconds: float,
    stop: Stop,
    tasks: Sequence[asyncio.Task[None]],
    *,
    pages: bool = False,
) -> float:
    """Forget what was seen, and see for so long; with `pages` until a page was seen, too, which is asked for every
    REFRESH_S. Returns the share of a core that the daemon used. Raises BenchError where none comes."""
    for each in (seen.reads_s, seen.pages_s, seen.news_s):
        each.clear()
    began, cpu_s = time.monotonic(), daemon.cpu_s()
    while (passed_s := time.monotonic() - began) < seconds or (pages and not seen.pages_s):
        if passed_s > seconds + BEGIN_S:
            raise BenchError(f"no page of the dashboard came within {passed_s:.0f} s")
        stop.check()
        _check(seen, tasks)
        await asyncio.sleep(0.1)
    return (daemon.cpu_s() - cpu_s) / (time.monotonic() - began)


def _check(seen: Seen, tasks: Sequence[asyncio.Task[None]]) -> None:
    if seen.refused:
        raise BenchError(seen.refused[0])
    for task in tasks:
        if task.done() and not task.cancelled():
            raise BenchError(f"a reader has ended: {task.exception() or 'the daemon ended its connection'}")


def _samples(case: str, seen: Seen, cpu: float, daemon: Daemon) -> list[Sample]:
    found = [(READ_P50, seen.reads_s, 0.5), (READ_P99, seen.reads_s, 0.99)]
    found += [(PAGE_P99, seen.pages_s, 0.99), (NEWS_P99, seen.news_s, 0.99)]
    samples = [Sample(case, "spotsup", name, "s", _quantile(values, share)) for name, values, share in found if values]
    samples += [Sample(case, "spotsup", CPU, "1", cpu), Sample(case, "spotsup", RSS, "MiB", daemon.rss_mib())]
    return [*samples, Sample(case, "spotsup", READS, "1", float(len(seen.reads_s)))]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(rows: Sequence[Row]) -> Table:
    """The rows for people: one line per case."""
    columns = (READ_P50, READ_P99, PAGE_P99, NEWS_P99, CPU, RSS, WATCHERS, READS)
    made = results.table_of("The API", [""], columns)
    shown = {"s": "{:.3f} s", "MiB": "{:.0f} MiB", "1": "{:g}"}
    for case in dict.fromkeys(row.case for row in rows):
        found = {row.metric: row for row in rows if row.case == case}
        cells = [found.get(column) for column in columns]
        made.add_row(case, *("" if each is None else shown[each.unit].format(each.median) for each in cells))
    return made


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Whether each goal is met."""
    found = {(row.case, row.metric): row.median or 0.0 for row in rows}
    read_s, mib = found[ALL, READ_P99], found[ALL, RSS]
    ratio = read_s / found[ALONE, READ_P99]
    met = {True: "met", False: "MISSED"}
    return [
        f"read p99, all at once: {read_s * 1000:.0f} ms, goal {GOAL_READ_S * 1000:.0f} ms {met[read_s <= GOAL_READ_S]}",
        f"read p99, of that of reads alone: {ratio:.1f}",
        f"memory: {mib:.0f} MiB, goal {GOAL_MIB:.0f} MiB {met[mib <= GOAL_MIB]}",
    ]


def measure_all(options: argparse.Namespace, stop: Stop) -> list[Sample]:
    """So often as was asked for, each with a daemon of its own."""
    samples: list[Sample] = []
    for _ in range(options.repeat):
        with serving(options, stop) as (daemon, etcd):
            samples += asyncio.run(measure(daemon, etcd, options, stop, stopwatch()))
    return samples


def main() -> int:
    """The command line. Exit status 0 where everything could be measured; the goals are told."""
    parser = parser_of("api", __doc__)
    add_repeat(parser)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each phase is measured")
    parser.add_argument("--watchers", type=count, default=500, help="readers that follow jobs")
    parser.add_argument("--jobs", type=count, default=JOBS, metavar="N")
    parser.add_argument("--nodes", type=count, default=NODES, metavar="N", help="of each job")
    options, about = parser.parse_args(), results.machine()
    raise_limit()
    rows = results.summarise(measured("bench-api", lambda stop: measure_all(options, stop)))
    results.write(options.json, rows, about, {"spotsup": "the daemon's API and dashboard over HTTPS"})
    show([table(rows)], NOTES, options.json, sentences=verdicts(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
