"""One rank of a small training job, for tests/e2e/test_session.py, which runs it in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

if not hasattr(torch.cpu.Stream, "record_event"):  # torch 2.6: FSDP2 asks a CPU's streams for more than they have
    torch.cpu.Stream.record_event = lambda *_: torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda *_: None

SHARDS = 4
SAMPLES, GLOBAL_BATCH = 41, 8  # the last step of an epoch has one sample: with several ranks, some have none


@dataclass(frozen=True)
class Rank:
    """What one process does. `steps`: where it stops. `die_after`: kill -9 itself once that step is complete."""

    rank: int
    world: int
    folder: Path  # of the job: checkpoints, audit, weights
    round: int = 1
    steps: int = 10**6
    epochs: int = 2
    every_steps: int = 10**6
    micro_batch: int | None = None
    workers: int = 0
    die_after: int | None = None
    step_s: float = 0.0
    evaluate_after: int | None = None  # a step after which it evaluates until it is asked to yield
    yield_after: int | None = None  # the step after which it finds that its node has to leave
    sharded: bool = False  # FSDP instead of DDP
    replicas: int = 1  # of what FSDP shards: HSDP, where there are more ranks
    own_loaders: str = ""  # instead of the Session's: "rank", one for each, or "shards", four
    tensor_parallel: int = 1  # ranks that compute each sample together, below FSDP
    context_parallel: int = 0  # ranks that have a part each of each sample's sequence, below FSDP; 1: attention, uncut
    tells_mesh: bool = True  # to the Session
    differs: bool = False  # from other ranks, in a module that nothing keeps alike
    largest_file: int | None = None  # bytes that the "disk" of this process has room for
    extra_point: bool = False  # after the last step, one call of checkpoint_point()
    warn_after_s: float | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


class Whole(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """A sequence of which each rank of a group has a part. By hand: torch 2.13 cuts attention for GPUs only."""

    @staticmethod
    def forward(context: Any, own: torch.Tensor, group: Any) -> torch.Tensor:
        """The parts of all, in the order of the ranks."""
        context.group = group
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Each rank's loss depends on all parts."""
        total = gradient.clone()
        dist.all_reduce(total, group=context.group)
        return total.chunk(dist.get_world_size(context.group), 1)[dist.get_rank(context.group)], None


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Causal attention over a sample's six numbers, and an output for each that this rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.linspace(-1.0, 1.0, 6 * 8).reshape(6, 8))
        self.into, self.keys, self.out = nn.Linear(1, 8), nn.Linear(8, 24), nn.Linear(8, 1)
        self.group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks, rank = (dist.get_world_size(self.group), dist.get_rank(self.group)) if self.group else (1, 0)
        own = torch.arange(x.shape[1]).chunk(ranks)[rank]
        hidden = (self.into(x[:, own].unsqueeze(-1)) + self.places[own]).tanh()
        queries, both = self.keys(hidden).split((8, 16), dim=-1)
        keys, values = (Whole.apply(both, self.group) if self.group else both).chunk(2, -1)
        later = torch.arange(x.shape[1]) > own.unsqueeze(1)
        scores = (queries @ keys.transpose(1, 2)).masked_fill(later, -torch.inf)
        return self.out(hidden + scores.softmax(-1) @ values).squeeze(-1)


