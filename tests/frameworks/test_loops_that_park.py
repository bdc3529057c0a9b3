"""Loops with Parking, by Accelerate and TorchTitan's checkpointer: with a notice and a kill they end as without."""

from __future__ import annotations

import importlib
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.launching import BUSY_S, Nodes, eventually, nodes
from tests.e2e.ranks import script

TITAN = Path(__file__).with_name("titan.py")

# The packages' own warnings are not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


def printed(job: Nodes) -> dict[int, str]:
    """The loss of each step as rank 0 printed it; of a step that was done twice, all that differ."""
    found: dict[int, set[str]] = {}
    for node in job.launchers:
        for step, loss in re.findall(r"^step (\d+) loss (\S+)$", job.log(node).read_text(), re.MULTILINE):
            found.setdefault(int(step), set()).add(loss)
    return {step: " or ".join(sorted(losses)) for step, losses in sorted(found.items())}


def reached(job: Nodes, step: int) -> None:
    eventually(f"step {step}", lambda: max(printed(job), default=0) >= step, BUSY_S)


def ended(job: Nodes, *names: str) -> None:
    for node in names:
        assert job.exit_code(node, BUSY_S) == 0, job.log(node).read_text()


def weights_of_accelerate(checkpoints: Path) -> dict[str, torch.Tensor]:
    safetensors: Any = importlib.import_module("safetensors.torch")
    found: dict[str, torch.Tensor] = safetensors.load_file(max(checkpoints.glob("step_*")) / "model.safetensors")
    return found


def weights_of_titan(checkpoints: Path) -> dict[str, torch.Tensor]:
    state: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_loader")
    newest = max(checkpoints.glob("checkpoint/step-*"), key=lambda path: int(path.name[5:]))
    found: dict[str, torch.Tensor] = state._load_state_dict_from_keys(checkpoint_id=str(newest))
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(
    ("recipe", "program", "steps", "every", "weights"),
    [
        ("with_accelerate.py", None, 1000, 200, weights_of_accelerate),
        ("with_torchtitan.py", TITAN, 400, 60, weights_of_titan),
    ],
)
def test_a_loop_over_a_notice_and_a_kill_ends_as_one_without(
    recipe: str, program: Path | None, steps: int, every: int, weights: Any, etcd_endpoint: str, tmp_path: Path
) -> None:
    path = script(recipe, tmp_path)
    if program is not None:
        path = Path(shutil.copy(program, tmp_path))

    with nodes(etcd_endpoint, tmp_path / "with", script=path) as job:
        job.hint("a", "b", minimum=2)
        job.start("a", "b", "c", "d")
        job.ready("c", "d", timeout_s=BUSY_S)  # spares: each round has two ranks
        reached(job, 20)
        job.hint("b", "c", minimum=2)
        job.launchers["a"].send_signal(signal.SIGTERM)
        assert job.exit_code("a", BUSY_S) == 0
        parked_after = max(printed(job))
        assert parked_after < every, "the notice came too late for this test"
        reached(job, every + every // 2)
        before = printed(job)
        job.hint("c", "d", minimum=2)
        job.kill("b")
        ended(job, "c", "d")
        interrupted, ends = printed(job), weights(job.checkpoint_dir)
        logs = "\n".join(job.log(node).read_text() for node in "abcd")
    assert "all workers are parked" in logs
    assert "round 3: rank" in logs
    assert max(before) < steps

    with nodes(etcd_endpoint, tmp_path / "without", script=path) as job:
        job.job = "undisturbed"
        job.hint("a", "b", minimum=2)
        job.start("a", "b")
        ended(job, "a", "b")
        undisturbed, expected = printed(job), weights(job.checkpoint_dir)
    assert list(interrupted) == list(range(1, steps + 1))
    assert interrupted == undisturbed
    assert ends.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ends[name], value), name
