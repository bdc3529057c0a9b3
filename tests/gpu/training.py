"""Checks of what a Session does with tensors on a GPU, and the examples for a few steps."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from spotsup_trainer.callbacks import Parking
from spotsup_trainer.session import Session
from spotsup_trainer.session.losses import LossReading
from spotsup_trainer.session.staging import Staging
from torch import nn

from tests.gpu.place import ROOT, Facts, Place, ran

MIB = 1 << 20
EXAMPLES = ROOT / "trainer" / "examples"
EXAMPLE_S = 240.0


def staging(place: Place) -> Facts:
    """The copy that a checkpoint is written from is of the moment, in pinned memory, and at the speed of the bus."""
    size = (1024 if place.cuda else 16) * MIB
    weights = torch.arange(size // 4, dtype=torch.float32, device=place.device)
    staged = Staging()
    state = {"model": {"weights": weights}, "step": 3}
    seconds = []
    for number in range(3):
        began = time.monotonic()
        copied = staged.copy(state)
        seconds.append(time.monotonic() - began)
        at_the_time = weights.clone()
        weights += 1.0  # training goes on
        kept = copied["model"]["weights"]
        assert kept.device.type == "cpu"
        assert torch.equal(kept, at_the_time.cpu()), f"copy {number} has what came later"
        assert kept.is_pinned() or not place.cuda, "it is not in pinned memory"
        assert copied["step"] == 3
    return {
        "MiB": size // MIB,
        "first copy, s": round(seconds[0], 3),
        "each further one, s": round(min(seconds[1:]), 4),
        "GB/s": round(size / min(seconds[1:]) / 1e9, 2),
    }


def loss_reading(place: Place) -> Facts:
    """A step's loss is shown without waiting for the GPU; no `session.step()` and no Parking waits for it."""
    reading = LossReading()
    x = torch.randn(2048, 2048, device=place.device)
    for _ in range(100 if place.cuda else 1):
        x = (x @ x).clamp_(-1, 1)
    began = time.monotonic()
    reading.put(x.mean())
    took_s = time.monotonic() - began
    at_once = reading.value
    if place.cuda:
        torch.cuda.synchronize()
    assert reading.value is not None
    model = nn.Linear(8, 1).to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = Session({"model": model, "optimizer": optimizer}, checkpoints=None, environ={})
    data = torch.randn(64, 8)
    for batch in session.loader(data, global_batch=8, epochs=2):
        here = batch.to(place.device)
        with _waiting_is_an_error(place):
            session.backward(model(here).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    parking = Parking(environ={})
    for step in range(1, 5):
        with _waiting_is_an_error(place):
            parking.step_done(step, loss=x.mean(), samples=8 * step)
    return {
        "put() took ms": round(1000 * took_s, 3),
        "known at once": "yes" if at_once is not None else "no, after the GPU was done",
        "steps under torch's check for synchronisation": session.steps_done if place.cuda else "none: that is CUDA's",
    }


@contextlib.contextmanager
def _waiting_is_an_error(place: Place) -> Iterator[None]:
    """torch raises where the CPU would wait for the GPU."""
    if not place.cuda:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def mixed_precision(place: Place) -> Facts:
    """bf16 and fp16 with a GradScaler train, and go on from a checkpoint with the scale that they had."""
    found: Facts = {}
    for name, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        folder = place.folder / name
        first, last, scale = _train_mixed(place, kind, folder, 1)
        assert last < first, f"{name}: the loss went from {first:g} to {last:g}"
        again, _, restored = _train_mixed(place, kind, folder, 2)
        assert restored[0] == scale[1], f"{name}: the scale was {scale[1]:g}, and is restored as {restored[0]:g}"
        assert again < first, f"{name}: it began anew"
        found[name] = f"loss {first:.3f} to {last:.3f}, restored at {again:.3f}, scale {scale[1]:g}"
    return found


def _train_mixed(
    place: Place, kind: torch.dtype, folder: Path, epochs: int
) -> tuple[float, float, tuple[float, float]]:
    """The first loss and the last one; the scale at the beginning and at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(place.device, init_scale=1024.0, growth_interval=10, enabled=kind is torch.float16)
    session = Session(
        {"model": model, "optimizer": optimizer, "scaler": scaler}, checkpoints=folder, every_steps=1000, environ={}
    )
    scale = scaler.get_scale()
    data = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    losses = []
    for batch in session.loader(data, global_batch=16, epochs=epochs):
        x = batch.to(place.device)
        with torch.autocast(place.device, kind):
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        session.backward(loss, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss))
        session.step()
    session.finish()
    return losses[0], losses[-1], (scale, scaler.get_scale())


def compiled(place: Place) -> Facts:
    """A compiled model computes what the model computes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(place.device)
    x = torch.randn(32, 16, device=place.device)
    expected = model(x)
    began = time.monotonic()
    fast = torch.compile(model)
    furthest = float((fast(x) - expected).abs().max())
    assert furthest < 1e-4, f"it differs by {furthest:g}"
    return {"first call, s": round(time.monotonic() - began, 1), "largest difference": f"{furthest:.1e}"}


_IMAGES = ("--fake-data", "64", "--epochs", "1", "--warmup", "2", "--log-every", "1", "--workers", "2")
ON_GPUS = {
    "char_transformer.py": ("--steps", "20", "--log-every", "1", "--text-mb", "0.2"),
    "language_model.py": (
        *("--steps", "10", "--log-every", "1", "--global-batch", "16", "--micro-batch", "8", "--warmup", "2"),
        *("--validate-every", "10", "--validate-batches", "2", "--amp", "bf16"),
    ),
    "imagenet.py resnet50": (*_IMAGES, "--global-batch", "16", "--amp", "bf16", "--channels-last"),
    "imagenet.py resnet50 compiled": (*_IMAGES, "--global-batch", "16", "--amp", "fp16", "--compile"),
    "imagenet.py efficientnet_b7": (
        *(*_IMAGES, "--global-batch", "8", "--micro-batch", "8", "--image-size", "224"),
        *("--model", "efficientnet_b7", "--amp", "bf16"),
    ),
}
ON_CPUS = {
    "char_transformer.py": ("--steps", "3", "--log-every", "1", "--text-mb", "0.1"),
    "language_model.py": (
        *("--model", "tiny", "--steps", "3", "--log-every", "1", "--global-batch", "8", "--micro-batch", "8"),
        *("--validate-every", "3", "--validate-batches", "1", "--workers", "0"),
    ),
    "imagenet.py tiny": ("--model", "tiny", *_IMAGES, "--global-batch", "16", "--amp", "bf16", "--channels-last"),
}


def examples(place: Place) -> Facts:
    """The examples train for a few steps, in one process per GPU."""
    found: Facts = {}
    for name, arguments in (ON_GPUS if place.cuda else ON_CPUS).items():
        script = str(EXAMPLES / name.split()[0])
        command = [sys.executable, script]
        if place.cuda:
            several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(place.gpus)]
            command = [sys.executable, *several, script]
        folder = place.folder / re.sub(r"\W", "-", name)
        began = time.monotonic()
        said = ran([*command, *arguments, "--checkpoints", str(folder)], EXAMPLE_S, _environ())
        losses = re.findall(r"^step (\d+) .*loss ([\d.]+|nan|inf)", said, re.MULTILINE)
        assert losses, said[-2000:]
        assert all(value not in {"nan", "inf"} for _, value in losses), losses
        steps, last = losses[-1]
        found[name] = f"{steps} steps in {time.monotonic() - began:.0f} s, last loss {last}"
    return found


def _environ() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT / 'trainer'}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "2"}
