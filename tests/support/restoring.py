"""Jobs of several ranks whose nodes keep their state in memory.

Each node's memory belongs to this process, as to a launcher; the ranks are forked from it, and end with their round.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer import snapshot_files
from spotsup_trainer.session.checkpoint import Checkpointer
from spotsup_trainer.session.checkpoint_dir import Position, checkpoints_in
from spotsup_trainer.session.memory import Keeper, Slot
from spotsup_trainer.session.peers import Peers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FORKED = multiprocessing.get_context("fork")
LIMIT_S = 60.0


@dataclass
class Node:
    """A machine of the job."""

    memory: str
    job: str = "job"
    local_world: int = 1

    def files(self) -> list[snapshot_files.SnapshotFiles]:
        return snapshot_files.named_by({snapshot_files.VARIABLE: self.memory})

    def slots(self) -> list[Slot]:
        return [Slot(descriptor) for files in self.files() for descriptor in files.slots]

    def close(self) -> None:
        for files in self.files():
            for descriptor in (*files.slots, files.lineage):
                os.close(descriptor)


@dataclass
class Job:
    """What runs its rounds."""

    folder: Path
    root: Path
    nodes: list[Node] = field(default_factory=list)
    number: int = 0

    def node(self, local_world: int = 1, **options: Any) -> Node:
        made = Node(snapshot_files.create(local_world), local_world=local_world, **options)
        self.nodes.append(made)
        return made

    def round(self, nodes: list[Node], work: Callable[[Rank], dict[str, Any]]) -> list[dict[str, Any]]:
        """What `work` returned on each rank; {} of one that ended otherwise."""
        self.number += 1
        ranks = [(at, local) for at, node in enumerate(nodes) for local in range(node.local_world)]
        processes, files = [], []
        for rank, (at, local) in enumerate(ranks):
            environ = {
                snapshot_files.VARIABLE: nodes[at].memory,
                "SPOTSUP_JOB": nodes[at].job,
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(nodes[at].local_world),
                "GROUP_RANK": str(at),
                "GROUP_WORLD_SIZE": str(len(nodes)),
            }
            files.append(self.folder / f"out-{self.number}-{rank}")
            one = partial(be_rank, self, rank, len(ranks), environ, work, files[-1])
            processes.append(FORKED.Process(target=one))
        for process in processes:
            process.start()
        deadline = time.monotonic() + LIMIT_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        hung = [process for process in processes if process.is_alive()]
        for process in hung:
            process.kill()
            process.join()
        assert not hung, "\n".join(file.with_suffix(".err").read_text() for file in files)
        return [
            json.loads(file.read_text()) if file.exists() else {} for file in (f.with_suffix(".json") for f in files)
        ]


@dataclass
class Rank:
    """A rank in its process."""

    rank: int
    world: int
    round: int
    root: Path
    environ: dict[str, str]
    peers: Peers
    output: Path

    def checkpointer(self, state: dict[str, Any], peers: Peers | None = None) -> Checkpointer:
        keeper = Keeper.named_by(self.environ, self.rank, self.world)
        assert keeper is not None
        return Checkpointer(self.root, state, peers or self.peers, 2, round_number=self.round, keeper=keeper)


def be_rank(
    job: Job, rank: int, world: int, environ: dict[str, str], work: Callable[[Rank], dict[str, Any]], output: Path
) -> None:
    """In a process of its own."""
    sys.stderr = output.with_suffix(".err").open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{job.folder}/store.{job.number}", rank=rank, world_size=world)
    found = work(Rank(rank, world, job.number, job.root, environ, Peers.join({}), output))
    output.with_suffix(".json").write_text(json.dumps(found))
    os._exit(0)  # as a worker that is killed, without the destructors of process groups


def model_of(rank: Rank, kind: str) -> nn.Module:
    torch.manual_seed(3)
    model: nn.Module = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
    if kind == "sharded":
        fully_shard(model, mesh=init_device_mesh("cpu", (rank.world,)))
    if kind == "hybrid":
        fully_shard(model, mesh=init_device_mesh("cpu", (rank.world // 2, 2), mesh_dim_names=("replicate", "shard")))
    return model


def state_of(rank: Rank, kind: str) -> dict[str, Any]:
    model = model_of(rank, kind)
    return {"model": model, "opt": torch.optim.AdamW(model.parameters(), lr=0.1), "notes": {"by": rank.rank}}


def train(state: dict[str, Any], steps: int) -> None:
    """The same on all ranks, with optimizer states."""
    for step in range(steps):
        for at, parameter in enumerate(state["model"].parameters()):
            parameter.grad = torch.full_like(parameter, 0.5 + at + step)
        state["opt"].step()


def numbers(state: dict[str, Any]) -> list[float]:
    """Of the whole state, as all ranks have it together."""

    def whole(tensor: Any) -> torch.Tensor:
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    found = []
    for parameter in state["model"].parameters():
        slots = state["opt"].state[parameter]
        for tensor in (parameter, slots["exp_avg"], slots["exp_avg_sq"], slots["step"]):
            values = whole(tensor).detach().double().reshape(-1)
            found += [float(values.sum()), float((values * torch.arange(len(values))).sum())]
    return found


def save(rank: Rank, kind: str = "plain", steps: int = 3) -> dict[str, Any]:
    """Restore what there is, train, and make a checkpoint: in memory, and where the disk allows in storage."""
    state = state_of(rank, kind)
    checkpoints = rank.checkpointer(state)
    before = checkpoints.restore() or Position(0)
    train(state, steps)
    checkpoints.claim()
    saved = checkpoints.save(Position(before.step + steps, samples=7))
    return {"saved": saved, "numbers": numbers(state), "from": before.step}


def restore(rank: Rank, kind: str = "plain") -> dict[str, Any]:
    state = state_of(rank, kind)
    checkpoints = rank.checkpointer(state)
    position = checkpoints.restore()
    assert position is not None
    values = numbers(state)
    return {"step": position.step, "numbers": values, "notes": state["notes"], "sources": asdict(checkpoints.sources)}


def bytes_of_slots(node: Node) -> list[int]:
    """Of the pieces in each whole snapshot that a node has a part of."""
    found = [(slot, head) for slot in node.slots() if (head := slot.head())]
    return [sum(piece.bytes for piece in slot.table(head)) for slot, head in found]


def bytes_of(node: Node) -> int:
    """Of one snapshot in the memory of a node."""
    return sum(bytes_of_slots(node))


def forget(job: Job, *steps: int) -> None:
    """As if the processes had been killed before these checkpoints were complete."""
    for checkpoint in checkpoints_in(job.root):
        if checkpoint.step in steps:
            shutil.rmtree(checkpoint.path)


# -- replicated state --------------------------------------------------------------------------------------------------


@contextmanager
def a_job(folder: Path) -> Iterator[Job]:
    """A job without nodes; those that it gets are closed."""
    made = Job(folder, folder / "checkpoints")
    try:
        yield made
    finally:
        for node in made.nodes:
            node.close()
