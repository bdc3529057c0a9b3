"""imagenet.py's published models, whole: mixed precision, channels-last, schedule, accuracy, best model."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.ranks import EXAMPLES, IMAGENET

BATCH, SIZE = 4, 64  # the smallest images that leave more than one place to batch normalisation after five halvings


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b7"])
def test_two_steps_in_mixed_precision_and_channels_last_with_validation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("SPOTSUP_CHECKPOINT_DIR", raising=False)
    seen: Counter[tuple[bool, torch.dtype]] = Counter()
    scattered: list[str] = []

    def see(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            seen[module.training, output.dtype] += 1
            if not output.is_contiguous(memory_format=torch.channels_last):
                scattered.append(str(module))

    arguments = ["--model", name, "--image-size", str(SIZE), "--amp", "bf16", "--channels-last", "--workers", "0"]
    arguments += ["--fake-data", str(BATCH), "--fake-val", "3", "--global-batch", str(BATCH), "--epochs", "2"]
    arguments += ["--warmup", "2", "--lr", "0.05", "--log-every", "1", "--best", str(tmp_path)]
    threads = torch.get_num_threads()
    hook = nn.modules.module.register_module_forward_hook(see)
    try:
        runpy.run_path(str(IMAGENET))["main"](arguments)
    finally:
        hook.remove()
        torch.set_num_threads(threads)

    said = capfd.readouterr().out
    steps = re.findall(r"^step (\d) epoch (\d) world 1 lr ([\d.]+) loss ([\d.]+)$", said, re.MULTILINE)
    assert [(step, epoch, float(lr)) for step, epoch, lr, _ in steps] == [("1", "0", 0.025), ("2", "1", 0.05)]
    assert all(0.0 < float(loss) < 50.0 for *_, loss in steps)
    assert re.findall(r"^epoch (\d) accuracy", said, re.MULTILINE) == ["1", "2"]
    assert {kind for _, kind in seen} == {torch.bfloat16}, "autocast was not on"
    assert {training for training, _ in seen} == {True, False}
    assert not scattered, "a convolution left the layout"

    best = torch.load(tmp_path / "best.pt", weights_only=True)["model"]
    assert {tensor.dtype for tensor in best.values() if tensor.is_floating_point()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in best.values())
