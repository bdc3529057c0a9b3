"""A training program with a Session, for tests/e2e/test_restore.py: it trains until the file `until` exists.

Settings come as KEY=VALUE arguments: until, events (a file for JSON lines), kind (ddp or fsdp).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

SETTINGS = dict(argument.split("=", 1) for argument in sys.argv[1:])


def emit(kind: str, **more: object) -> None:
    """One line, in one write."""
    line: dict[str, object] = {"kind": kind, "at": time.time(), "round": int(os.environ["SPOTSUP_ROUND"])}
    line |= {"rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid()} | more
    with Path(SETTINGS["events"]).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Linear(200, 100), nn.Linear(100, 1))
    model = fully_shard(model) if SETTINGS["kind"] == "fsdp" else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Session({"model": model, "opt": optimizer}, every_steps=5) as session:
        emit("began", step=session.steps_done, node=os.environ["SPOTSUP_NODE_ID"])
        for _ in range(100_000):
            model(torch.ones(4, 200)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
            emit("step", step=session.steps_done)
            time.sleep(0.02)
            over = torch.tensor([Path(SETTINGS["until"]).exists()], dtype=torch.int64)
            dist.all_reduce(over)  # who sees the file first must not leave while the others begin another step
            if over.item():
                break


main()
