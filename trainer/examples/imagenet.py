"""ResNet-50 or EfficientNet-B7 on a folder of images with one subfolder per class, as ImageNet comes.

    python imagenet.py --fake-data --model tiny                              a smoke test: no files needed
    torchrun --nproc-per-node 8 imagenet.py --data /mnt/imagenet/train       one machine
    spotsupctl submit ... -- imagenet.py --data /mnt/imagenet/train          on spot machines that come and go

With --val it measures the accuracy after each epoch, and --best keeps the best model. copy_bucket.py fills the folders.
Plain DDP; what makes it survive its machines are the lines marked with (1) to (6).
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # its name everywhere
from image_index import images_of  # type: ignore[import-not-found]  # beside this file, where Python looks for it
from image_models import MODELS  # type: ignore[import-not-found]  # beside this file, too
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

SUFFIXES = {".jpeg", ".jpg", ".png", ".webp", ".bmp"}
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's channels, of 255
AMP = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FakeImages:
    """`length` random images, the same on every machine: sample i is made from i alone."""

    def __init__(self, length: int, size: int, classes: int = 1000) -> None:
        self.classes = [str(number) for number in range(classes)]
        self._length, self._size = length, size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        chance = torch.Generator().manual_seed(index)
        label = int(torch.randint(len(self.classes), (), generator=chance))
        return torch.randint(256, (3, self._size, self._size), dtype=torch.uint8, generator=chance), label


class ImageFolder:
    """The images below `root`/<class>/: (3, size, size) uint8, and the class. For training they are cropped, scaled and
    flipped at random; `whole` ones are the middle of the image, 7/8 of its shorter edge.

    Classes and files are in the order of their names, so that every machine has the same order. `index`: see
    image_index.py. Raises SystemExit where there are no images, or nothing to read them with.
    """

    def __init__(self, root: Path, size: int, *, whole: bool = False, index: Path | None = None) -> None:
        try:
            _pil()
        except ImportError:
            raise SystemExit("reading images needs Pillow: pip install pillow (or use --fake-data)") from None
        if not root.is_dir():
            raise SystemExit(f"{root} is not a folder")
        images = images_of(root, SUFFIXES, index)
        self.classes = list(images)
        self._root = root
        self._files = [
            (f"{name}/{path}", label) for label, (name, paths) in enumerate(images.items()) for path in paths
        ]
        if not self._files:
            raise SystemExit(f"{root} has no images in subfolders, one per class")
        self._size, self._whole = size, whole

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self._files[index]
        with _pil().open(self._root / path) as image:
            box = middle_crop(*image.size) if self._whole else random_crop(*image.size)
            scaled = image.convert("RGB").resize((self._size, self._size), _pil().Resampling.BILINEAR, box=box)
        pixels = torch.frombuffer(bytearray(scaled.tobytes()), dtype=torch.uint8)
        pixels = pixels.view(self._size, self._size, 3).permute(2, 0, 1)
        flipped = not self._whole and torch.rand(()) < 0.5
        return (pixels.flip(2) if flipped else pixels).contiguous(), label


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


def middle_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the square in the middle: 7/8 of the shorter edge, as 224 of 256."""
    edge = max(1, min(width, height) * 7 // 8)
    left, top = (width - edge) // 2, (height - edge) // 2
    return left, top, left + edge, top + edge


def datasets(options: argparse.Namespace, size: int) -> tuple[Any, Any]:
    """Return the images to train on, and those to measure the accuracy on, or None. Raises SystemExit if they do not
    fit."""
    if options.fake_data:
        return FakeImages(options.fake_data, size), FakeImages(options.fake_val, size) if options.fake_val else None
    data = ImageFolder(options.data, size, index=options.index)
    held_out = ImageFolder(options.val, size, whole=True, index=options.index) if options.val else None
    if held_out and held_out.classes != data.classes:
        raise SystemExit(
            f"--val {options.val} has other classes than --data: rearrange it (copy_bucket.py --val-classes)"
        )
    return data, held_out


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
    """Return the rate of step 1, 2, …: up in a line over `warmup` steps, then down along a cosine. A function of the
    step alone."""
    if step <= warmup:
        return peak * step / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup - 1) / max(1, total - warmup))) / 2


