"""`make bench-slow`: how soon a slow node is seen, and whether a node is taken for slow that is not.

A job of real ranks (DDP over gloo, Session, its files), one for each node, on this machine; what rank 0 writes is read
and judged as the planner does. Busy loops come and go beside it. Writes build/bench/slow.json.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from spotsup_trainer.wire import RankTimes, decode
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import results
from benchmarks.command import measured, parser_of, show, stopwatch
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Sample
from supervisor.features.slow.rank_times import Verdict, Watch, watched
from supervisor.planner.world import Rules

WIDTH, SAMPLES = 256, 4096
# A busy loop lasts and rests for so long at most.
BUSY_S = 90.0
BUSY_LOOPS = 2
LOOK_S = 1.0
MAX_SILENCE_S = 300.0
FORKED = multiprocessing.get_context("fork")
RULES = Rules()
SLOW_FACTOR, SLOW_S = RULES.slow.factor, RULES.slow.lasts_s
SUBJECT = "Session and planner"
NOTES = f"""\
accusations: how often a node needed {SLOW_FACTOR:g} times the median for {SLOW_S:g} s, but for single reports.
  A factor: what a report says of one node, the median being 1; the largest of all, and how long one was so in a row.
injected: rank 1 makes each forward and backward pass so many times as long, by computing more."""


@dataclass(frozen=True)
class Case:
    """What is tried."""

    nodes: int
    seconds: float
    # Rank 1 works so many times as long; 1: as the others.
    slowed: float
    busy: bool

    @property
    def name(self) -> str:
        """For the table."""
        what = f"rank 1 {self.slowed:g} times slower" if self.slowed > 1 else "no slow node"
        return f"{self.nodes} nodes, {what}, {'busy loops beside' if self.busy else 'nothing else of ours beside'}"


def be_rank(rank: int, case: Case, folder: Path) -> None:
    """In a process of its own: train until it is ended."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=case.nodes)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    model, debt_s = DistributedDataParallel(net), 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    environ = {"SPOTSUP_RANK_TIMES_FILE": str(folder / "times"), "SPOTSUP_ROUND": "1"}
    session = Session({"model": model, "optimizer": optimizer}, environ=environ)
    data = torch.randn(SAMPLES, WIDTH)
    for batch in session.loader(data, global_batch=256 * case.nodes, epochs=10**9):
        began = time.thread_time()
        loss = model(batch).square().mean()
        if rank == 1:
            debt_s += (case.slowed - 1) * 2 * (time.thread_time() - began)  # backward takes about as long again
            while debt_s > 0:
                began = time.thread_time()
                with torch.no_grad():
                    net(batch)
                debt_s -= time.thread_time() - began
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        session.step()


def be_busy(seed: int) -> None:
    """In a process of its own: compute, and rest, in turns of random length."""
    rng = random.Random(seed)  # noqa: S311  # of a load
    while True:
        until = time.monotonic() + rng.uniform(0, BUSY_S)
        while time.monotonic() < until:
            pass
        time.sleep(rng.uniform(0, BUSY_S))


@contextlib.contextmanager
def processes(case: Case, folder: Path) -> Iterator[Sequence[BaseProcess]]:
    """The ranks, and busy loops beside them."""
    count = BUSY_LOOPS if case.busy else 0
    ranks = [FORKED.Process(target=be_rank, args=(rank, case, folder)) for rank in range(case.nodes)]
    loops = [FORKED.Process(target=be_busy, args=(number,)) for number in range(count)]
    try:
        for each in (*ranks, *loops):
            each.start()
        yield ranks
    finally:
        for each in (*ranks, *loops):
            if each.pid is not None:
                each.kill()
                each.join()


