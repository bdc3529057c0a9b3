"""A GPT of the size of nanoGPT's, 124 million parameters beside its output layer, sharded by FSDP2.

    python language_model.py --model tiny --steps 50                          one process, no files needed
    torchrun --nproc-per-node 8 language_model.py --data tokens.bin           one machine
    spotsupctl submit ... -- language_model.py --data /mnt/tokens.bin         on spot machines that come and go

`--data` is a file of tokens as nanoGPT's prepare.py writes it: unsigned numbers of 16 bits and nothing else. It is
mapped into memory, not read. What makes it survive its machines are the lines marked with (1) to (5).
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # its name everywhere
from char_transformer import standard_library_text  # type: ignore[import-not-found]  # beside this file
from spotsup_trainer.session import Session
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

BYTES_PER_TOKEN = 2


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    layers: int
    heads: int
    width: int
    context: int  # tokens that it sees at a time


SHAPES = {"gpt2": Shape(12, 12, 768, 1024), "small": Shape(6, 6, 384, 256), "tiny": Shape(2, 2, 32, 16)}


class Tokens:
    """Windows of `length` tokens and the one after each; every `held_out`-th window is for validation.

    Without a file, the bytes of Python's standard library are the tokens.
    """

    def __init__(self, path: Path | None, length: int, *, held_out: int = 20, validation: bool = False) -> None:
        if path is None:
            text = bytearray(standard_library_text(2_000_000))
            self._tokens = torch.frombuffer(text, dtype=torch.uint8)
            self.vocabulary = 256
        else:
            count = path.stat().st_size // BYTES_PER_TOKEN
            # 16 bits without a sign are read as ones with it: torch can do little with the former.
            self._tokens = torch.from_file(str(path), shared=False, size=count, dtype=torch.int16)
            self.vocabulary = 50304  # GPT-2's, to the next multiple of 64
        windows = range((len(self._tokens) - 1) // length)
        self._starts = [length * at for at in windows if (at % held_out == 0) == validation]
        self._length = length

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = self._starts[index]
        return self._tokens[start : start + self._length + 1].long() & 0xFFFF


class Block(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Attention and a network of two layers, each with a normalisation before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attended = nn.Linear(shape.width, shape.width)
        self.network = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.queries_keys_values(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.norm_2(x))


class GPT(nn.Module):  # type: ignore[misc]
    """GPT-2's shape; its embedding and its output layer have weights of their own."""

    def __init__(self, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.output = nn.Linear(shape.width, vocabulary, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                # What adds to the residual stream is smaller the more layers do: GPT-2's paper, section 2.3.
                last = name.endswith(("attended", "network.2"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * shape.layers) if last else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def mesh_of(device: torch.device, shards: int) -> DeviceMesh | None:
    """Over `shards` neighbours parameters are sharded, and over the groups of them replicated; None for one process.

    With one group per machine only gradients cross the network. Raises SystemExit where groups do not come out even.
    """
    if not dist.is_initialized():
        return None
    world = dist.get_world_size()
    shards = shards or world
    if world % shards:
        raise SystemExit(f"--shards {shards} does not divide {world} processes: see `multiple_of` of job files")
    return init_device_mesh(device.type, (world // shards, shards), mesh_dim_names=("replicas", "shards"))


def sharded(model: GPT, mesh: DeviceMesh | None, *, compiled: bool) -> GPT:
    """Return the model with each block, and the rest, as one unit of FSDP2."""
    for block in model.blocks if compiled else ():
        block.compile()
    if mesh is not None:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def loss_of(model: nn.Module, windows: torch.Tensor, device: torch.device, amp: torch.dtype | None) -> torch.Tensor:
    """Mean cross entropy, in nats per token."""
    windows = windows.to(device, non_blocking=True)
    with torch.autocast(device.type, amp, enabled=amp is not None):
        scores = model(windows[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()  # type: ignore[untyped-decorator]
def validate(model: nn.Module, data: Tokens, device: torch.device, options: argparse.Namespace) -> float:
    """Return the mean loss over the first `--validate-batches` batches, of which every rank takes its share.

    All ranks run equally often: FSDP gathers parameters in each pass.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    count = min(options.validate_batches * options.micro_batch, len(data))
    mine = [data[(rank + world * at) % count] for at in range(max(1, count // world))]
    model.eval()
    batches = torch.stack(mine).split(options.micro_batch)
    total = sum(float(loss_of(model, batch, device, options.amp)) * len(batch) for batch in batches) / len(mine)
    model.train()
    mean = torch.tensor(total / world, device=device)
    if world > 1:
        dist.all_reduce(mean)
    return float(mean)


def rate(step: int, warmup: int, total: int) -> float:
    """Return the factor of the learning rate: up in a line, then down along a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2


def train(options: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(options.seed)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    shape, whole, piece = SHAPES[options.model], options.global_batch, options.micro_batch
    data, held_out = Tokens(options.data, shape.context), Tokens(options.data, shape.context, validation=True)
    mesh = mesh_of(device, options.shards)
    model = sharded(GPT(data.vocabulary, shape).to(device), mesh, compiled=options.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, options.warmup, options.steps))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    loading = {"num_workers": options.workers, "pin_memory": device.type == "cuda"}

    session = Session(state, mesh=mesh, data_dims=mesh and mesh.mesh_dim_names, checkpoints=options.checkpoints)  # (1)
    loader = session.loader(data, global_batch=whole, micro_batch=piece, epochs=options.epochs, **loading)  # (2)
    for windows in loader:
        if schedule.last_epoch >= options.steps:
            break
        loss = loss_of(model, windows, device, options.amp)
        session.backward(loss)  # (3) of the mean over the global batch
        if session.accumulating:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        step = schedule.last_epoch
        if rank == 0 and step % options.log_every == 0:
            lr = schedule.get_last_lr()[0]
            print(f"step {step} world {world} lr {lr:.6f} loss {loss.item():.4f}", flush=True)
        if step % options.validate_every == 0 and (mean := validate(model, held_out, device, options)) and rank == 0:
            print(f"step {step} held out {mean:.4f}", flush=True)
        # not part of training: makes a demonstration slow enough to watch, on any machine
        time.sleep(options.step_time)
        session.step()  # (4) one call per step
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
    add("--data", type=Path, metavar="FILE", help="tokens, 16 bits each; default: the standard library's bytes")
    add("--model", choices=sorted(SHAPES), default="gpt2")
    add("--steps", type=int, default=20_000, help="stop after so many steps, over all restarts")
    add("--epochs", type=int, default=1000, help="or after so many epochs")
    add("--global-batch", type=int, default=480, help="windows of one step, over all processes")
    add("--micro-batch", type=int, default=12, help="windows of one forward pass of one process, at most")
    add("--lr", type=float, default=6e-4, help="at its peak")
    add("--warmup", type=int, default=700, metavar="STEPS")
    add("--seed", type=int, default=0)
    add("--amp", choices=["none", "bf16"], default="bf16" if torch.cuda.is_available() else "none")
    add("--shards", type=int, default=0, metavar="N", help="processes that share one copy; default: all of them")
    add("--compile", action="store_true", help="torch.compile each block")
    add("--workers", type=int, default=1, metavar="N", help="data loading processes per process")
    add("--checkpoints", help="a folder, or s3://…, gs://…, abfs://…; default: the job's, else none")
    add("--validate-every", type=int, default=500, metavar="STEPS")
    add("--validate-batches", type=int, default=20, metavar="N")
    add("--step-time", type=float, default=0.0, metavar="S", help="sleep so long in each step, to be watchable")
    add("--log-every", type=int, default=20, metavar="STEPS")
    options = parser.parse_args(arguments)
    options.amp = torch.bfloat16 if options.amp == "bf16" else None
    return options


def main(arguments: list[str] | None = None) -> None:
    options: Any = parse(arguments)
    with processes() as device:
        train(options, device)


if __name__ == "__main__":
    main()
