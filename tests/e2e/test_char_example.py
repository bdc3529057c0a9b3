"""The character transformer under torchrun and alone, with the interpreter of nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from spotsup_trainer.session.audit import analyse, parse

from tests.e2e.launching import NODE_ENVIRON, NODE_PYTHON

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_the_example_under_torchrun_and_alone(tmp_path: Path) -> None:
    for part in ("trainer/examples/char_transformer.py", "tests/support/audited_example.py"):
        shutil.copy(REPO / part, tmp_path)
    small = ["--text-mb", "0.02", "--dim", "32", "--layers", "1", "--seq", "32", "--checkpoint-every", "4"]
    small += ["--checkpoints", str(tmp_path / "checkpoints"), "--audit", str(tmp_path / "audit"), "--log-every", "6"]
    environ = {**os.environ, **NODE_ENVIRON, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def run(command: list[str], **more: str) -> str:
        command = [NODE_PYTHON, *command, *small]
        done = subprocess.run(command, env=environ | more, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = str(tmp_path / "audited_example.py")
    first = run([*torchrun, program, "--steps", "12"], SPOTSUP_ROUND="1")
    assert "step 6 restart 0 world 2 loss " in first
    second = run([program, "--steps", "18"], SPOTSUP_ROUND="2")
    assert "step 18 restart 0 world 1 loss " in second
    lines = [line for path in (tmp_path / "audit").iterdir() for line in parse(path.read_text())]
    verdict = analyse(lines, samples=(20_000 - 1) // 32, global_batch=48)
    assert (verdict.steps, verdict.samples_repeated, verdict.samples_missed) == (18, 0, 0)
    assert [change.steps_lost for change in verdict.changes] == [0]
    assert verdict.loss_last < verdict.loss_first - 0.5
