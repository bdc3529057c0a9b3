"""A small job by a framework's own loop, as a researcher would write it with our callback; run by the launcher.

    program.py framework=lightning.pytorch | pytorch_lightning | transformers  events=FILE until=FILE

Each completed step is a line of JSON: with sums over weights and over the optimizer's state, which show whether
a round goes on from where the one before was. Training ends on all ranks once the file `until` exists.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spotsup_trainer import callbacks
from torch import nn

SETTINGS = {"accumulate": "1", "every": "7", "step_s": "0.02", "validate": "0"}
SETTINGS |= dict(argument.split("=", 1) for argument in sys.argv[1:])
ACCUMULATE, EVERY, STEP_S = int(SETTINGS["accumulate"]), int(SETTINGS["every"]), float(SETTINGS["step_s"])
CHECKPOINTS = Path(os.environ["SPOTSUP_CHECKPOINT_DIR"])
SAMPLES, BATCH = 480, 4


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is untyped here
    """Sample i is i, and made from i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.linspace(-1, 1, 8) * (1 + index % 7), "labels": torch.tensor([index / SAMPLES])}


class Net(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Takes and gives what transformers' Trainer wants of a model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(STEP_S)
        return {"loss": nn.functional.mse_loss(self.layers(x), labels)}


def emit(kind: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, **more: object) -> None:
    """One line, in one write: lines of several processes do not mix."""
    line: dict[str, object] = {"kind": kind, "step": step, "at": time.time(), "node": os.environ["SPOTSUP_NODE_ID"]}
    line |= {"round": int(os.environ["SPOTSUP_ROUND"]), "rank": int(os.environ["RANK"])}
    line |= {"world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid(), "lr": optimizer.param_groups[0]["lr"]}
    moments = [value for state in optimizer.state.values() for value in state.values()]
    line |= {"weights": _sum(model.parameters()), "moments": _sum(moments)} | more
    with Path(SETTINGS["events"]).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def _sum(tensors: Any) -> float:
    return float(sum(tensor.detach().double().sum() for tensor in tensors))


def enough() -> bool:
    """Whether to end; all ranks get the same answer."""
    flag = torch.tensor(int(Path(SETTINGS["until"]).exists()))
    if dist.is_initialized():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def train_with_lightning(name: str) -> None:
    pl: Any = importlib.import_module(name)

    class Module(pl.LightningModule):  # type: ignore[misc]  # not installed where mypy runs
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: Any, _: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Telling(pl.Callback):  # type: ignore[misc]  # not installed where mypy runs
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.step = trainer.global_step
            emit("start", self.step, module, trainer.optimizers[0])

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if trainer.global_step != self.step:
                self.step = trainer.global_step
                batch = {"epoch": trainer.current_epoch, "batch": trainer.fit_loop.epoch_loop.batch_idx}
                emit("step", self.step, module, trainer.optimizers[0], **batch)
                trainer.should_stop = enough()

        def on_validation_batch_end(self, trainer: Any, module: Any, *arguments: Any) -> None:
            emit("validated", trainer.global_step, module, trainer.optimizers[0], batch=arguments[2])

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=BATCH, shuffle=True)
    validation = {"limit_val_batches": 200, "val_check_interval": 10} if SETTINGS["validate"] == "1" else {}
    callback = callbacks.SpotsupLightningCallback(every_steps=EVERY)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=10**6,
        accumulate_grad_batches=ACCUMULATE,
        callbacks=[Telling(), callback],
        default_root_dir=CHECKPOINTS.parent / "lightning",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        num_sanity_val_steps=0,
        **validation,
    )
    trainer.fit(Module(), loader, loader if validation else None, ckpt_path=callback.newest())


def train_with_transformers() -> None:
    transformers: Any = importlib.import_module("transformers")

    class Telling(transformers.TrainerCallback):  # type: ignore[misc]  # not installed where mypy runs
        def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
            emit("start", state.global_step, known["model"], known["optimizer"].optimizer)

        def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> Any:
            emit("step", state.global_step, known["model"], known["optimizer"].optimizer, epoch=state.epoch)
            if enough():
                control.should_training_stop = True
            return control

    arguments = transformers.TrainingArguments(
        output_dir=str(CHECKPOINTS),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=10**6,
        save_steps=EVERY,
        save_total_limit=3,
        learning_rate=0.01,
        lr_scheduler_type="linear",
        logging_steps=5,
        report_to=[],
        disable_tqdm=True,
    )
    callback = callbacks.SpotsupTrainerCallback()
    trainer = transformers.Trainer(
        model=Net(), args=arguments, train_dataset=Numbers(), callbacks=[Telling(), callback]
    )
    trainer.train(resume_from_checkpoint=callback.newest(arguments.output_dir))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if SETTINGS["framework"] == "transformers":
        train_with_transformers()
    else:
        train_with_lightning(SETTINGS["framework"])
    print("training is over", flush=True)
