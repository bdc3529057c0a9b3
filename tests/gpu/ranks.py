"""Checks of several ranks: collectives of NCCL and gloo, and FSDP2 over a change of their number.

One GPU carries several ranks of NCCL where each says that it is on another host. NCCL refuses two ranks on one GPU only
if both are on one host (init.cc: "Duplicate GPU detected"), and believes what NCCL_HOSTID says. They talk over sockets
then, and take turns on the GPU: milliseconds per collective, so tensors are small.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from spotsup_trainer.session.agreement import Agreement, Call, Level, Wish
from spotsup_trainer.session.peers import Peers
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.gpu.place import Facts, NotSeenError, Place, percentiles
from tests.gpu.train import GLOBAL_BATCH, Numbers

MIB = 1 << 20
REPEATS = 20
AGREE_STEPS = 200
EPOCHS, PARKS = 3, (4, 8)  # of 15 steps

if not hasattr(torch.cpu.Stream, "record_event"):  # torch 2.6: FSDP2 asks a CPU's streams for more than they have
    torch.cpu.Stream.record_event = lambda *_: torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda *_: None


def host_of(place: Place, rank: int) -> dict[str, str]:
    """Return the environment in which a rank passes for one on a host of its own, where there is one GPU for all."""
    return {"NCCL_HOSTID": f"node-{rank}", "NCCL_NET": "Socket"} if place.gpus == 1 else {}


def together(place: Place, world: int, work: Callable[..., None], *arguments: Any, at_most_s: float = 600.0) -> None:
    """Run `work(rank, world, place, ...)` on each rank, in processes forked from this one, which must not have touched
    a GPU. Raises AssertionError with the first rank's reason if one fails, or all take too long."""
    began, limit_s = time.monotonic(), place.left_s(at_most_s)
    context = torch.multiprocessing.start_processes(
        _rank, (work, world, place, *arguments), world, join=False, start_method="fork"
    )
    try:
        while not context.join(max(0.1, began + limit_s - time.monotonic())):
            assert time.monotonic() < began + limit_s, f"{world} ranks took longer than {limit_s:.0f} s"
    except torch.multiprocessing.ProcessException as error:
        raise AssertionError(str(error)[-1500:]) from None
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def _rank(rank: int, work: Callable[..., None], world: int, place: Place, *arguments: Any) -> None:
    os.environ.update(host_of(place, rank))
    torch.set_num_threads(1)
    work(rank, world, place, *arguments)


@contextlib.contextmanager
def grouped(rank: int, world: int, place: Place, backend: str, name: str) -> Iterator[torch.device]:
    """Be in a process group, with a GPU of this rank's own where there are as many."""
    device = torch.device("cpu")
    if place.cuda:
        device = torch.device("cuda", rank % place.gpus)
        torch.cuda.set_device(device)
    store, limit = f"file://{place.folder}/store-{name}", timedelta(seconds=place.left_s(60.0))
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=limit)
    yield device
    dist.destroy_process_group()


def _sum(rank: int, world: int, place: Place, backend: str, elements: int, name: str) -> None:
    with grouped(rank, world, place, backend, name) as device:
        data = torch.full((elements,), float(rank + 1), device=device)
        dist.all_reduce(data)
        assert float(data[0]) == float(data[-1]) == world * (world + 1) / 2
        times = []
        for _ in range(REPEATS):
            data.fill_(1.0)
            dist.barrier()
            _synchronize(place)
            began = time.monotonic()
            dist.all_reduce(data)
            _synchronize(place)
            times.append(time.monotonic() - began)
        if rank == 0:
            (place.folder / f"times-{name}").write_text(json.dumps(sorted(times)))


def _synchronize(place: Place) -> None:
    if place.cuda:
        torch.cuda.synchronize()


