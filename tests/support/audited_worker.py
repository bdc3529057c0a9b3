"""A training program whose weights count the samples: one that is repeated or missed shows at the end.

Each rank writes one audit line per completed step (spotsup_trainer.session.audit reads them). The job ends after the
step that the file `--until` contains, once that file exists.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, GLOBAL_BATCH, FEATURES = 1003, 16, 8  # coprime, also to most world sizes: shares are always uneven
STEPS_PER_EPOCH = -(-SAMPLES // GLOBAL_BATCH)
ENDLESS = 10**9
LEARNING_RATE = 0.01


class Samples:
    """Sample i: its number, a vector made from it, and its target."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1.0, 1.0, FEATURES, dtype=torch.float64) * (1 + index % 7) + index / SAMPLES
        return index, x, x.sin().sum().unsqueeze(0)


class Model(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A linear model of the samples, and one weight per sample that grows whenever the sample is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(FEATURES, 1, dtype=torch.float64)
        self.seen = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, index: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples."""
        return nn.functional.mse_loss(self.line(x), y) - self.seen[index].mean()


def train(options: argparse.Namespace) -> None:
    """Train until the step that the file contains."""
    torch.manual_seed(0)
    model: Any = Model()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    audit: Any = None
    with Session({"model": model, "optimizer": optimizer}, every_steps=options.every) as session:
        head = {"round": session.round, "rank": session.rank, "world": session.world}
        batches = iter(session.loader(Samples(), global_batch=GLOBAL_BATCH, epochs=ENDLESS))
        while session.steps_done < _last_step(options.until):
            index, x, y = next(batches)
            loss = model(index, x, y)
            session.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            audit = audit or _audit_file(options.audit, session.round)
            line: dict[str, Any] = {"t": time.time(), **head, "step": session.steps_done + 1, "epoch": session.epoch}
            line |= {"indices": session.indices, "loss": loss.item()}
            audit.write(json.dumps(line).encode() + b"\n")
            time.sleep(options.step_time)
            session.step(loss)
    if session.rank == 0:
        torch.save([parameter.detach() for parameter in model.parameters()], options.weights)


def _last_step(file: Path) -> int:
    return int(file.read_text()) if file.exists() else ENDLESS


def _audit_file(folder: Path, number: int) -> Any:
    """One file per process: a process that is killed while it writes spoils no other's line."""
    own = folder / str(number)
    own.mkdir(parents=True, exist_ok=True)
    return (own / f"{os.environ.get('SPOTSUP_NODE_ID', 'alone')}.{os.getpid()}.jsonl").open("ab", buffering=0)


def main() -> None:
    """Train, alone or as a member of a round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--audit", type=Path, required=True, metavar="DIR")
    parser.add_argument("--until", type=Path, required=True, metavar="FILE")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S")
    parser.add_argument("--every", type=int, default=ENDLESS, metavar="STEPS", help="between two checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(1)  # all nodes share the cores of one machine
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    train(options)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
