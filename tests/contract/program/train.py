"""The job of `make contract-real`: trains on two nodes until one was replaced, and then ends by itself."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from spotsup_trainer.session import Session
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# A node that is never taken must not let the job run on: its limits end it, too.
MAX_STEPS = 100_000


class Numbers:
    """Sample i, and its square."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([float(index % 17) / 17])
        return x, x * x


def main() -> None:
    """Every rank of every round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--steps-after", type=int, required=True, help="steps of the round with the replacement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session({"model": model, "optimizer": optimizer}, every_s=5.0)
    here = 0
    for x, y in session.loader(Numbers(), global_batch=16, epochs=1000):
        session.backward(nn.functional.mse_loss(model(x), y))
        if session.accumulating:
            continue
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.step_s)
        session.step()
        here += 1
        if here >= MAX_STEPS or (session.round >= 2 and session.world == 2 and here >= options.steps_after):
            break
    session.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
