"""`make bench-recovery`: what it starts, and what it says when nothing trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import grid, launchers
from benchmarks.recovery.stock import WORKER
from benchmarks.recovery.watch import SETTLED_STEPS, BenchError, Job, Stop


class Machines:
    """Notes what would be started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[tuple[list[str], dict[str, str]]] = []

    def start(self, _number: int, command: list[str], environ: dict[str, str]) -> None:
        self.started.append((command, environ))


def started(subject: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """The program of a node, and its environment."""
    machines, job = Machines(folder), Job(folder / "marks", Stop())
    nothing: Any = None
    recording: Any = machines
    launchers.Nodes(recording, nothing, "http://127.0.0.1:1", job, subject).start(0)
    ((command, environ),) = machines.started
    return Path(command[command.index("--marks") - 1]), environ


@pytest.mark.parametrize("subject", [grid.LAUNCHERS_IMPORT, grid.LAUNCHERS_IMPORT_LATE])
def test_a_program_with_a_slow_import_is_a_file_that_finds_its_library(subject: str, tmp_path: Path) -> None:
    program, environ = started(subject, tmp_path)
    assert program.read_text() == launchers.SLOW_WORKER
    assert (Path(environ["PYTHONPATH"]) / "bench_slow_library.py").read_text() == launchers.SLOW_LIBRARY
    assert ("SPOTSUP_PRELOAD" in environ) == (subject == grid.LAUNCHERS_IMPORT_LATE)


def test_the_others_run_the_program_of_all_subjects(tmp_path: Path) -> None:
    program, environ = started(grid.LAUNCHERS_WARM, tmp_path)
    assert program == WORKER
    assert "PYTHONPATH" not in environ


def test_nodes_that_do_not_train_are_told_with_how_far_they_came(tmp_path: Path) -> None:
    job = Job(tmp_path / "marks", Stop())
    with pytest.raises(BenchError, match=f"3 nodes did not make {SETTLED_STEPS} steps within 0 s .none made one.: end"):
        job.settled(3, 0.0, lambda: "end")
    line = '{"t": 1.0, "step": %d, "round": 7, "node": "a", "rank": 0, "world": 1}\n'
    (tmp_path / "marks" / "a.1.jsonl").write_text("".join(line % step for step in range(1, 58)))
    with pytest.raises(BenchError, match=r"\(1 made 57\)"):
        job.settled(3, 0.0, lambda: "end")