def backend_of_several(place: Place) -> str:
    """Return nccl, for two ranks or more on however many GPUs there are; gloo where NCCL refuses that, and note why."""
    if not place.cuda:
        place.note("left out", "NCCL: gloo carries the tensors")
        return "gloo"
    try:
        together(place, 2, _sum, "nccl", MIB // 4, "try", at_most_s=30.0)
    except AssertionError as error:
        reason = (str(error).strip().splitlines() or ["no reason"])[-1]
        place.note("not seen", f"NCCL with two ranks here, so gloo carries the tensors: {reason}")
        return "gloo"
    return "nccl"


def nccl(place: Place) -> Facts:
    """An all_reduce gives the right sum: over all GPUs, one process each; on a single one over two, as of two hosts."""
    world = max(2, place.gpus)
    backend = backend_of_several(place)
    size = (64 if place.gpus >= 2 else 1) * MIB
    together(place, world, _sum, backend, size // 4, "all")
    times = json.loads((place.folder / "times-all").read_text())
    bus = 2 * (world - 1) / world * size / times[REPEATS // 2] / 1e9
    found: Facts = {"backend": backend, "processes": world, "GPUs": place.gpus, "MiB": size // MIB}
    return found | {"an all_reduce, ms": percentiles(times), "bus bandwidth, GB/s": round(bus, 2)}


def _agree(rank: int, world: int, place: Place) -> None:
    began = time.monotonic()
    with grouped(rank, world, place, "gloo", f"agree-{world}"):
        joined_s = time.monotonic() - began
        began = time.monotonic()
        agreement = Agreement(Peers.join().another())
        made_s = time.monotonic() - began
        times = []
        for step in range(AGREE_STEPS):
            began = time.monotonic()
            agreement.at_once(Call.STEP, step, Wish(Level.CONTINUE, digest=7))
            times.append(time.monotonic() - began)
        if rank == 0:
            place.note(f"{world} ranks: the first group, then another, s", f"{joined_s:.2f}, {made_s:.2f}")
            place.note(f"{world} ranks: agreeing at a step, ms", percentiles(times))
        dist.barrier()


def agree(place: Place) -> Facts:
    """What ranks tell each other at each step costs little, also with many of them: over gloo, on this one machine."""
    processors = len(os.sched_getaffinity(0))
    worlds = [world for world in (2, 4, 8, 16) if world <= 2 * processors]
    for world in worlds:
        together(place, world, _agree)
    left_out = [str(world) for world in (2, 4, 8, 16) if world not in worlds]
    return {"left out": f"{', '.join(left_out)} ranks: there are {processors} processors"} if left_out else {}


def _shard(rank: int, world: int, place: Place, backend: str, number: int, park_after: int, folder: Path) -> None:
    """One round: train to the end, or park after a step."""
    with grouped(rank, world, place, backend, f"{folder.name}-{number}") as device:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).double().to(device)
        for part in (model[0], model[2], model):
            fully_shard(part)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=5)
        asked = folder / f"yield-{number}"
        environ = {"SPOTSUP_ROUND": str(number), "SPOTSUP_YIELD_FILE": str(asked)}
        environ["SPOTSUP_PARKED_FILE"] = str(folder / f"parked-{number}-{rank}")
        state = {"model": model, "optimizer": optimizer, "scaler": scaler}
        session = Session(state, checkpoints=folder / "checkpoints", park_timeout_s=0.0, environ=environ)
        with contextlib.suppress(SystemExit):  # parked
            for x, y in session.loader(Numbers(), global_batch=GLOBAL_BATCH, micro_batch=4, epochs=EPOCHS):
                loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
                session.backward(loss, count=torch.tensor(float(len(x)), device=device), scaler=scaler)
                if session.accumulating:
                    continue
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if rank == 0 and session.steps_done + 1 == park_after:
                    asked.touch()
                session.step()
            session.finish()
            assert not park_after, "it was asked to park, and did not"
        weights = [each.full_tensor().detach().cpu() for each in model.parameters()]
        if rank == 0:
            torch.save([*weights, torch.tensor(scaler.get_scale())], folder / "weights.pt")


def fsdp(place: Place) -> Facts:
    """FSDP2 over two ranks parks, goes on with one, and with two again; weights and the GradScaler's scale are those of
    one rank that nothing interrupts. Losses count items, in micro-batches."""
    backend = backend_of_several(place)
    if place.cuda and backend != "nccl":
        raise NotSeenError("needs NCCL with two ranks: gloo does not shard what is on a GPU")
    folders = [place.folder / name for name in ("changed", "alone")]
    for folder in folders:
        folder.mkdir()
    took = []
    for number, (world, park_after) in enumerate(((2, PARKS[0]), (1, PARKS[1]), (2, 0)), 1):
        began = time.monotonic()
        together(place, world, _shard, backend, number, park_after, folders[0])
        took.append(f"{world} ranks {time.monotonic() - began:.1f}")
        place.note("rounds, s", ", then ".join(took))
    together(place, 1, _shard, backend, 1, 0, folders[1])
    pairs = zip(*(torch.load(folder / "weights.pt") for folder in folders), strict=True)
    furthest = max(float((one - two).abs().max()) for one, two in pairs)
    assert furthest < 1e-6, f"weights differ by {furthest:g} from those of one rank without interruption"
    return {"backend": backend, "largest difference of a weight, or of the scale": f"{furthest:.1e}"}
