"""ResNet-50 or EfficientNet-B7 on a folder of images with one subfolder per class, as ImageNet comes.

    python imagenet.py --fake-data --model tiny                              a smoke test: no files needed
    torchrun --nproc-per-node 8 imagenet.py --data /mnt/imagenet/train       one machine
    spotsupctl submit ... -- imagenet.py --data /mnt/imagenet/train          on spot machines that come and go

Plain DDP; what makes it survive its machines are the lines marked with (1) to (5).
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # its name everywhere
from image_models import MODELS  # type: ignore[import-not-found]  # beside this file, where Python looks for it
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SUFFIXES = {".jpeg", ".jpg", ".png", ".webp", ".bmp"}
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's channels, of 255
AMP = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FakeImages:
    """`length` random images, the same on every machine: sample i is made from i alone."""

    def __init__(self, length: int, size: int, classes: int = 1000) -> None:
        self.classes = classes
        self._length, self._size = length, size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        chance = torch.Generator().manual_seed(index)
        label = int(torch.randint(self.classes, (), generator=chance))
        return torch.randint(256, (3, self._size, self._size), dtype=torch.uint8, generator=chance), label


class ImageFolder:
    """The images below `root`/<class>/, cropped, scaled and flipped at random: (3, size, size) uint8, and the class.

    Classes and files are in the order of their names, so that every machine has the same order. Raises SystemExit
    where there are no images, or nothing to read them with.
    """

    def __init__(self, root: Path, size: int) -> None:
        try:
            _pil()
        except ImportError:
            raise SystemExit("reading images needs Pillow: pip install pillow (or use --fake-data)") from None
        if not root.is_dir():
            raise SystemExit(f"--data {root} is not a folder")
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        self.classes = len(folders)
        self._files = [
            (path, label)
            for label, folder in enumerate(folders)
            for path in sorted(folder.rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        if not self._files:
            raise SystemExit(f"--data {root} has no images in subfolders, one per class")
        self._size = size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self._files[index]
        with _pil().open(path) as image:
            box = random_crop(*image.size)
            scaled = image.convert("RGB").resize((self._size, self._size), _pil().Resampling.BILINEAR, box=box)
        pixels = torch.frombuffer(bytearray(scaled.tobytes()), dtype=torch.uint8)
        pixels = pixels.view(self._size, self._size, 3).permute(2, 0, 1)
        return (pixels.flip(2) if torch.rand(()) < 0.5 else pixels).contiguous(), label


def _pil() -> Any:
    return importlib.import_module("PIL.Image")


def random_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of 8 to 100 % of the area, with an aspect ratio of 3/4 to 4/3 where that fits."""
    area = width * height * float(torch.empty(()).uniform_(0.08, 1.0))
    ratio = math.exp(float(torch.empty(()).uniform_(math.log(3 / 4), math.log(4 / 3))))
    crop_width = max(1, min(width, round(math.sqrt(area * ratio))))
    crop_height = max(1, min(height, round(math.sqrt(area / ratio))))
    left = int(torch.randint(width - crop_width + 1, ()))
    top = int(torch.randint(height - crop_height + 1, ()))
    return left, top, left + crop_width, top + crop_height


class Curves:
    """TensorBoard's, written by rank 0. What an interrupted run had written after `first_step` is taken back."""

    def __init__(self, folder: Path | None, rank: int, first_step: int) -> None:
        self._writer: Any = None
        if folder is None or rank != 0:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("tensorboard is not installed: no curves are written", flush=True)
            return
        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def add(self, step: int, values: dict[str, float]) -> None:
        """On disk when it returns: this process may be ended any time."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()


def learning_rate(step: int, warmup: int, total: int, peak: float) -> float:
    """Of step 1, 2, …: up in a line over `warmup` steps, then down along a cosine. A function of the step alone."""
    if step <= warmup:
        return peak * step / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup - 1) / (total - warmup))) / 2


class Trainer:
    """Model, optimizer and one step of them, on this device."""

    def __init__(self, model: nn.Module, options: argparse.Namespace, device: torch.device) -> None:
        self._options, self._device = options, device
        self._layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.model = model.to(device, memory_format=self._layout)
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.model, [device] if device.type == "cuda" else None)
        if options.compile:
            self.model.compile()  # in place: still DDP, with the same names in a checkpoint
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), options.lr, momentum=0.9, nesterov=True, weight_decay=options.weight_decay
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.amp == "fp16")
        self._mean, self._std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))

    def step(self, lr: float) -> None:
        """The optimizer's step, with the gradients that there are."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = images.to(self._device, non_blocking=True).float()
        images = ((images - self._mean) / self._std).contiguous(memory_format=self._layout)
        labels = labels.to(self._device, non_blocking=True)
        amp = self._options.amp
        with torch.autocast(self._device.type, AMP[amp] if amp != "none" else None, enabled=amp != "none"):
            return F.cross_entropy(self.model(images), labels, label_smoothing=0.1)


