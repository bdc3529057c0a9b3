"""`make bench-restore`: how long a new round takes to restore its state, and what it reads from storage.

One node of several is replaced by a newcomer, as after a kill. The state is replicated, as with DDP. Nodes are
processes on this machine: their network is its loopback. Storage is the local disk, whose pages in memory are dropped
before each run (the ranks share what is read after that), and the same at no more than 1.25 GB/s for all ranks
together, as from a file server behind 10 Gbit/s, where each byte that a rank reads counts.

A size that ends in "-lean" takes the memory of two states instead of one per node and survivor: the survivors have one
snapshot together, and write what they restore to one buffer of 64 MiB, so all tensors have the same values. They read
and write as many bytes as otherwise. What does not fit even so is not measured, which the result says. Writes
build/bench/restore.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from spotsup_trainer import snapshot_files

from benchmarks import results
from benchmarks.command import add_repeat, measured, parser_of, show, stopwatch
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Row, Sample
from tools.stack import ROOT

SURVIVORS, ONCE, EVERY = "survivors", "once", "every"
SUBJECTS = {
    SURVIVORS: "spotsup: from the memory of the nodes that are left, which send it to the newcomer",
    ONCE: "spotsup without that memory: each byte is read from storage once, and sent on",
    EVERY: "every rank reads all of the checkpoint, with torch.distributed.checkpoint's own reader",
}
LIMITED_BYTES_PER_S = 1.25e9
STORAGES = {"disk": 0.0, "1.25 GB/s": LIMITED_BYTES_PER_S}
SIZES = ("1x2", "1x4", "0.5x8", "4x2", "8x2-lean", "8x4-lean", "32x2-lean")
LEAN = "-lean"
GOAL = 3.0
LIMIT_S = 300.0
# Of each process, without its state; and for the machine.
PROCESS_GIB = 0.4
SPARE_GIB = 1.0
NOTES = """\
restore: from the first rank's beginning to the last one's end.
storage: what all ranks together read from storage. network: what they got from other ranks. With 2 nodes, every rank
  from storage is twice the bytes of once; with 8 it is eight times.
1.25 GB/s: storage that is slowed down to that, for all ranks together: a choice of this benchmark.
lean: the survivors share one snapshot, and restore into one buffer of 64 MiB: as many bytes, in less memory. All
  tensors have the same values then.
All nodes share this machine's cores and memory: of separate machines, each would copy at its own speed."""


@dataclass(frozen=True)
class Size:
    """So much state on so many nodes."""

    gib: float
    nodes: int
    # The survivors share a snapshot, and a buffer each for all tensors.
    lean: bool = False

    @classmethod
    def parse(cls, text: str) -> Size:
        """Of "GIBxNODES", or "GIBxNODES-lean"."""
        gib, _, nodes = text.removesuffix(LEAN).partition("x")
        try:
            found = cls(float(gib), int(nodes), text.endswith(LEAN))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not GIBxNODES, such as 1x2, or 8x2{LEAN}") from None
        if not 0 < found.gib < math.inf or found.nodes < 2:  # a newcomer, and one that is left
            raise argparse.ArgumentTypeError(f"{text!r}: more than 0 GiB, and 2 nodes or more")
        return found

    @property
    def needed_gib(self) -> float:
        """Memory: the model of each rank and the snapshot of each survivor, or one of both."""
        states = 2 if self.lean else 2 * self.nodes - 1
        return self.gib * states + PROCESS_GIB * self.nodes + SPARE_GIB

    def __str__(self) -> str:
        return f"{self.gib:g} GiB, {self.nodes} nodes{', lean' if self.lean else ''}"

    def case(self, storage: str) -> str:
        """As the table says it."""
        return f"{self}, {storage}"

    def left_out(self, available_gib: float) -> str:
        """Why it is not measured; "" where it can be."""
        if available_gib >= self.needed_gib:
            return ""
        return f"{self}: not measured: it needs {self.needed_gib:.1f} GiB of memory; {available_gib:.1f} are free"


def measure(size: Size, options: argparse.Namespace, stop: Stop, say: Callable[[str], None]) -> list[Sample]:
    """All ways with this size. Raises BenchError, InterruptedByUserError."""
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    (options.folder / "meter").write_bytes(struct.pack("d", 0.0))
    created = [snapshot_files.create(1) for _ in range(2 if size.lean else size.nodes)]
    memories = [*created[:1] * (size.nodes - 1), created[1]] if size.lean else created
    samples: list[Sample] = []
    try:
        number = 1
        _run("save", created[:-1], size, options, number, 0.0, stop)
        for storage, bytes_per_s in ((each, STORAGES[each]) for each in options.storages):
            for _ in range(options.repeat):
                for way in (SURVIVORS, ONCE, EVERY):
                    number += 1
                    _drop(options.folder / "checkpoints")
                    found = _run(way, memories, size, options, number, bytes_per_s, stop)
                    samples += _samples(size.case(storage), way, found)
                    say(f"{size.case(storage)}: {way} {samples[-3].value:.2f} s")
    finally:
        for memory in created:
            for files in snapshot_files.named_by({snapshot_files.VARIABLE: memory}):
                for descriptor in (*files.slots, files.lineage):
                    os.close(descriptor)
        shutil.rmtree(options.folder, ignore_errors=True)
    return samples


