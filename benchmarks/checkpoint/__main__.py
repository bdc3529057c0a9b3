"""`make bench-checkpoint`: for how long a checkpoint stops training: spotsup, torch.save, and torch's own DCP.

The same 1 GiB, model and AdamW, is written to the same folder by each in turn, synced to the disk, and read back; by
one process, and by two that hold the same, as with DDP. spotsup also writes it to moto's S3 server on this machine,
one Python process, which bounds the time until such a checkpoint is complete. Writes build/bench/checkpoint.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from moto.server import ThreadedMotoServer
from rich.table import Table

from benchmarks import results
from benchmarks.checkpoint.place import BUCKET
from benchmarks.command import count, measured, parser_of, progress, show
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Row, Sample
from tools.stack import ROOT

BLOCKING, FIRST, COMPLETE, RESTORE = "blocking", "blocking, first call", "complete", "restore"
SPOTSUP, FLOOR = "spotsup", "floor"
WORLDS = (1, 2)
# of the transformer in benchmarks/checkpoint/rank.py; AdamW keeps two numbers per parameter, all have 4 bytes
EMBEDDING_GIB, LAYER_GIB = 0.281, 0.0792
GOAL_S = 0.3
LIMIT_S = 600.0
FREE_GIB = 4.0  # every way keeps one checkpoint, and spotsup a second while it writes

SUBJECTS = {
    SPOTSUP: "what Session does in the background, to the end; removing the checkpoint before is part of it",
    "spotsup, S3": "the same, to moto's S3 server on this machine, in parts of 16 MiB",
    "torch.save": "rank 0 writes one file, syncs and renames it, the others wait",
    "dcp.save": "torch.distributed.checkpoint.save of get_state_dict(), with its own settings",
    "dcp.async_save": "torch.distributed.checkpoint.async_save of the same, with its own settings",
    FLOOR: "the whole state copied once, to memory that is there already, by every rank at the same time",
}
NOTES = """\
blocking: until training goes on. first call: memory for the copy is new then.
complete: until the checkpoint is whole, and on the disk.
restore: into the same model and optimizer; the files are still in memory.
Of several ranks the slowest counts."""


def measure(world: int, options: argparse.Namespace, stop: Stop) -> list[Sample]:
    """All measurements with this number of ranks. Raises BenchError, InterruptedByUserError."""
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    free_gib = shutil.disk_usage(options.folder).free / 2**30
    if free_gib < FREE_GIB * options.gib:
        raise BenchError(f"{options.folder} has {free_gib:.1f} GiB free; {FREE_GIB * options.gib:g} are needed")
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(world):
            with (options.folder / f"{rank}.log").open("w") as log, (options.folder / f"{rank}.jsonl").open("w") as out:
                ranks.append(
                    subprocess.Popen(_command(rank, world, options), cwd=ROOT, env=_environ(), stdout=out, stderr=log)
                )
        _wait(ranks, options.folder, stop)
        lines = [_lines(options.folder / f"{rank}.jsonl") for rank in range(world)]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
        shutil.rmtree(options.folder, ignore_errors=True)
    case = "1 process" if world == 1 else f"{world} processes"
    return [slowest(case, same) for same in zip(*lines, strict=True)]


def slowest(case: str, lines: Sequence[dict[str, str | float]]) -> Sample:
    """One measurement, as each rank reported it."""
    assert len({(line["subject"], line["metric"]) for line in lines}) == 1
    seconds = max(float(line["seconds"]) for line in lines)
    return Sample(case, str(lines[0]["subject"]), str(lines[0]["metric"]), "s", seconds)


def _command(rank: int, world: int, options: argparse.Namespace) -> list[str]:
    settings = {
        "folder": options.folder,
        "rank": rank,
        "world": world,
        "repeat": options.repeat,
        "layers": max(1, round((options.gib - EMBEDDING_GIB) / LAYER_GIB)),
    }
    given = (part for name, value in settings.items() for part in (f"--{name}", str(value)))
    return [sys.executable, "-m", "benchmarks.checkpoint.rank", *given]


def _environ() -> dict[str, str]:
    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def object_store() -> Iterator[None]:
    """moto's S3 server with a bucket, which this process's variables point to."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_REGION": "us-east-1",
            BUCKET: "bench",
        }
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bench", method="PUT")).close()
        yield
    finally:
        server.stop()


def _wait(ranks: Sequence[subprocess.Popen[bytes]], folder: Path, stop: Stop) -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(rank.poll() is None for rank in ranks):
        stop.check()
        failed = [number for number, rank in enumerate(ranks) if rank.poll()]
        if failed:
            raise BenchError(f"rank {failed[0]} failed: {(folder / f'{failed[0]}.log').read_text()[-2000:]}")
        if time.monotonic() > deadline:
            raise BenchError(f"{len(ranks)} ranks are not done after {LIMIT_S:g} s")
        time.sleep(0.1)


def _lines(path: Path) -> list[dict[str, str | float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_order(rows: Sequence[Row]) -> list[Row]:
    """By case, and within it by what is measured and the subjects, always in the same order."""
    metrics, subjects = [BLOCKING, FIRST, COMPLETE, RESTORE], list(SUBJECTS)
    return sorted(rows, key=lambda row: (row.case, metrics.index(row.metric), subjects.index(row.subject)))


def table(rows: Sequence[Row], gib: float) -> Table:
    """The rows for people."""
    made = results.table_of(f"A checkpoint of {gib:g} GiB", ("", "subject"), ("median", "min", "max", "n"))
    for case, metric in dict.fromkeys((row.case, row.metric) for row in rows):
        made.add_row()
        made.add_row(f"{case}: {metric}", style="bold")
        for row in rows:
            if (row.case, row.metric) == (case, metric):
                made.add_row("", row.subject, *results.figures(row, 3), str(row.n))
    return made


def verdicts(rows: Sequence[Row], gib: float) -> Iterator[str]:
    """Whether the goal is met, one sentence per number of processes."""
    for row in rows:
        if (row.metric, row.subject) == (BLOCKING, SPOTSUP) and row.median is not None:
            goal_s = GOAL_S * gib
            met = "met" if row.median <= goal_s else "missed"
            yield f"{row.case}: training stops for {row.median:.3f} s (goal {goal_s:g} s): {met}"


def measure_all(options: argparse.Namespace, stop: Stop) -> list[Sample]:
    """Every number of processes. Raises BenchError, InterruptedByUserError."""
    samples: list[Sample] = []
    for world in WORLDS:
        progress.print(f"[dim]{world} of {WORLDS[-1]} processes, about a minute[/dim]")
        samples += measure(world, options, stop)
    return samples


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be measured; 130 after Ctrl-C."""
    options, about = _parse(), results.machine()
    options.json.unlink(missing_ok=True)
    with object_store():
        rows = in_order(results.summarise(measured("bench-checkpoint", lambda stop: measure_all(options, stop))))
    results.write(options.json, rows, about, SUBJECTS)
    show([table(rows, options.gib)], NOTES, options.json, sentences=verdicts(rows, options.gib))
    return 0


def _parse() -> argparse.Namespace:
    parser = parser_of("checkpoint", __doc__)
    parser.add_argument("--repeat", type=count, default=5, metavar="N")
    parser.add_argument("--gib", type=_gib, default=1.0, metavar="GIB", help="how large the state is")
    return parser.parse_args()


def _gib(text: str) -> float:
    try:
        gib = float(text)
    except ValueError:
        gib = 0.0
    if not 0.0 < gib < 1000.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in GiB")
    return gib


if __name__ == "__main__":
    sys.exit(main())
