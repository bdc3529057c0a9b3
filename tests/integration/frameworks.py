"""One rank that trains by a framework's loop with our callback, for tests/integration/test_callbacks.py.

The frameworks are stand-ins: as little of Lightning and of transformers as calls the hooks that our callbacks have, in
their order and with their arguments; `make test-frameworks` compares that with the real ones, and runs whole jobs with
them. What the callbacks do is real, and so are the files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

BATCHES_PER_STEP, BATCH = 2, 3


@dataclass(frozen=True)
class Rank:
    """What one process does: train until `steps` optimizer steps are complete in all."""

    framework: str
    rank: int
    world: int
    folder: Path
    round: int
    steps: int
    validate_every: int = 10**6  # batches
    environ: Mapping[str, str] = field(default_factory=dict)


class AsyncCheckpointIO:
    """lightning.pytorch.plugins.AsyncCheckpointIO."""


class LightningTrainer:
    """lightning.pytorch.Trainer: `global_step` counts optimizer steps; saving is collective, and rank 0 writes."""

    def __init__(self, callback: Any, validate_every: int) -> None:
        self.global_step = self.current_epoch = 0
        self.strategy = SimpleNamespace(checkpoint_io=None)
        self.accumulate_grad_batches = BATCHES_PER_STEP
        self.world_size = dist.get_world_size()
        self.distributed_sampler_kwargs = {"num_replicas": self.world_size} if self.world_size > 1 else None
        self._callback = callback
        self._validate_every = validate_every

    def save_checkpoint(self, path: Path) -> None:
        callback = self._callback.state_dict()
        if dist.get_rank() == 0:
            torch.save({"global_step": self.global_step, "callback": callback}, path)
        dist.barrier()

    def fit(self, steps: int, ckpt_path: str | None) -> None:
        if ckpt_path is not None:
            saved = torch.load(ckpt_path)
            self.global_step = saved["global_step"]
            self._callback.load_state_dict(saved["callback"])
        self._callback.on_train_start(self, None)
        batch_idx = 0
        while self.global_step < steps:
            time.sleep(0.005)
            batch_idx += 1
            self.global_step += batch_idx % BATCHES_PER_STEP == 0
            # Lightning divides the loss
            outputs = {"loss": torch.tensor(1.0 / self.global_step if self.global_step else 9.0) / BATCHES_PER_STEP}
            batch = {"ids": ["a"] * BATCH, "x": torch.zeros(BATCH, 5)}
            self._callback.on_train_batch_end(self, None, outputs, batch, batch_idx - 1)
            if batch_idx % self._validate_every == 0:
                self._callback.on_validation_start(self, None)
        self._callback.on_train_end(self, None)


class HuggingFaceTrainer:
    """transformers.Trainer: on_step_end, then (as `control` says) evaluation, saving and on_save."""

    def __init__(self, callback: Any, output_dir: Path) -> None:
        self._callback, self._output_dir = callback, output_dir
        self._state = SimpleNamespace(global_step=0, epoch=0.0, stateful_callbacks={})
        self._control = SimpleNamespace(should_save=False, should_evaluate=False, should_training_stop=False)

    def train(self, steps: int, resume_from_checkpoint: str | None) -> None:
        state, control = self._state, self._control
        args = SimpleNamespace(
            train_batch_size=BATCH, gradient_accumulation_steps=BATCHES_PER_STEP, world_size=dist.get_world_size()
        )
        if resume_from_checkpoint is not None:
            saved = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
            state.global_step, state.stateful_callbacks = saved["global_step"], saved["stateful_callbacks"]
        self._callback.on_train_begin(args, state, control, model=None)
        while not control.should_training_stop:  # looked at after a step: a complete training makes one more
            time.sleep(0.01)
            state.global_step += 1
            # the Trainer's own DefaultFlowCallback comes first
            control.should_training_stop = state.global_step >= steps
            control.should_save = state.global_step % 3 == 0 or control.should_training_stop  # save_steps=3
            control.should_evaluate = True
            self._callback.on_step_end(args, state, control, model=None)
            self._callback.on_log(args, state, control, logs={"loss": 1.0 / state.global_step, "epoch": 0.0})
            if control.should_evaluate:
                self._callback.on_log(args, state, control, logs={"eval_loss": 9.0, "epoch": 0.0})
            if control.should_save:
                self._save()
                control.should_save = False
                self._callback.on_save(args, state, control, model=None)
        self._callback.on_log(args, state, control, logs={"train_loss": 9.0, "train_runtime": 1.0})
        self._callback.on_train_end(args, state, control, model=None)

    def _save(self) -> None:
        if dist.get_rank() == 0:
            folder = self._output_dir / f"checkpoint-{self._state.global_step}"
            folder.mkdir(parents=True)
            callbacks = {type(self._callback).__name__: self._callback.state()}
            state = {"global_step": self._state.global_step, "stateful_callbacks": callbacks}
            (folder / "trainer_state.json").write_text(json.dumps(state))


def stand_in(framework: str) -> ModuleType:
    """The module that our callback imports."""
    module = ModuleType(framework)
    base = "TrainerCallback" if framework == "transformers" else "Callback"
    setattr(module, base, type(base, (), {}))
    exportable = type("ExportableState", (), {})
    module.trainer_callback = SimpleNamespace(ExportableState=exportable)  # type: ignore[attr-defined]  # made here
    module.plugins = SimpleNamespace(AsyncCheckpointIO=AsyncCheckpointIO)  # type: ignore[attr-defined]  # made here
    return module


def _be(job: Rank) -> None:
    os.environ.update(job.environ, GLOO_SOCKET_IFNAME="lo", SPOTSUP_ROUND=str(job.round))
    os.environ["SPOTSUP_CHECKPOINT_DIR"] = str(job.folder / "checkpoints")
    torch.set_num_threads(1)
    store = f"file://{job.folder}/store.{job.round}"
    dist.init_process_group("gloo", init_method=store, rank=job.rank, world_size=job.world)


def begin(job: Rank) -> None:
    """Only begin, after `steps` steps. What went wrong goes to `error.<round>.<rank>`."""
    from spotsup_trainer.callbacks.parking import Parking

    _be(job)
    try:
        Parking(job.steps)
    except RuntimeError as error:
        (job.folder / f"error.{job.round}.{job.rank}").write_text(str(error))


def look(job: Rank) -> None:
    """Ask twice which step rank 0 sees, as a rank of torchrun before torch.distributed is initialised."""
    from spotsup_trainer.callbacks.parking import as_rank_0_sees

    os.environ.update(job.environ, RANK=str(job.rank), WORLD_SIZE=str(job.world), TORCHELASTIC_RUN_ID="job")
    seen = [as_rank_0_sees(f"{job.steps}"), as_rank_0_sees(f"{job.steps + 1}")]
    (job.folder / f"seen.{job.round}.{job.rank}").write_text(" ".join(seen))


def train(job: Rank) -> None:
    """Train as `rank` says, from the newest checkpoint, whose name goes to `resumed.<round>.<rank>`."""
    _be(job)
    sys.modules[job.framework] = stand_in(job.framework)
    from spotsup_trainer import callbacks

    newest: str | None
    if job.framework == "transformers":
        callback = callbacks.SpotsupTrainerCallback()
        newest = callback.newest(job.folder / "checkpoints")
        HuggingFaceTrainer(callback, job.folder / "checkpoints").train(job.steps, newest)
    else:
        callback = callbacks.SpotsupLightningCallback(every_steps=3)
        newest = callback.newest()
        LightningTrainer(callback, job.validate_every).fit(job.steps, newest)
    (job.folder / f"resumed.{job.round}.{job.rank}").write_text(str(newest))
    dist.destroy_process_group()
