"""The training program that every subject of `make bench-recovery` runs: one small all_reduce per step.

Each rank writes one JSON line per completed step (timeline.py reads them). It keeps its state by Session, as
spotsup's users do; or rank 0 writes a checkpoint every few steps, as torchrun's own examples do.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

WEIGHTS = 4096
DIR = "SPOTSUP_CHECKPOINT_DIR"


class Keeper(Protocol):
    """Counts steps and saves weights."""

    def begin(self) -> int:
        """Restore the newest checkpoint; how many steps are done."""

    def step(self, done: int) -> None:
        """`done` steps are complete."""


class SessionKeeper:
    """As a user of spotsup does it."""

    def __init__(self, model: Any, every_steps: int, folder: Path) -> None:
        self._model, self._every_steps, self._folder = model, every_steps, folder

    def begin(self) -> int:
        """See Keeper."""
        from spotsup_trainer.session import Session

        self._session = Session(
            {"model": self._model}, every_steps=self._every_steps, checkpoints=os.environ.get(DIR) or self._folder
        )
        return self._session.steps_done

    def step(self, done: int) -> None:
        """See Keeper. Does not come back where the node has to leave."""
        self._session.step()
        assert self._session.steps_done == done


class PlainKeeper:
    """As a torchrun user does it: rank 0 saves, all load, and rank 0 says from which step they continue."""

    def __init__(self, model: Any, every_steps: int, file: Path) -> None:
        self._model, self._every_steps, self._file = model, every_steps, file

    def begin(self) -> int:
        """See Keeper."""
        step = 0
        if self._file.exists():
            saved = torch.load(self._file, weights_only=True)
            self._model.load_state_dict(saved["model"])
            step = saved["step"]
        agreed = torch.tensor([step])
        dist.broadcast(agreed, src=0)
        return int(agreed.item())

    def step(self, done: int) -> None:
        """See Keeper."""
        if done % self._every_steps == 0 and dist.get_rank() == 0:
            temporary = self._file.with_suffix(".tmp")
            torch.save({"model": self._model.state_dict(), "step": done}, temporary)
            temporary.replace(self._file)


class Marks:
    """The file of this process. A line is whole or missing, for it is one write."""

    def __init__(self, folder: Path, node: str) -> None:
        # Stock torchrun has no name for a round: rank 0's clock identifies the processes that train together.
        name = torch.tensor([time.time_ns()])
        dist.broadcast(name, src=0)
        self._head = {
            "round": int(name.item()),
            "node": node,
            "rank": dist.get_rank(),
            "world": dist.get_world_size(),
        }
        self._file = (folder / f"{node}.{os.getpid()}.jsonl").open("ab", buffering=0)

    def completed(self, step: int) -> None:
        """Write down that `step` is complete, counted from 1."""
        self._file.write(json.dumps({"t": time.time(), "step": step, **self._head}).encode() + b"\n")


def train(options: argparse.Namespace) -> None:
    """Train for `options.steps` steps, or until the process is ended."""
    torch.manual_seed(0)  # a Session refuses ranks with other weights
    model: Any = torch.nn.Linear(WEIGHTS, 1)
    kind = SessionKeeper if options.session else PlainKeeper
    keeper: Keeper = kind(model, options.checkpoint_every, options.checkpoint)
    begun = done = keeper.begin()
    marks = Marks(options.marks, os.environ.get("SPOTSUP_NODE_ID") or os.environ["BENCH_NODE"])
    while done - begun < options.steps:
        time.sleep(options.step_time)
        gradient = torch.full((1, WEIGHTS), 1e-6)
        dist.all_reduce(gradient)
        with torch.no_grad():
            model.weight.sub_(gradient)
        done += 1
        marks.completed(done)
        keeper.step(done)


def main() -> None:
    """Train with the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--marks", type=Path, required=True, help="folder for the lines per step; must exist")
    parser.add_argument("--step-time", type=float, default=0.02, metavar="S")
    parser.add_argument("--steps", type=int, default=10**9, help="of this process, before it ends by itself")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--session", action="store_true", help="keep state by spotsup's Session")
    parser.add_argument("--checkpoint", type=Path, help="the file, with --session the folder outside a spotsup job")
    options = parser.parse_args()
    torch.set_num_threads(1)  # all nodes share the cores of one machine
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
