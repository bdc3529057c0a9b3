"""One rank of `make bench-checkpoint`: writes and reads the same state in every way, in turn.

A line of JSON per measurement goes to standard output; the slowest rank's counts (benchmarks/checkpoint/__main__.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import Position
from spotsup_trainer.session.peers import Peers
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from benchmarks.checkpoint.place import BUCKET

WIDTH, HEADS, VOCABULARY = 768, 12, 32768


class Subject(Protocol):
    """A way to save the state. All methods are collective."""

    name: str

    def save(self, step: int) -> tuple[float, float]:
        """Seconds until training may go on, and until the checkpoint is complete and on the disk."""

    def restore(self) -> None:
        """Load what was saved last into the state."""

    def close(self) -> None:
        """Give back memory."""


class State:
    """A transformer as plain DDP has it: complete on every rank."""

    def __init__(self, layers: int) -> None:
        blocks = (nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH) for _ in range(layers))
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()  # makes its state
        self.optimizer.zero_grad()

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that a checkpoint has."""
        yield from self.model.state_dict().values()
        for slots in self.optimizer.state.values():
            yield from slots.values()


class Spotsup:
    """What Session does for a periodic checkpoint."""

    name = "spotsup"

    def __init__(self, state: State, peers: Peers, folder: Path) -> None:
        self._state, self._peers, self._place = state, peers, self._place_in(folder)
        self._checkpoints: Checkpointer | None = self._open()
        self._checkpoints.restore()
        self._checkpoints.claim()

    def _place_in(self, folder: Path) -> Path | str:
        return folder / "spotsup"

    def _open(self) -> Checkpointer:
        state = {"model": self._state.model, "optimizer": self._state.optimizer}
        return Checkpointer(self._place, state, self._peers, 1)

    def save(self, step: int) -> tuple[float, float]:
        """See Subject."""
        assert self._checkpoints is not None
        began = time.perf_counter()
        self._checkpoints.begin(Position(step))
        blocked_s = time.perf_counter() - began
        self._checkpoints.settle()
        complete_s = time.perf_counter() - began
        if self._peers.rank == 0:
            assert self._checkpoints.step == step, "the checkpoint could not be written"
        return blocked_s, complete_s

    def restore(self) -> None:
        """See Subject."""
        assert self._open().restore() is not None

    def close(self) -> None:
        """See Subject."""
        self._checkpoints = None


class SpotsupObjects(Spotsup):
    """The same, to an object store."""

    name = "spotsup, S3"

    def _place_in(self, folder: Path) -> Path | str:
        return f"s3://{os.environ[BUCKET]}/{folder.name}"


class TorchSave:
    """Rank 0 writes one file under another name, syncs and renames it; the others wait."""

    name = "torch.save"

    def __init__(self, state: State, peers: Peers, folder: Path) -> None:
        self._state, self._peers, self._file = state, peers, folder / "torch.pt"

    def save(self, step: int) -> tuple[float, float]:
        """See Subject."""
        began = time.perf_counter()
        if self._peers.rank == 0:
            temporary = self._file.with_suffix(".tmp")
            model, optimizer = self._state.model, self._state.optimizer
            with temporary.open("wb") as file:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._file)
        self._peers.highest([0])
        took_s = time.perf_counter() - began
        return took_s, took_s

    def restore(self) -> None:
        """See Subject."""
        saved = torch.load(self._file, weights_only=True)
        self._state.model.load_state_dict(saved["model"])
        self._state.optimizer.load_state_dict(saved["optimizer"])

    def close(self) -> None:
        """See Subject."""


class DcpSave:
    """torch.distributed.checkpoint as its documentation shows it."""

    name = "dcp.save"

    def __init__(self, state: State, peers: Peers, folder: Path) -> None:
        self._state, self._peers, self._folder, self._newest = state, peers, folder / self.name, folder

    def save(self, step: int) -> tuple[float, float]:
        """See Subject."""
        old, self._newest = self._newest, self._folder / str(step)
        times = self._save(self._newest)
        self._peers.highest([0])
        if self._peers.rank == 0 and old.parent == self._folder:
            shutil.rmtree(old)
        return times

    def _save(self, path: Path) -> tuple[float, float]:
        began = time.perf_counter()
        dcp.save(self._captured(), checkpoint_id=path)
        took_s = time.perf_counter() - began
        return took_s, took_s

    def _captured(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._state.model, self._state.optimizer)
        return {"model": model, "optimizer": optimizer}

    def restore(self) -> None:
        """See Subject."""
        loaded = self._captured()
        dcp.load(loaded, checkpoint_id=self._newest)
        set_state_dict(
            self._state.model,
            self._state.optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )

    def close(self) -> None:
        """See Subject."""


class DcpAsyncSave(DcpSave):
    """The same in the background, by torch's own means and settings."""

    name = "dcp.async_save"

    def _save(self, path: Path) -> tuple[float, float]:
        began = time.perf_counter()
        future = dcp.async_save(self._captured(), checkpoint_id=path)
        blocked_s = time.perf_counter() - began
        future.result()
        return blocked_s, time.perf_counter() - began


def measure_floor(state: State, repeat: int) -> None:
    """The state copied to memory that is already allocated."""
    tensors = list(state.tensors())
    copies = [tensor.clone() for tensor in tensors]
    for _ in range(repeat):
        began = time.perf_counter()
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor)
        report("floor", "blocking", time.perf_counter() - began)


def report(subject: str, metric: str, seconds: float) -> None:
    """One measurement."""
    print(json.dumps({"subject": subject, "metric": metric, "seconds": seconds}), flush=True)


def measure(options: argparse.Namespace, peers: Peers) -> None:
    """Each repetition measures every subject in turn, so that a busy disk affects all of them."""
    torch.manual_seed(0)
    state = State(options.layers)
    kinds: list[Callable[..., Subject]] = [Spotsup, SpotsupObjects, TorchSave, DcpSave, DcpAsyncSave]
    subjects = [kind(state, peers, options.folder) for kind in kinds]
    for repetition in range(options.repeat + 1):
        for subject in subjects[repetition % len(subjects) :] + subjects[: repetition % len(subjects)]:
            gc.collect()
            peers.highest([0])
            blocked_s, complete_s = subject.save(repetition + 1)
            report(subject.name, "blocking" if repetition else "blocking, first call", blocked_s)
            if repetition:
                report(subject.name, "complete", complete_s)
    for subject in subjects:
        subject.close()
    peers.highest([0])
    measure_floor(state, options.repeat)
    for _ in range(options.repeat):
        for subject in subjects:
            gc.collect()
            peers.highest([0])
            began = time.perf_counter()
            subject.restore()
            report(subject.name, "restore", time.perf_counter() - began)


def main() -> None:
    """Measure beside the other ranks, if there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's own log lines
    torch.set_num_threads(max(1, torch.get_num_threads() // options.world))  # all ranks share this machine
    if options.world > 1:
        store = f"file://{options.folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=options.rank, world_size=options.world)
    measure(options, Peers.join({}))
    if options.world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