def follow(
    case: Case, folder: Path, stop: Stop, say: Callable[[str], None]
) -> tuple[list[Watch], list[tuple[float, str]]]:
    """What was seen at each report; and who was accused, after how many seconds. Ends with the first accusation of
    rank 1, if it is slow. Raises BenchError."""
    kinds = {f"node-{rank}": "" for rank in range(case.nodes)}
    seen: list[Watch] = []
    accused: list[tuple[float, str]] = []
    with processes(case, folder) as ranks:
        began = heard_at = time.monotonic()
        while (now := time.monotonic()) < began + case.seconds:
            stop.check()
            if not all(rank.is_alive() for rank in ranks) or now - heard_at > MAX_SILENCE_S:
                raise BenchError(f"{case.name}: a rank ended, or no report came for {MAX_SILENCE_S:g} s")
            time.sleep(LOOK_S)
            if not (folder / "times").exists():
                continue
            times, before = decode(RankTimes, (folder / "times").read_bytes()), seen[-1] if seen else None
            watch = watched(before, times, kinds, RULES.slow.factor, RULES.slow.lasts_s, now)
            if watch is before:
                continue
            heard_at = now
            seen.append(watch)
            say(", ".join(f"{node} {factor:.2f}" for node, factor in watch.factors.items()))
            slow = [node for node, verdict in watch.verdicts.items() if _is_accused(watch, node, verdict)]
            accused += [(now - began, node) for node in slow if node not in {known for _, known in accused}]
            if case.slowed > 1 and "node-1" in slow:
                break
    return seen, accused


def samples_of(case: Case, seen: list[Watch], accused: list[tuple[float, str]]) -> list[Sample]:
    """The figures of one case."""
    innocent = [node for _, node in accused if not (case.slowed > 1 and node == "node-1")]
    others = [node for node in (f"node-{rank}" for rank in range(case.nodes)) if case.slowed == 1 or node != "node-1"]
    largest = max((watch.factors.get(node, 0.0) for watch in seen for node in others), default=0.0)
    lasted = [watch.lasted_s(node) for watch in seen for node in others if _is_slow(watch, node)]
    found = [
        ("accusations of others", "", float(len(innocent))),
        ("reports", "", float(len(seen))),
        ("largest factor of others", "", largest),
        ("longest time above", "s", max(lasted, default=0.0)),
        ("work in a step", "ms", 1000 * max((max(watch.times.step_s) for watch in seen[-1:]), default=0.0)),
    ]
    if case.slowed > 1:
        seen_s = next((at for at, node in accused if node == "node-1"), None)
        factors = sorted(watch.factors.get("node-1", 0.0) for watch in seen)
        found.append(("its factor, median", "", factors[len(factors) // 2] if factors else 0.0))
        made = [Sample(case.name, SUBJECT, "seen after", "s", seen_s, case.seconds, "it was not seen")]
    else:
        made = []
    return made + [Sample(case.name, SUBJECT, metric, unit, value) for metric, unit, value in found]


def _is_accused(watch: Watch, node: str, verdict: Verdict) -> bool:
    return verdict.slow and not verdict.doubted and watch.lasted_s(node) >= SLOW_S


def _is_slow(watch: Watch, node: str) -> bool:
    return node in watch.verdicts and watch.verdicts[node].slow


def main() -> None:
    """Measure, print, write."""
    parser = parser_of("slow", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of noise without a slow node")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--slowed", type=float, nargs="*", default=[1.5], help="factors of an injected slow node")
    options = parser.parse_args()
    about, say = results.machine(), stopwatch()
    cases = [Case(options.nodes, 4 * SLOW_S, slowed, True) for slowed in options.slowed]
    if options.minutes:
        cases.append(Case(options.nodes, 60 * options.minutes, 1.0, True))

    def work(stop: Stop) -> list[Sample]:
        made: list[Sample] = []
        for number, case in enumerate(cases):
            folder = options.folder / f"{os.getpid()}-{number}"
            folder.mkdir(parents=True)
            say(case.name)
            made += samples_of(case, *follow(case, folder, stop, say))
        return made

    rows = results.summarise(measured("bench-slow", work))
    table = results.table_of("Slow nodes", ("", ""), ("",))
    for row in rows:
        table.add_row(row.case, row.metric, "never" if row.median is None else f"{row.median:g} {row.unit}")
    results.write(options.json, rows, about, {SUBJECT: "Session.step(), its report, and the planner's rule"})
    show([table], NOTES, options.json)


if __name__ == "__main__":
    main()
