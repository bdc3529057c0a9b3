"""A trainer as TorchTitan 0.3's own calls its checkpointer, which is real: the rest of its trainer needs Triton.

titan.py   STEPS steps of a sharded model, with the ParkingCheckpointManager of docs/training/parking.md
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, INTERVAL, BATCH = 400, 60, 8
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Optimizers:
    """What TorchTitan's OptimizersContainer gives to its checkpointer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = get_optimizer_state_dict(self._model, self.optimizer, options=FLAT)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._model, self.optimizer, state, options=FLAT)


class Loader:
    """Each rank's own batches, with a position."""

    def __init__(self) -> None:
        self.position = 0

    def batch(self) -> torch.Tensor:
        self.position += 1
        generator = torch.Generator().manual_seed(self.position * 1000 + dist.get_rank())
        return torch.randn(BATCH, 8, generator=generator)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Trainer:
    """Its state, its calls of the checkpointer and their order are those of torchtitan.trainer.Trainer."""

    def __init__(self) -> None:
        self.step = 0
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizers, self.loader = Optimizers(self.model), Loader()
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizers.optimizer, lambda step: 0.995**step)
        self.schedule = schedule
        manager = importlib.import_module("with_torchtitan").ParkingCheckpointManager
        config = manager.Config(enable=True, interval=INTERVAL, last_save_model_only=False, keep_latest_k=0)
        self.checkpointer = config.build(
            dataloader=self.loader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=schedule,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=os.environ["SPOTSUP_CHECKPOINT_DIR"],
        )

    def train(self) -> None:
        self.checkpointer.load(step=-1)
        while self.step < STEPS:
            self.step += 1
            self.train_step()
            self.checkpointer.save(self.step, last_step=self.step == STEPS)
        self.checkpointer.close()

    def train_step(self) -> None:
        x = self.loader.batch()
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizers.optimizer.step()
        self.optimizers.optimizer.zero_grad()
        self.schedule.step()
        if dist.get_rank() == 0:
            print(f"step {self.step} loss {float(loss):.9f}", flush=True)

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Trainer().train()
    dist.destroy_process_group()