def train(options: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(options.seed)
    make_model, size = MODELS[options.model]
    size = options.image_size or size
    data = FakeImages(options.fake_data, size) if options.fake_data else ImageFolder(options.data, size)
    trainer = Trainer(make_model(data.classes), options, device)
    total = options.epochs * (len(data) // options.global_batch)

    session = Session(  # (1) resumes from the newest checkpoint
        {"model": trainer.model, "optimizer": trainer.optimizer, "scaler": trainer.scaler},
        checkpoints=options.checkpoints,
        every_steps=options.checkpoint_every,
    )
    batches = session.loader(  # (2) this rank's share of what is left
        data,
        global_batch=options.global_batch,
        micro_batch=options.micro_batch,
        epochs=options.epochs,
        seed=options.seed,
        drop_last=True,  # batch normalisation should see no share of a sample or two
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
    )
    curves = Curves(options.tensorboard, session.rank, session.steps_done + 1)
    started = time.monotonic()
    for images, labels in batches:
        session.backward(trainer.loss(images, labels), scaler=trainer.scaler)  # (3) of the mean over the global batch
        if session.accumulating:
            continue
        step = session.steps_done + 1
        lr = learning_rate(step, options.warmup, total, options.lr)
        trainer.step(lr)
        if session.rank == 0 and (step % options.log_every == 0 or step == total):
            loss = float(session.loss)
            print(f"step {step} epoch {session.epoch} world {session.world} lr {lr:.6f} loss {loss:.6f}", flush=True)
            curves.add(step, {"loss": loss, "lr": lr, "processes": session.world})
        # not part of training: makes a demonstration slow enough to watch, on any machine
        time.sleep(max(0.0, options.step_time - (time.monotonic() - started)))
        session.step()  # (4) one call per step
        started = time.monotonic()
    session.finish()  # (5) the last checkpoint


@contextmanager
def processes() -> Iterator[torch.device]:
    """The process group, if this is one of several processes; and the device of this one."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # several processes share the cores
    if "RANK" not in os.environ:
        yield device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    yield device
    dist.destroy_process_group()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", type=Path, metavar="DIR", help="has a subfolder of images per class")
    data.add_argument("--fake-data", type=int, nargs="?", const=1280, metavar="N", help="N random images instead")
    add("--model", choices=sorted(MODELS), default="resnet50")
    add("--image-size", type=int, metavar="PIXELS", help="default: what the model was designed for")
    add("--epochs", type=int, default=90)
    add("--global-batch", type=int, default=256, help="samples of one step, over all processes")
    add("--micro-batch", type=int, default=64, help="samples of one forward pass of one process, at most")
    add("--lr", type=float, default=0.1, help="at its peak; for this global batch, however many processes there are")
    add("--warmup", type=int, default=500, metavar="STEPS")
    add("--weight-decay", type=float, default=5e-5)
    add("--seed", type=int, default=0)
    add("--amp", choices=sorted(AMP), default="none", help="mixed precision; fp16 with a GradScaler")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--channels-last", action="store_true", help="the memory layout that tensor cores like")
    add("--workers", type=int, default=4, metavar="N", help="data loading processes per process")
    add("--checkpoints", help="a folder, or s3://…, gs://…, abfs://…; default: the job's, else none")
    add("--checkpoint-every", type=int, metavar="STEPS", help="default: every 60 s")
    add("--tensorboard", type=Path, metavar="DIR", help="write curves to a folder that all machines see")
    add("--step-time", type=float, default=0.0, metavar="S", help="sleep until a step took so long, to be watchable")
    add("--log-every", type=int, default=20, metavar="STEPS")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options: Any = parse(arguments)
    with processes() as device:
        train(options, device)


if __name__ == "__main__":
    main()
