"""`make bench-agreement`: for how long a step waits for what all ranks tell each other, up to 64 ranks.

The ranks are processes on this machine that do nothing for 100 ms and then agree, as Session.step() does: at once, or
reading what the step before agreed on. Writes build/bench/agreement.json.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from spotsup_trainer.session.agreement import Agreement, Level, Wish
from spotsup_trainer.session.peers import Peers

from benchmarks import results
from benchmarks.command import add_repeat, measured, parser_of, show, stopwatch
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Sample

STEP_S = 0.1
STEPS, WARM_STEPS = 100, 10
SIZES = (2, 4, 8, 16, 32, 64)
AT_ONCE, LATER = "at once", "one step later"
LIMIT_S = 240.0
SUBJECTS = {AT_ONCE: "each step waits for its own agreement", LATER: "Session.step() of quick steps"}
NOTES = """\
waits: the median over all ranks and steps of the time in the agreement of a step; p95 of the same.
share: of a step of 100 ms, the mean over ranks and steps. All ranks share this machine's processors: with more ranks
  than processors, what they take from each other is in the numbers."""
FORKED = multiprocessing.get_context("fork")


def be_rank(rank: int, world: int, folder: Path, at_once: bool, answer: Connection) -> None:
    """In a process of its own: send how long each step's agreement took."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/store-{world}-{at_once}", rank=rank, world_size=world)
    agreement, wish = Agreement(Peers.join({})), Wish(Level.CONTINUE, step_s=STEP_S)
    took = []
    for step in range(WARM_STEPS + STEPS):
        time.sleep(STEP_S)
        began = time.perf_counter()
        agreement.of_step(step, wish, lambda: (0, 0), waits=at_once)
        took.append(time.perf_counter() - began)
    dist.barrier()
    answer.send(took[WARM_STEPS:])
    os._exit(0)


def waits(world: int, folder: Path, *, at_once: bool) -> list[float]:
    """Seconds in the agreement, of each step of each rank. Raises BenchError."""
    pipes = [FORKED.Pipe(duplex=False) for _ in range(world)]
    ranks = [
        FORKED.Process(target=be_rank, args=(rank, world, folder, at_once, pipes[rank][1])) for rank in range(world)
    ]
    until = time.monotonic() + LIMIT_S
    try:
        for rank in ranks:
            rank.start()
        found: list[float] = []
        for receiver, _ in pipes:
            if not receiver.poll(max(0.0, until - time.monotonic())):
                raise BenchError(f"{world} ranks did not end their steps within {LIMIT_S:g} s")
            found += receiver.recv()
        return found
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()


def run(folder: Path, repeat: int, sizes: tuple[int, ...], stop: Stop) -> list[Sample]:
    """All measurements."""
    say, samples = stopwatch(), []
    for number in range(repeat):
        for world in sizes:
            for subject in (AT_ONCE, LATER):
                stop.check()
                inside = folder / f"{number}"
                inside.mkdir(parents=True, exist_ok=True)
                found = sorted(waits(world, inside, at_once=subject == AT_ONCE))
                values = {
                    ("waits", "ms"): 1000 * median(found),
                    ("waits p95", "ms"): 1000 * found[int(0.95 * len(found))],
                    ("share", "%"): 100 * sum(found) / len(found) / STEP_S,
                }
                shown = ", ".join(f"{metric} {value:.3g} {unit}" for (metric, unit), value in values.items())
                say(f"{world} ranks, {subject}: {shown}")
                samples += [Sample(f"{world} ranks", subject, *what, value) for what, value in values.items()]
    return samples


def main() -> None:
    """Measure, print, write."""
    parser = parser_of("agreement", __doc__)
    add_repeat(parser)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES, help="how many, as often as you like")
    options = parser.parse_args()
    about, folder = results.machine(), options.folder / str(os.getpid())
    torch.set_num_threads(1)
    samples = measured("bench-agreement", lambda stop: run(folder, options.repeat, tuple(options.ranks), stop))
    rows = results.summarise(samples)
    table = results.table_of("What a step waits for its agreement", ("", "", ""), ("median", "min", "max"))
    for row in rows:
        figures = (f"{value:.3g} {row.unit}" for value in (row.median, row.min, row.max) if value is not None)
        table.add_row(row.case, row.subject, row.metric, *figures)
    results.write(options.json, rows, about, SUBJECTS)
    show([table], NOTES, options.json)


if __name__ == "__main__":
    main()
