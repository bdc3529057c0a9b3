"""The launcher's side of a node's files, over many rounds."""

from __future__ import annotations

from pathlib import Path

from spotsup_trainer.launcher.run_dir import Outcome, RunDir
from spotsup_trainer.wire import Progress
from spotsup_trainer.worker_files import WorkerFiles


def test_a_thousand_rounds_leave_the_files_of_one(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    for number in range(1, 1001):
        run_dir.begin(number)
        run_dir.ask_to_yield(number, "c joins")
        for rank in range(2):
            environ = run_dir.worker_env(number, rank)
            worker = WorkerFiles.named_by(environ)
            worker.announce()
            worker.write_progress(Progress(number, 1, 0.0, 0.0))
            # a worker that was killed while it wrote
            Path(f"{environ['SPOTSUP_PARKED_FILE']}.tmp").touch()
    run_dir.write_outcome(Outcome("left", "asked to leave"))
    left = sorted(file.name for file in run_dir.path.iterdir())
    assert left == [
        *("ended.json", "parked-1000-0.tmp", "parked-1000-1.tmp", "progress-1000.json"),
        *("session-1000-0", "session-1000-1", "yield-1000"),
    ]
    assert (run_dir.sessions(1000, 2), run_dir.parked(1000, 2)) == (2, 0)
