"""Rounds of the small training job of training.py: a process per rank, and the launcher's part by hand."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotsup_trainer import wire

from tests.e2e.training import Rank, train

PROCESSES = multiprocessing.get_context("forkserver")
# torch costs seconds to import and milliseconds to fork
PROCESSES.set_forkserver_preload(["tests.e2e.training", "spotsup_trainer.session.checkpoint"])


@contextmanager
def running(jobs: list[Rank]) -> Iterator[list[Any]]:
    """A process per rank; none is left."""
    processes = [PROCESSES.Process(target=train, args=(job,)) for job in jobs]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def wait(what: str, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Until `condition` is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def ranks(world: int, folder: Path, **options: Any) -> list[Rank]:
    """All ranks of a round, alike."""
    return [Rank(rank, world, folder, **options) for rank in range(world)]


def run_round(jobs: list[Rank], timeout_s: float = 60.0) -> list[int]:
    """Run to the end; the exit codes."""
    with running(jobs) as processes:
        wait("the end of the round", lambda: all(process.exitcode is not None for process in processes), timeout_s)
        return [process.exitcode for process in processes]


class Launcher:
    """The launcher's side of the worker files of all ranks."""

    def __init__(self, jobs: list[Rank]) -> None:
        folder = jobs[0].folder / f"run.{jobs[0].round}"
        folder.mkdir()
        self._folder = folder
        names = ("YIELD", "SESSION", "PARKED", "PROGRESS")
        self.jobs = [
            replace(
                job,
                environ={**job.environ, **{f"SPOTSUP_{name}_FILE": str(self.file(name, job.rank)) for name in names}},
            )
            for job in jobs
        ]

    def file(self, name: str, rank: int = 0) -> Path:
        """YIELD, SESSION, PARKED or PROGRESS."""
        return self._folder / f"{name}.{rank}"

    def progress(self) -> wire.Progress | None:
        """The progress that rank 0 wrote last."""
        path = self.file("PROGRESS")
        return wire.decode(wire.Progress, path.read_bytes()) if path.exists() else None

    def reached(self, step: int) -> Callable[[], bool]:
        """Whether a step is reported as complete."""
        return lambda: (progress := self.progress()) is not None and progress.step >= step

    def all_parked(self) -> bool:
        """Whether all ranks say so."""
        return all(self.file("PARKED", job.rank).exists() for job in self.jobs)


def output(folder: Path, rank: int = 0) -> str:
    """What a rank has printed, over all rounds."""
    return (folder / f"out.{rank}").read_text()
