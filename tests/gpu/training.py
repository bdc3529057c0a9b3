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
from torch import nn

from tests.gpu.place import ROOT, Facts, NotSeenError, Place, TooLongError, noted, ran

EXAMPLES = ROOT / "trainer" / "examples"
EXAMPLE_S = 15.0  # none is begun with less


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
    return found if place.cuda else {**found, "left out": "tensor cores: a CPU computes"}


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


_IMAGES = ("--fake-data", "64", "--epochs", "1", "--warmup", "2", "--log-every", "1", "--workers", "2")
ON_GPUS = {
    "language_model.py": (
        *("--steps", "10", "--log-every", "1", "--global-batch", "16", "--micro-batch", "8", "--warmup", "2"),
        *("--validate-every", "10", "--validate-batches", "2", "--amp", "bf16"),
    ),
    "imagenet.py resnet50": (*_IMAGES, "--global-batch", "16", "--amp", "bf16", "--channels-last"),
    "char_transformer.py": ("--steps", "20", "--log-every", "1", "--text-mb", "0.2"),
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
    for name, arguments in (ON_GPUS if place.cuda else ON_CPUS).items():
        if place.left_s() < EXAMPLE_S:
            place.note(name, "not run: no time left")
            continue
        script = str(EXAMPLES / name.split()[0])
        command = [sys.executable, script]
        if place.cuda:
            several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(place.gpus)]
            command = [sys.executable, *several, script]
        folder = place.folder / re.sub(r"\W", "-", name)
        began = time.monotonic()
        try:
            said = ran([*command, *arguments, "--checkpoints", str(folder)], place.left_s(), _environ())
        except TooLongError as error:
            place.note(name, f"not seen: {error}")
            continue
        losses = re.findall(r"^step (\d+) .*loss ([\d.]+|nan|inf)", said, re.MULTILINE)
        assert losses, said[-2000:]
        assert all(value not in {"nan", "inf"} for _, value in losses), losses
        steps, last = losses[-1]
        place.note(name, f"{steps} steps in {time.monotonic() - began:.0f} s, last loss {last}")
    if not any(" steps in " in str(each) for each in noted(place.folder).values()):
        raise NotSeenError("no example ended in the time that was left")
    return {} if place.cuda else {"left out": "the large models, fp16, torch.compile, one process per GPU"}


def _environ() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT / 'trainer'}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "2"}