def _samples(case: str, way: str, found: Sequence[dict[str, float]]) -> list[Sample]:
    seconds = max(each["ended"] for each in found) - min(each["began"] for each in found)
    return [
        Sample(case, way, "restore", "s", seconds),
        Sample(case, way, "storage", "GiB", sum(each["storage"] for each in found)),
        Sample(case, way, "network", "GiB", found[0]["peers"]),
    ]


def _run(
    way: str,
    memories: Sequence[str],
    size: Size,
    options: argparse.Namespace,
    number: int,
    bytes_per_s: float,
    stop: Stop,
) -> list[dict[str, float]]:
    """One round; what each rank has measured."""
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank, memory in enumerate(memories):
            command = [sys.executable, "-m", "benchmarks.restore.rank", "--folder", str(options.folder), "--way", way]
            command += ["--aliased"] if size.lean and rank < size.nodes - 1 else []
            command += ["--lean"] if size.lean else []
            command += ["--gib", str(size.gib), "--round", str(number), "--storage-bytes-per-s", str(bytes_per_s)]
            environ = {
                **os.environ,
                "GLOO_SOCKET_IFNAME": "lo",
                "SPOTSUP_JOB": "bench",
                snapshot_files.VARIABLE: memory,
                **{name: str(rank) for name in ("RANK", "GROUP_RANK")},
                **{name: str(len(memories)) for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE")},
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
            }
            passed = [int(part) for part in memory.split(",")]
            with (options.folder / f"{rank}.log").open("w") as log:
                ranks.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=log, pass_fds=passed, text=True
                    )
                )
        deadline = time.monotonic() + LIMIT_S
        while (left := sum(each.poll() is None for each in ranks)) or any(r.returncode for r in ranks):
            stop.check()
            if failed := [at for at, each in enumerate(ranks) if each.returncode]:
                text = (options.folder / f"{failed[0]}.log").read_text()[-2000:]
                raise BenchError(f"rank {failed[0]} failed: {text}")
            if time.monotonic() > deadline:
                raise BenchError(f"{left} ranks are not done after {LIMIT_S:g} s")
            time.sleep(0.05)
        # the last line: gloo prints, too
        return [json.loads(each.stdout.read().splitlines()[-1]) for each in ranks if each.stdout]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
            if each.stdout:
                each.stdout.close()


def _drop(folder: Path) -> None:
    """Drop the pages of all files from memory."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sentences(rows: Sequence[Row]) -> list[str]:
    """How much faster survivors are than every rank from storage, in each case."""
    found = {(row.case, row.subject, row.metric): row.median for row in rows}
    said = []
    for case in dict.fromkeys(row.case for row in rows):
        ours, theirs = found[case, SURVIVORS, "restore"], found[case, EVERY, "restore"]
        if ours and theirs:
            verdict = "" if theirs >= GOAL * ours else f": less than {GOAL:g} times"
            said.append(f"{case}: {theirs / ours:.1f} times as fast as every rank from storage{verdict}")
    return said


def tables(rows: Sequence[Row]) -> list[Table]:
    """For people."""
    found = {(row.case, row.subject, row.metric): row for row in rows}
    heads = ("restore", "min", "max", "storage", "network")
    table = results.table_of("Restoring a round with a newcomer", ("", ""), heads)
    for case, subject in dict.fromkeys((row.case, row.subject) for row in rows):
        storage, network = (found[case, subject, metric].median for metric in ("storage", "network"))
        sizes = [f"{value or 0:.2f} GiB" for value in (storage, network)]
        table.add_row(case, subject, *results.figures(found[case, subject, "restore"], 2), *sizes)
    return [table]


def main() -> None:
    """Measure, print and write."""
    parser = parser_of("restore", __doc__)
    add_repeat(parser)
    default = [Size.parse(text) for text in SIZES]
    parser.add_argument("--sizes", nargs="+", type=Size.parse, default=default, metavar=f"GIBxNODES[{LEAN}]")
    parser.add_argument("--storages", nargs="+", choices=STORAGES, default=list(STORAGES))
    options = parser.parse_args()
    about, say = results.machine(), stopwatch()
    left_out: list[str] = []

    def work(stop: Stop) -> list[Sample]:
        samples: list[Sample] = []
        for size in options.sizes:
            if why := size.left_out(snapshot_files.available_bytes() / 2**30):
                left_out.append(why)
            else:
                samples += measure(size, options, stop, say)
        return samples

    rows = results.summarise(measured("bench-restore", work))
    results.write(options.json, rows, about, SUBJECTS, {"not_measured": left_out})
    show(tables(rows) if rows else [], NOTES, options.json, sentences=[*sentences(rows), *left_out])


if __name__ == "__main__":
    main()
