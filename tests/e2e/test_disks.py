"""Disks that are full, read-only, or hang: training goes on, the fault is reported, no failed checkpoint counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.rounds import Launcher, output, ranks, running, wait
from tests.e2e.training import Rank
from tests.support.disks import Fault, Frozen, Full, HangingFile, ReadOnly, file_system

SLOW = "does not answer or is slow: the checkpoint of step "


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own."""
    with file_system(tmp_path) as path:
        yield path


def steady(folder: Path, checkpoints: Path, number: int = 1) -> list[Rank]:
    """Two ranks that train without an end, with a checkpoint every other step."""
    options = {"every_steps": 2, "step_s": 0.05, "epochs": 10**6, "warn_after_s": 0.3}
    environ = {"SPOTSUP_CHECKPOINT_DIR": str(checkpoints)}
    return ranks(2, folder, round=number, environ=environ, **options)


class Watched:
    """A round on a disk with a fault."""

    def __init__(self, launcher: Launcher, fault: Fault) -> None:
        self._launcher, self._fault = launcher, fault

    def inject(self, reason: str) -> None:
        """Inject the fault after the first checkpoint, and wait until it is reported."""
        wait("a checkpoint", lambda: self.progress()[1] > 0)

        def reported() -> bool:
            self._fault.inject()
            return reason in self.progress()[2]

        wait("the problem", reported)

    def progress(self) -> tuple[int, int, str]:
        """Step, step of the newest checkpoint, problem."""
        progress = self._launcher.progress()
        return (progress.step, progress.checkpoint_step, progress.checkpoint_problem) if progress else (0, 0, "")


def run_with(folder: Path, fault: Fault, jobs: list[Rank], check: Callable[[Watched, Launcher], None]) -> None:
    """Run a round with a fault, which is repaired first: until then its processes cannot exit."""
    launcher = Launcher(jobs)
    with running(launcher.jobs):
        try:
            check(Watched(launcher, fault), launcher)
        finally:
            fault.repair()


def goes_on(folder: Path, checkpoints: Path, fault: Fault, reason: str) -> None:
    """Training goes on under the fault, and checkpoints do after it."""

    def check(watched: Watched, launcher: Launcher) -> None:
        watched.inject(reason)
        wait("20 more steps", launcher.reached(watched.progress()[0] + 20))
        wait("the problem still", lambda: reason in watched.progress()[2])
        saved = watched.progress()[1]
        fault.repair()
        wait("a newer checkpoint", lambda: watched.progress()[1] > saved and watched.progress()[2] == "")
        launcher.file("YIELD", 1).touch()
        wait("all ranks parked", launcher.all_parked)

    run_with(folder, fault, steady(folder, checkpoints), check)
    parked = json.loads((folder / "run.1" / "PARKED.0").read_text())
    assert parked["saved"] is True
    found = {entry.name for entry in checkpoints.iterdir()} - {"lost+found"}
    newest = f"step_{parked['step']:08d}"
    assert {"LATEST", "OWNER", newest} < found
    assert (checkpoints / "LATEST").read_text() == newest
    assert len(found) == 2 + 3  # three are kept, and nothing is left of those that failed
    warned = output(folder).count("spotsup: the checkpoint")
    assert warned == output(folder).count("spotsup: checkpoints are being written again") > 0
    waits = "is still reading the checkpoints"  # for rank 0, where that one began later
    assert [line for line in output(folder, 1).splitlines() if waits not in line] == []


def test_a_full_disk(tmp_path: Path, disk: Path) -> None:
    goes_on(tmp_path, disk, Full(disk), "No space left on device")


def test_a_disk_that_has_become_read_only(tmp_path: Path, disk: Path) -> None:
    goes_on(tmp_path, disk, ReadOnly(disk), "Read-only file system")


def test_a_disk_that_hangs(tmp_path: Path, disk: Path) -> None:
    goes_on(tmp_path, disk, Frozen(disk), SLOW)


def test_a_disk_that_hangs_for_rank_0(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    goes_on(tmp_path, checkpoints, HangingFile(checkpoints / "OWNER"), SLOW)


def test_no_node_parks_before_the_disk_has_answered(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    fault = HangingFile(checkpoints / "OWNER")

    def check(watched: Watched, launcher: Launcher) -> None:
        watched.inject(SLOW)
        launcher.file("YIELD", 1).touch()
        steps: list[int] = []
        wait("the end of the steps", lambda: steps.append(watched.progress()[0]) or steps[-20:].count(steps[-1]) == 20)  # type: ignore[func-returns-value]
        assert not any(launcher.file("PARKED", rank).exists() for rank in (0, 1))
        fault.repair()
        wait("all ranks parked", launcher.all_parked)
        for rank in (0, 1):
            parked = json.loads(launcher.file("PARKED", rank).read_text())
            assert parked == {"step": watched.progress()[0], "saved": True}

    run_with(tmp_path, fault, steady(tmp_path, checkpoints), check)


def test_a_preemption_while_a_disk_hangs(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    fault = HangingFile(checkpoints / "OWNER")
    launcher = Launcher(steady(tmp_path, checkpoints))
    with running(launcher.jobs):
        watched = Watched(launcher, fault)
        watched.inject(SLOW)
        wait("a checkpoint that hangs", lambda: any(checkpoints.glob("step_*.tmp")) and SLOW in watched.progress()[2])
    saved = int((checkpoints / "LATEST").read_text().removeprefix("step_"))
    unfinished = list(checkpoints.glob("step_*.tmp"))
    assert unfinished
    fault.repair()

    again = Launcher(steady(tmp_path, checkpoints, number=2))
    with running(again.jobs):
        wait("a newer checkpoint", lambda: Watched(again, fault).progress()[1] > saved)
    first = json.loads((tmp_path / "audit" / "2.0").read_text().splitlines()[0])
    assert first["step"] == saved + 1
    assert not any(path.exists() for path in unfinished)