class Trainer:
    """Model, optimizer and one step of them, on this device."""

    def __init__(self, model: nn.Module, options: argparse.Namespace, device: torch.device, steps: int) -> None:
        self._options, self.device = options, device
        self._layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.model = model.to(device, memory_format=self._layout)
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.model, [device] if device.type == "cuda" else None)
        if options.compile:
            self.model.compile()  # in place: still DDP, with the same names in a checkpoint
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), options.lr, momentum=0.9, nesterov=True, weight_decay=options.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda done: learning_rate(done + 1, options.warmup, steps, 1.0)
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.amp == "fp16")
        self._mean, self._std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))

    def step(self) -> None:
        """Take the optimizer's step, with the gradients that there are."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        with warnings.catch_warnings():  # of a step that the scaler left out, as the first ones of fp16
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            self.schedule.step()

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean over these images."""
        with self._autocast():
            return F.cross_entropy(self._scores(images, self.model), labels.to(self.device), label_smoothing=0.1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def right(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return how many of these images are classified as labelled."""
        with self._autocast():
            # Not DDP's own forward: it synchronises buffers, and ranks have different numbers of batches here.
            scores = self._scores(images, getattr(self.model, "module", self.model))
            return (scores.argmax(1) == labels.to(self.device)).sum()

    def _scores(self, images: torch.Tensor, model: nn.Module) -> torch.Tensor:
        images = images.to(self.device, non_blocking=True).float()
        return model(((images - self._mean) / self._std).contiguous(memory_format=self._layout))

    def _autocast(self) -> Any:
        amp = self._options.amp
        return torch.autocast(self.device.type, AMP[amp] if amp != "none" else None, enabled=amp != "none")


def accuracy(trainer: Trainer, data: Any, options: argparse.Namespace, between: Callable[[], object]) -> float:
    """Return the share of all images that is classified as labelled. Every rank looks at its part, and calls `between`
    as often as all others: a place where training may be interrupted."""
    rank, world = place()
    part = Subset(data, range(rank, len(data), world))
    loader = iter(DataLoader(part, options.micro_batch, num_workers=options.workers))
    right = torch.zeros((), dtype=torch.int64, device=trainer.device)
    trainer.model.eval()
    for _ in range(math.ceil(math.ceil(len(data) / world) / options.micro_batch)):
        if (batch := next(loader, None)) is not None:
            right += trainer.right(*batch)
        between()
    trainer.model.train()
    if world > 1:
        dist.all_reduce(right)
    return int(right) / len(data)


def keep_best(folder: Path, model: nn.Module, best: dict[str, Any]) -> None:
    """Write the model and how good it is, whole or not at all: this process may be ended any time."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".best.{os.getpid()}"
    torch.save({"model": getattr(model, "module", model).state_dict(), **best}, part)
    part.replace(folder / "best.pt")


def place() -> tuple[int, int]:
    """This process among all."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def train(options: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(options.seed)
    rank, world = place()
    make_model, size = MODELS[options.model]
    data, held_out = datasets(options, options.image_size or size)
    per_epoch = max(1, len(data) // options.global_batch)
    trainer = Trainer(make_model(len(data.classes)), options, device, options.epochs * per_epoch)
    whole, piece = options.global_batch, options.micro_batch
    # Batch normalisation should see no share of a sample or two, so the rest of an epoch is left out.
    loading = {"drop_last": True, "num_workers": options.workers, "pin_memory": device.type == "cuda"}
    best: dict[str, Any] = {"accuracy": -1.0, "epoch": 0, "measured": 0}
    state: dict[str, Any] = {"model": trainer.model, "optimizer": trainer.optimizer, "best": best}
    state |= {"scaler": trainer.scaler, "schedule": trainer.schedule}

    session = Session(state, checkpoints=options.checkpoints, every_steps=options.checkpoint_every)  # (1) resumes
    loader = session.loader(data, global_batch=whole, micro_batch=piece, epochs=options.epochs, **loading)  # (2)
    curves = Curves(options.tensorboard, rank, trainer.schedule.last_epoch + 1)

    def measure() -> None:
        """Once for each epoch that is complete: after its last step, or when training goes on after that."""
        epochs = trainer.schedule.last_epoch // per_epoch
        if held_out is None or epochs <= best["measured"]:
            return
        found = accuracy(trainer, held_out, options, session.checkpoint_point)  # (3) may be interrupted there
        best["measured"] = epochs
        if rank == 0:
            print(f"epoch {epochs} accuracy {found:.4f} best {max(found, best['accuracy']):.4f}", flush=True)
            curves.add(trainer.schedule.last_epoch, {"accuracy": found})
        if found > best["accuracy"]:
            best.update(accuracy=found, epoch=epochs)
            if options.best and rank == 0:
                keep_best(options.best, trainer.model, best)

    measure()
    for images, labels in loader:
        loss = trainer.loss(images, labels)
        session.backward(loss, scaler=trainer.scaler)  # (4) of the mean over the global batch
        if session.accumulating:
            continue
        lr = trainer.schedule.get_last_lr()[0]
        trainer.step()
        step = trainer.schedule.last_epoch
        if rank == 0 and (step % options.log_every == 0 or step == options.epochs * per_epoch):
            shown = float(loss.detach())
            print(f"step {step} epoch {(step - 1) // per_epoch} world {world} lr {lr:.6f} loss {shown:.6f}", flush=True)
            curves.add(step, {"loss": shown, "lr": lr, "processes": world})
        # not part of training: makes a demonstration slow enough to watch, on any machine
        time.sleep(options.step_time)
        session.step()  # (5) one call per step
        measure()
    session.finish()  # (6) the last checkpoint


@contextmanager
def processes() -> Iterator[torch.device]:
    """Yield the process group, if this is one of several processes; and the device of this one."""
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
    add(
        "--val",
        type=Path,
        metavar="DIR",
        help="the same for measuring the accuracy after each epoch; default: it is not",
    )
    add("--index", type=Path, metavar="DIR", help="keep the lists of images there; default: beside them, or ~/.cache")
    add("--fake-val", type=int, default=0, metavar="N", help="with --fake-data: N random images for that")
    add("--best", type=Path, metavar="DIR", help="keep the model with the best accuracy there, as best.pt")
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
    add("--step-time", type=float, default=0.0, metavar="S", help="sleep so long in each step, to be watchable")
    add("--log-every", type=int, default=20, metavar="STEPS")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options: Any = parse(arguments)
    with processes() as device:
        train(options, device)


if __name__ == "__main__":
    main()