class Numbers:
    """Sample i: i, a vector made from it, and its target."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64) * (1 + index % 7) + index / SAMPLES
        return index, x, x.sin().sum().unsqueeze(0)


def train(job: Rank) -> None:
    """Train as the rank's settings say; the weights go to `weights.pt`, what is printed to `out.<rank>`, completed
    steps to `audit/`, some random numbers to `draws.<round>.<rank>`.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.update({name: value for name, value in job.environ.items() if name.startswith("AWS_")})
    output = os.open(job.folder / f"out.{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if job.largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.largest_file, job.largest_file))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = None
    model: Any = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    if job.context_parallel:
        model = Attention().double()
    if job.world > 1:
        store = f"file://{job.folder}/store.{job.round}"
        dist.init_process_group("gloo", init_method=store, rank=job.rank, world_size=job.world)
        model, mesh = _parallel(job, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saved_by = {"rank": job.rank}
    state = {"model": model, "optimizer": optimizer, "saved_by": saved_by}
    if job.differs:
        state["own"] = nn.BatchNorm1d(3)  # its statistics may differ
        for tensor in state["own"].state_dict().values():
            tensor.fill_(job.rank)
    environ = {
        "SPOTSUP_ROUND": str(job.round),
        "SPOTSUP_CHECKPOINT_DIR": str(job.folder / "checkpoints"),
        **job.environ,
    }
    options: dict[str, Any] = {"every_steps": job.every_steps, "warn_after_s": job.warn_after_s, "environ": environ}
    if mesh is not None:
        options |= {"mesh": mesh, "data_dims": ("dp",)}
    with Session(state, **options) as session:
        assert saved_by["rank"] == (0 if session.steps_done else job.rank)
        saved_by["rank"] = job.rank
        (job.folder / f"draws.{job.round}.{job.rank}").write_text(f"{torch.rand(4).tolist()}")
        _train(job, session, model, optimizer)
    weights = [getattr(parameter, "full_tensor", parameter.detach)() for parameter in model.parameters()]
    if job.rank == 0:
        torch.save(weights, job.folder / "weights.pt")
    if job.world > 1:
        dist.destroy_process_group()


def _parallel(job: Rank, model: nn.Module) -> tuple[nn.Module, Any]:
    """The model over all ranks, and the mesh to tell the Session."""
    if job.replicas > 1 and job.world % job.replicas == 0:
        shape = (job.replicas, job.world // job.replicas)
        return fully_shard(
            model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
        ), None
    if job.context_parallel > 1:
        shape = (job.world // job.context_parallel, job.context_parallel)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "cp"))
        model.group = mesh.get_group("cp")
        every = init_device_mesh("cpu", (job.world,), mesh_dim_names=("dp_cp",))
        return fully_shard(model, mesh=every), mesh if job.tells_mesh else None
    if job.tensor_parallel == 1:
        return fully_shard(model) if job.sharded else DistributedDataParallel(model), None
    shape = (job.world // job.tensor_parallel, job.tensor_parallel)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    if mesh.get_coordinate() is not None:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    return model, mesh if job.tells_mesh else None


def _batches(job: Rank, session: Session) -> Any:
    if job.own_loaders == "rank":
        own = Subset(Numbers(), range(session.rank, SAMPLES, session.world))
        return session.wrap(StatefulDataLoader(own, GLOBAL_BATCH // session.world, shuffle=True), epochs=job.epochs)
    if job.own_loaders == "shards":

        def make(number: int) -> Any:
            order = torch.Generator().manual_seed(number)
            sampler = RandomSampler(range(number, SAMPLES, SHARDS), generator=order)
            own = Subset(Numbers(), range(number, SAMPLES, SHARDS))
            return StatefulDataLoader(own, GLOBAL_BATCH // SHARDS, sampler=sampler)

        return session.wrap(make, shards=SHARDS, epochs=job.epochs)
    return session.loader(
        Numbers(),
        global_batch=GLOBAL_BATCH,
        epochs=job.epochs,
        micro_batch=job.micro_batch,
        num_workers=job.workers,
        # the start method of ranks would make them children of the ranks' server, which outlive their rank
        multiprocessing_context="fork" if job.workers else None,
    )


def _train(job: Rank, session: Session, model: Any, optimizer: Any) -> None:
    trained: list[int] = []
    for index, x, y in _batches(job, session):
        if session.steps_done == job.steps:
            break
        made = model(x)
        session.backward(nn.functional.mse_loss(made, y.expand_as(made)))
        trained += index.tolist() if session.weight else ()
        if session.accumulating:
            continue
        optimizer.step()
        optimizer.zero_grad()
        assert job.own_loaders or trained == session.indices
        _audit(job, session, trained)
        trained = []
        time.sleep(job.step_s)
        if job.die_after == session.steps_done + 1:
            while not (job.folder / "checkpoints" / "LATEST").exists():  # a checkpoint is written beside training
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if job.yield_after == session.steps_done + 1:
            Path(job.environ["SPOTSUP_YIELD_FILE"]).touch()
        session.step()
        while job.evaluate_after == session.steps_done:
            time.sleep(0.01)
            session.checkpoint_point()
    if job.extra_point:
        session.checkpoint_point()


def _audit(job: Rank, session: Session, trained: list[int]) -> None:
    """Ranks that compute samples which another one counts write elsewhere, the same."""
    part = job.rank % (job.tensor_parallel * max(1, job.context_parallel))
    folder = job.folder / (f"audit.{part}" if part else "audit")
    folder.mkdir(exist_ok=True)
    step = session.steps_done + 1
    line: dict[str, Any] = {"t": time.time(), "round": job.round, "rank": job.rank, "world": job.world, "step": step}
    line |= {"epoch": session.epoch, "indices": trained, "loss": float(session.loss)}
    with (folder / f"{job.round}.{job.rank}").open("a") as file:
        file.write(json.dumps(line) + "\n")
