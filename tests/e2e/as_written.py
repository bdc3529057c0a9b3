"""Small programs with a Session, as researchers write them; tests/e2e/test_as_written.py runs them. The first argument
names one. Each line is a completed step with its samples; the last one is about the weights."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 64

torch.manual_seed(0)
inputs = torch.randn(SAMPLES, 8, dtype=torch.float64)
targets = inputs.sum(1, keepdim=True)
data = TensorDataset(inputs, targets, torch.arange(SAMPLES))
several = "RANK" in os.environ


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def error(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().mean()


def step(session: Session, numbers: torch.Tensor, *optimizers: Any) -> None:
    """The rest of a step."""
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {session.steps_done + 1}:", *(numbers.tolist() if session.weight else ()), flush=True)
    time.sleep(0.02)
    session.step()


def accumulate(model: Any, optimizer: Any) -> Session:
    """By hand, over three batches of the loader, of which the last has four samples."""
    session = Session({"model": model, "optimizer": optimizer})
    numbers = []
    for number, (x, y, taken) in enumerate(session.loader(data, global_batch=5, epochs=3)):
        session.backward(error(model, x, y) / 3)
        numbers.append(taken if session.weight else taken[:0])
        if (number + 1) % 3 == 0:
            step(session, torch.cat(numbers), optimizer)
            numbers = []
    return session


def validate(model: Any, optimizer: Any) -> Session:
    """In the middle of an epoch, by a loader of its own."""
    session = Session({"model": model, "optimizer": optimizer})
    held_out = DataLoader(TensorDataset(inputs[:16], targets[:16]), batch_size=4, shuffle=True)
    for x, y, taken in session.loader(data, global_batch=8, epochs=3):
        session.backward(error(model, x, y))
        step(session, taken, optimizer)
        if session.steps_done % 5 == 0:
            with torch.no_grad():
                print("held out", sum(float(error(model.eval(), x, y)) for x, y in held_out), flush=True)
            model.train()
    return session


def two_optimizers(model: Any, optimizer: Any) -> Session:
    other = DistributedDataParallel(network()) if several else network()
    second = torch.optim.Adam(other.parameters(), 0.01)
    session = Session({"model": model, "optimizer": optimizer, "other": other, "second": second})
    for x, y, taken in session.loader(data, global_batch=8, epochs=3):
        session.backward(error(other, x, y))
        second.step()
        second.zero_grad()
        session.backward(error(model, x, other(x).detach()))
        step(session, taken, optimizer)
    return session


def schedule(model: Any, optimizer: Any) -> Session:
    """Once per epoch."""
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    session = Session({"model": model, "optimizer": optimizer, "rates": rates})
    for epoch in session.loader(data, global_batch=8, epochs=3).epochs():
        for x, y, taken in epoch:
            session.backward(error(model, x, y))
            step(session, taken, optimizer)
        rates.step()
    print("rate", rates.get_last_lr(), flush=True)
    return session


def average(model: Any, optimizer: Any) -> Session:
    """An exponential moving average of the weights."""
    own = model.module if several else model
    averaged = AveragedModel(own, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    session = Session({"model": model, "optimizer": optimizer, "averaged": averaged})
    for x, y, taken in session.loader(data, global_batch=8, epochs=3):
        session.backward(error(model, x, y))
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(own)
        step(session, taken)
    print("averaged", *(f"{float(each.detach().sum()):.9f}" for each in averaged.parameters()), flush=True)
    return session


def workers(model: Any, optimizer: Any) -> Session:
    session = Session({"model": model, "optimizer": optimizer})
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    for epoch in session.loader(data, global_batch=8, epochs=3, **options).epochs():
        for x, y, taken in epoch:
            session.backward(error(model, x, y))
            step(session, taken, optimizer)
    return session


def early(model: Any, optimizer: Any) -> Session:
    """Stops once there was little progress twice, counted in a dict of the state."""
    seen = {"best": 1e9, "bad": 0}
    session = Session({"model": model, "optimizer": optimizer, "seen": seen})
    for epoch in session.loader(data, global_batch=8, epochs=40).epochs():
        for x, y, taken in epoch:
            session.backward(error(model, x, y))
            step(session, taken, optimizer)
        with torch.no_grad():
            found = float(error(model, inputs, targets))
        seen.update(best=min(found, seen["best"]), bad=seen["bad"] + (found > seen["best"] - 0.5))
        if seen["bad"] == 2:
            break
    return session


def compiled(model: Any, optimizer: Any) -> Session:
    """The whole step, with backward() in it."""
    fast = torch.compile(model, backend="eager")
    session = Session({"model": fast, "optimizer": optimizer})

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def forwards_and_backwards(x: torch.Tensor, y: torch.Tensor) -> None:
        session.backward(error(fast, x, y))

    for x, y, taken in session.loader(data, global_batch=8, epochs=3):
        forwards_and_backwards(x, y)
        step(session, taken, optimizer)
    return session


def main() -> None:
    if several:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(network()) if several else network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    session = globals()[sys.argv[1]](model, optimizer)
    session.finish()
    sums = [f"{float(each.detach().sum()):.9f}" for each in model.parameters()]
    print("weights", session.steps_done, *sums, flush=True)
    if several:
        dist.destroy_process_group()


main()
