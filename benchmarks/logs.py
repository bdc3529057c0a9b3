"""`make bench-logs`: how large etcd grows from the output of a job's nodes, with a clock as fast as etcd writes.

Each node's own log shipper sends to a real etcd once a virtual second, and the daemon's compaction runs as it does in a
daemon. Its file grows until the first history is deleted; from then on its pages are used again. Writes
build/bench/logs.json.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from rich.table import Table
from spotsup_trainer.agent.decisions import log_budget
from spotsup_trainer.agent.logs import LogShipper
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from benchmarks import results
from benchmarks.command import count, measured, parser_of, show, stopwatch
from benchmarks.recovery.watch import Stop
from benchmarks.results import Row, Sample
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.journal.maintenance import Compactor

GOAL_MIB = 500.0
COMPACTED_EVERY_S = 300
REPORTED_EVERY_S = 600
GROWS, STEADY = "first half", "second half"
NOTES = """\
MiB of etcd's file. tqdm: each node redraws a progress bar ten times a second. flood: each node prints 20 kB a second.
steady: the second half is no larger than the first, so an hour, a day and a week end alike."""


def tqdm(second: int) -> bytes:
    """One second of a progress bar."""
    return b"".join(
        b"\r%3d%%|%s| %d/100000 [01:02<03:04, 9.99it/s, loss=0.1234]" % (second % 100, b"#" * 40, 10 * second + tenth)
        for tenth in range(10)
    )


def flood(second: int) -> bytes:
    """One second of a program that prints all it knows."""
    return b"".join(b"%d.%d %s\n" % (second, line, b"x" * 90) for line in range(200))


OUTPUTS: dict[str, Callable[[int], bytes]] = {"tqdm": tqdm, "flood": flood}


def measure(options: argparse.Namespace, case: str, stop: Stop, report: Callable[[str], None]) -> list[Sample]:
    """The size of an etcd of its own at each report."""
    folder: Path = options.folder / case
    EmbeddedEtcd(folder / "etcd").stop()  # one that a killed run has left
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    server = EmbeddedEtcd(folder / "etcd")
    sizes: list[Sample] = []
    now = 0.0
    try:
        server.start()
        with closing(Etcd([server.endpoint], timeout_s=30.0)) as etcd:
            keys, compactor = Keys("bench"), Compactor(etcd)
            files = [folder / f"node-{n}.log" for n in range(options.nodes)]
            for file in files:
                file.touch()
            shippers = [
                LogShipper(etcd, file, keys.logs("job", file.stem), file.stem, log_budget(len(files)), lambda: now)
                for file in files
            ]
            seconds = options.minutes * 60
            for second in range(1, seconds + 1):
                now, output = float(second), OUTPUTS[case](second)
                for file, shipper in zip(files, shippers, strict=True):
                    stop.check()
                    with file.open("ab") as log:
                        log.write(output)
                    shipper.send()
                    if file.stat().st_size > 1 << 22:
                        file.unlink()
                        file.touch()
                if second % COMPACTED_EVERY_S == 0:
                    compactor.compact()
                if second % REPORTED_EVERY_S == 0:
                    mib = int(etcd.status()["dbSize"]) / 2**20
                    report(f"{case}: {second // 60} min: {mib:.0f} MiB")
                    half = GROWS if second <= seconds / 2 else STEADY
                    sizes.append(Sample(f"{options.nodes} nodes, {case}", "spotsup", half, "MiB", mib))
    finally:
        server.stop()
    return sizes


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    made = results.table_of("etcd's file", ("", "", "subject"), ("median", "min", "max", "n"))
    for row in rows:
        made.add_row(
            row.case,
            row.metric,
            row.subject,
            *(f"{value:.0f} MiB" for value in (row.median, row.min, row.max)),
            str(row.n),
        )
    return made


def verdict(rows: Sequence[Row]) -> str:
    """Whether the goal is met."""
    largest = max((row.max or 0.0 for row in rows), default=0.0)
    return f"largest: {largest:.0f} MiB: goal {GOAL_MIB:.0f} MiB {'met' if largest <= GOAL_MIB else 'MISSED'}."


def main() -> int:
    """The command line."""
    parser = parser_of("logs", __doc__)
    parser.add_argument("--nodes", type=count, default=64)
    parser.add_argument("--minutes", type=count, default=60, help="of virtual time, for each kind of output")
    parser.add_argument("--only", choices=sorted(OUTPUTS), default=None)
    options, about = parser.parse_args(), results.machine()
    report = stopwatch()
    cases = [options.only] if options.only else sorted(OUTPUTS)
    samples = measured("bench-logs", lambda stop: [s for case in cases for s in measure(options, case, stop, report)])
    rows = results.summarise(samples)
    results.write(options.json, rows, about, {"spotsup": "a node's agent, with the shipped settings"})
    show([table(rows)], NOTES, options.json, sentences=[verdict(rows)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
