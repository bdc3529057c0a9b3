"""A small character-level transformer, trained on the source text of Python's own standard library.

Real data that every machine has, and a loss that falls within a minute on two CPU cores. It runs as it is:

    python char_transformer.py                               one process
    torchrun --nproc-per-node 2 char_transformer.py          several
    spotsupctl submit ... -- char_transformer.py             on spot machines that come and go

What makes it survive them are the lines marked with (1) to (5).
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # its name everywhere
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library_text(limit: int) -> bytes:
    """Return the first `limit` bytes of the standard library's .py files: folder by folder, each in the order of its
    names."""
    text = bytearray()
    for folder, subfolders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = sorted(set(subfolders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.endswith(".py"):
                text += (Path(folder) / name).read_bytes()
            if len(text) >= limit:
                return bytes(text[:limit])
    return bytes(text)


class Windows:
    """The text in windows of `length` characters; each is one sample, with the next character as its target."""

    def __init__(self, text: bytes, length: int) -> None:
        characters = sorted(set(text))
        self.vocabulary = len(characters)
        codes = bytes(characters.index(byte) if byte in characters else 0 for byte in range(256))
        self._codes = torch.frombuffer(bytearray(text.translate(codes)), dtype=torch.uint8)
        self._length = length

    def __len__(self) -> int:
        return (len(self._codes) - 1) // self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._length
        return self._codes[start : start + self._length + 1].long()


class CharTransformer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Decoder-only: (batch, length) characters -> (batch, length, vocabulary) scores of the next one."""

    def __init__(self, vocabulary: int, length: int, dim: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, dim)
        self.places = nn.Parameter(torch.zeros(length, dim))
        block = nn.TransformerEncoderLayer(
            dim, max(1, dim // 32), 4 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.scores = nn.Linear(dim, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        length = characters.shape[1]
        ahead = torch.triu(torch.ones(length, length, dtype=torch.bool, device=characters.device), diagonal=1)
        hidden = self.characters(characters) + self.places[:length]
        return self.scores(self.norm(self.blocks(hidden, mask=ahead, is_causal=True)))


def loss_of(model: nn.Module, windows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Mean cross entropy, in nats per character."""
    windows = windows.to(device)
    scores = model(windows[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def train(options: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(options.seed)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    whole, piece = options.global_batch, options.micro_batch
    windows = Windows(standard_library_text(int(options.text_mb * 1e6)), options.seq)
    model: nn.Module = CharTransformer(windows.vocabulary, options.seq, options.dim, options.layers).to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    done = {"steps": 0}
    state = {"model": model, "optimizer": optimizer, "done": done}

    session = Session(state, checkpoints=options.checkpoints, every_steps=options.checkpoint_every)  # (1) resumes
    loader = session.loader(windows, global_batch=whole, micro_batch=piece, epochs=options.epochs)  # (2) what is left
    started = time.monotonic()
    for batch in loader:
        if done["steps"] >= options.steps:
            break
        loss = loss_of(model, batch, device)
        session.backward(loss)  # (3) of the mean over the global batch
        if session.accumulating:
            continue
        optimizer.step()
        optimizer.zero_grad()
        done["steps"] += 1
        # not part of training: makes a demonstration slow enough to watch, on any machine
        time.sleep(max(0.0, options.step_time - (time.monotonic() - started)))
        session.step()  # (4) one call per step
        if rank == 0 and (done["steps"] % options.log_every == 0 or done["steps"] == options.steps):
            print(f"step {done['steps']} restart {restart} world {world} loss {loss.item():.2f}", flush=True)
        started = time.monotonic()
    session.finish()  # (5) the last checkpoint


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
    add("--steps", type=int, default=200, help="stop after so many steps, over all restarts")
    add("--epochs", type=int, default=1000, help="or after so many epochs")
    add("--global-batch", type=int, default=48, help="samples of one step, over all processes")
    add("--micro-batch", type=int, default=64, help="samples of one forward pass of one process, at most")
    add("--seq", type=int, default=64, help="characters of one sample")
    add("--dim", type=int, default=64)
    add("--layers", type=int, default=2)
    add("--lr", type=float, default=6e-3)
    add("--seed", type=int, default=0)
    add("--text-mb", type=float, default=2.0, help="use the first so many MB of the text")
    add("--checkpoints", help="a folder, or s3://…, gs://…, abfs://…; default: the job's, else none")
    add("--checkpoint-every", type=int, default=50, metavar="STEPS")
    add("--step-time", type=float, default=0.0, metavar="S", help="sleep until a step took so long, to be watchable")
    add("--log-every", type=int, default=20, metavar="STEPS")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options: Any = parse(arguments)
    with processes() as device:
        train(options, device)


if __name__ == "__main__":
    main()
