"""One training over many changes of its processes: parked or killed at drawn steps, and what came of it."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from spotsup_trainer.session.audit import analyse, parse
from spotsup_trainer.session.checkpoint_dir import checkpoints_in

from tests.e2e.rounds import Launcher, output, ranks, running, wait
from tests.e2e.training import GLOBAL_BATCH, SAMPLES, Rank

STEPS_PER_EPOCH = -(-SAMPLES // GLOBAL_BATCH)
# A killed round may repeat some steps, so a change takes fewer than these on average.
STEPS_PER_CHANGE = 3
TIMEOUT_S = 900.0  # four processes with dozens of collectives per step, on a very busy machine
# What one process does as well as several.
ALSO_ALONE = {"own_loaders", "context_parallel"}


@dataclass(frozen=True)
class Mode:
    """A way to train, and the numbers of processes that it is tried on."""

    name: str
    worlds: tuple[int, ...]
    # Of the run that nothing interrupts.
    alone: int
    options: dict[str, Any]


FSDP: dict[str, Any] = {"sharded": True}
CP: dict[str, Any] = {"context_parallel": 2}
MODES = {
    "ddp": Mode("DDP", (1, 2, 3, 4), 1, {}),
    "fsdp": Mode("FSDP2", (1, 2, 3, 4), 1, FSDP),
    "hsdp": Mode("HSDP, 2 replicas", (2, 4), 1, {"replicas": 2}),
    "tp": Mode("FSDP2 + TP over 2", (2, 4), 1, {"tensor_parallel": 2}),
    "cp": Mode("FSDP2 + CP over 2", (2, 4), 1, CP),
    "shards": Mode("StatefulDataLoader, 4 shards", (1, 2, 3, 4), 1, {"own_loaders": "shards"}),
    "ddp-same": Mode("DDP", (2,), 2, {}),
    "fsdp-same": Mode("FSDP2", (2,), 2, FSDP),
    "hsdp-same": Mode("HSDP, 2 replicas", (4,), 4, {"replicas": 2}),
    "tp-same": Mode("FSDP2 + TP over 2", (4,), 4, {"tensor_parallel": 2}),
    "cp-same": Mode("FSDP2 + CP over 2", (4,), 4, CP),
    "rank-same": Mode("StatefulDataLoader, 1 per rank", (2,), 2, {"own_loaders": "rank"}),
}


@dataclass(frozen=True)
class Outcome:
    """What was seen."""

    name: str
    worlds: tuple[int, ...]
    parked: int
    killed: int
    steps: int
    # Steps that were done again after a kill.
    repeated: int
    samples_repeated: int
    samples_missed: int
    # Of the final weights, against the run that nothing interrupted, relative to the largest weight.
    difference: float
    wall_s: float

    @property
    def exact(self) -> bool:
        """Every sample once; weights equal bit by bit on the same number of processes, and to 1e-9 on others."""
        allowed = 0.0 if len(self.worlds) == 1 else 1e-9
        return (self.samples_repeated, self.samples_missed) == (0, 0) and self.difference <= allowed


def run(key: str, changes: int, seed: int, folder: Path) -> Outcome:
    """Train with and without `changes` changes."""
    mode, rng, began = MODES[key], random.Random(f"{seed} {key}"), time.monotonic()
    epochs = -(-changes * STEPS_PER_CHANGE // STEPS_PER_EPOCH) + 1
    last = epochs * STEPS_PER_EPOCH
    alone, together = folder / f"{key}.alone", folder / f"{key}.together"
    alone.mkdir()
    together.mkdir()
    own = mode.options if mode.alone > 1 else {name: mode.options[name] for name in ALSO_ALONE & mode.options.keys()}
    finish(ranks(mode.alone, alone, epochs=epochs, **own))
    at = killed = 0
    for number in range(1, changes + 1):
        world = rng.choice(mode.worlds)
        jobs = ranks(world, together, round=number, epochs=epochs, every_steps=rng.randint(1, 2), **mode.options)
        step = min(at + rng.randint(1, 2 * STEPS_PER_CHANGE - 1), last - 2)
        if number > 1 and rng.random() < 0.4:
            killed += 1
            kill(jobs, rng.randrange(world), step)
        else:
            park(jobs, rng.randrange(world), step)
        at = newest(together)
    finish(ranks(rng.choice(mode.worlds), together, round=changes + 1, epochs=epochs, **mode.options))

    lines = [line for path in sorted((together / "audit").iterdir()) for line in parse(path.read_text())]
    report = analyse(lines, samples=SAMPLES, global_batch=GLOBAL_BATCH)
    assert report.steps == last, f"{report.steps} of {last} steps"
    return Outcome(
        name=mode.name,
        worlds=mode.worlds,
        parked=changes - killed,
        killed=killed,
        steps=report.steps,
        repeated=sum(change.steps_lost for change in report.changes),
        samples_repeated=report.samples_repeated,
        samples_missed=report.samples_missed,
        difference=difference(alone, together),
        wall_s=time.monotonic() - began,
    )


def newest(folder: Path) -> int:
    """The step that the next round begins after. LATEST may still name the one before: a kill can come between."""
    return checkpoints_in(folder / "checkpoints")[0].step


def park(jobs: list[Rank], rank: int, step: int) -> None:
    """A round in which one rank's node has to leave after `step`, and so after that step or the next one."""
    launcher = Launcher(jobs)
    launcher.jobs[rank] = replace(launcher.jobs[rank], yield_after=step)
    with running(launcher.jobs) as processes:
        wait("parking", lambda: launcher.all_parked() or ended(processes, jobs), TIMEOUT_S)
    parked = json.loads(launcher.file("PARKED").read_text())
    # A step that is usually quick acts on what the one before agreed on, and whether it is quick is measured.
    assert parked in [{"step": at, "saved": True} for at in (step, step + 1)], parked


def kill(jobs: list[Rank], rank: int, step: int) -> None:
    """A round of which one rank is killed when it has done `step`, and the others then, as a launcher does."""
    jobs[rank] = replace(jobs[rank], die_after=step)
    with running(jobs) as processes:
        wait("the kill", lambda: any(process.exitcode is not None for process in processes), TIMEOUT_S)
        wait("its reason", lambda: processes[rank].exitcode is not None, TIMEOUT_S)
        assert processes[rank].exitcode == -signal.SIGKILL, output(jobs[0].folder, rank)


def finish(jobs: list[Rank]) -> None:
    """A round that trains to the end."""
    with running(jobs) as processes:
        wait("the end", lambda: failed(processes, jobs) or all(each.exitcode == 0 for each in processes), TIMEOUT_S)


def ended(processes: list[Any], jobs: list[Rank]) -> bool:
    """False; raises if a process has ended: one that is parked waits to be ended."""
    for process, job in zip(processes, jobs, strict=True):
        assert process.exitcode is None, f"exit code {process.exitcode}: {output(job.folder, job.rank)}"
    return False


def failed(processes: list[Any], jobs: list[Rank]) -> bool:
    """False; raises if a process has failed."""
    for process, job in zip(processes, jobs, strict=True):
        assert not process.exitcode, output(job.folder, job.rank)
    return False


def difference(alone: Path, together: Path) -> float:
    """The largest of all weights, relative to the largest weight."""
    expected, trained = (torch.load(folder / "weights.pt") for folder in (alone, together))
    flat, other = (torch.cat([tensor.detach().flatten() for tensor in tensors]) for tensors in (expected, trained))
    return float((flat - other).abs().max() / flat.abs().max())
