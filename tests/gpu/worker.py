"""What workers do in the checks of workers.py: `python worker.py MODE DEVICE FILE ...`. What they find is JSON in FILE.

The fork server runs it as it runs a user's script: forked, with torch imported.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

TRIES_S = 20.0

# How a program may leave at its end. With an empty string, it leaves its process group to the interpreter's end.
ENDS = {
    "all_reduce": "",
    "all_reduce, group destroyed": "destroy",
    "DDP alive": "ddp",
    "DDP alive, group destroyed": "ddp destroy",
    "DDP within main, group destroyed": "local destroy",
    "device_id": "device_id",
    "device_id, DDP alive, group destroyed": "device_id ddp destroy",
    "pinning loader alive, DDP alive": "loader ddp",
    "Session, gloo group beside, DDP alive": "session ddp",
    "Session, DDP alive, group destroyed, sys.exit(0)": "session ddp destroy exit",
}
kept: list[object] = []  # what is alive as the interpreter ends


def publish(file: str, **found: object) -> None:
    """Write what was found, so that whoever reads it finds it whole."""
    beside = Path(f"{file}.new")
    beside.write_text(json.dumps(found))
    beside.replace(file)


def product(device: str, file: str, forever: str) -> None:
    """Multiply matrices, once or until it is killed."""
    began = time.monotonic()
    x = torch.ones(1024, 1024, device=device)
    total = float((x @ x).sum())
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    publish(file, total=total, first_s=time.monotonic() - began, free=free)
    while forever == "forever":
        x = (x @ x).clamp_(-1, 1)


def hold(device: str, file: str, size: str, pinned: str, children: str) -> None:
    """Hold so many bytes of the device, and pinned ones, and so many forked children, as data loading workers are: all
    of them have the device open. They wait at a FIFO that nobody writes to, and for a lock that goes with the last."""
    held = [torch.ones(int(size), dtype=torch.uint8, device=device)]
    held.append(torch.ones(int(pinned), dtype=torch.uint8, pin_memory=device == "cuda"))
    lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.mkfifo(f"{file}.fifo")
    for number in range(int(children)):
        if os.fork() == 0:
            Path(f"{file}.child-{number}").touch()
            os.open(f"{file}.fifo", os.O_RDONLY)
            os._exit(1)
    while len(list(Path(file).parent.glob(f"{Path(file).name}.child-*"))) < int(children):
        time.sleep(0.01)
    publish(file, held=sum(each.nbytes for each in held))
    time.sleep(3600)


def take(device: str, file: str, size: str) -> None:
    """Take so many bytes of the device at once; try again while it has too few."""
    began, tries = time.monotonic(), 0
    while True:
        tries += 1
        try:
            torch.empty(int(size), dtype=torch.uint8, device=device)
            break
        except torch.OutOfMemoryError:
            if time.monotonic() > began + TRIES_S:
                tries = -tries
                break
            time.sleep(0.05)
    publish(file, tries=tries, seconds=time.monotonic() - began)


def end(device: str, file: str, name: str) -> None:
    """Train for a few steps in a process group of one, and end as ENDS says."""
    how = ENDS[name].split()
    backend = "nccl" if device == "cuda" else "gloo"
    options: dict[str, Any] = {"device_id": torch.device("cuda", 0)} if "device_id" in how else {}
    dist.init_process_group(backend, init_method=f"file://{file}.store", rank=0, world_size=1, **options)
    dist.all_reduce(torch.ones(4, device=device))
    model: nn.Module = nn.Linear(8, 1).to(device)
    if {"ddp", "local"} & set(how):
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 8))
    batches: Any = DataLoader(data, batch_size=8)
    session = None
    if "loader" in how:
        batches = DataLoader(data, batch_size=8, num_workers=2, pin_memory=device == "cuda", persistent_workers=True)
        kept.append(iter(batches))
    if "session" in how:
        session = Session({"model": model, "optimizer": optimizer}, checkpoints=None, environ={})
        batches = session.loader(data, global_batch=8)
    for (x,) in batches:
        loss = model(x.to(device)).square().mean()
        if session:
            session.backward(loss)
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session:
            session.step()
    if session:
        session.finish()
    if "ddp" in how:
        kept.extend([model, optimizer, batches])
    if "destroy" in how:
        dist.destroy_process_group()
    publish(file, done=True)
    if "exit" in how:
        sys.exit(0)


def compiled(device: str, file: str) -> None:
    """Compile a model, train it for a step, and say how long that took; then wait to be killed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(device)
    x = torch.randn(32, 16, device=device)
    expected = model(x)
    began = time.monotonic()
    fast = torch.compile(model)
    made = fast(x)
    made.square().mean().backward()
    furthest = float((made - expected).abs().max())
    publish(file, first_s=time.monotonic() - began, furthest=furthest)
    time.sleep(3600)


MODES: Mapping[str, Callable[..., None]] = {
    "product": product,
    "hold": hold,
    "take": take,
    "end": end,
    "compiled": compiled,
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
