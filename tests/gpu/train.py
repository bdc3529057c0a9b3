"""One rank of the training job of the check `reform`: DDP on a GPU where there is one, with a Session.

Settings come as KEY=VALUE arguments: events (a file for JSON lines), until (a file that has the number of the last
step, once that is known), step_s, backend, device, weights (a file for rank 0's final weights).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, GLOBAL_BATCH = 60, 12
EPOCHS = 100_000  # it ends before


class Numbers:
    """Sample i: a vector made from i, and its target."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1.0, 1.0, 32, dtype=torch.float64) * (1 + index % 7) + index / SAMPLES
        return x, x.sin().sum().unsqueeze(0)


def emit(session: Session, events: Path) -> None:
    """One line, in one write: lines of several processes do not mix."""
    line = {"kind": "step", "at": time.time(), "round": session.round, "rank": session.rank, "world": session.world}
    line |= {"step": session.steps_done, "node": os.environ.get("SPOTSUP_NODE_ID", "")}
    with events.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def main(settings: dict[str, str]) -> None:
    """Train."""
    device = torch.device("cpu")
    if settings["device"] == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).double().to(device)
    if "RANK" in os.environ:
        dist.init_process_group(settings["backend"])
        model = DistributedDataParallel(model, [device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    session = Session({"model": model, "optimizer": optimizer}, every_steps=5)
    until = Path(settings["until"])
    for x, y in session.loader(Numbers(), global_batch=GLOBAL_BATCH, epochs=EPOCHS):
        session.backward(nn.functional.mse_loss(model(x.to(device)), y.to(device)))
        optimizer.step()
        optimizer.zero_grad()
        session.step()
        emit(session, Path(settings["events"]))
        if until.exists() and session.steps_done == int(until.read_text()):
            break
        time.sleep(float(settings["step_s"]))
    session.finish()
    if session.rank == 0:
        torch.save([each.detach().cpu() for each in model.parameters()], settings["weights"])
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
