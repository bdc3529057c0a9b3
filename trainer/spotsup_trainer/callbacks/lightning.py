"""The callback for Lightning. Importing this needs lightning or pytorch_lightning."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotsup_trainer.callbacks.parking import Parking, as_rank_0_sees
from spotsup_trainer.session.batch_size import batch_size
from spotsup_trainer.worker_files import earlier_folders

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _framework() -> Any:
    """Return the package that the script has imported, else the installed one: their classes are not
    interchangeable."""
    for name in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("SpotsupLightningCallback needs lightning or pytorch_lightning, and neither can be imported here")


class SpotsupLightningCallback(_framework().Callback):  # type: ignore[misc]  # Lightning may not be installed
    """On a notice, makes the Trainer save this very step, on all ranks, and parks.

    The loss that `training_step` returns, and the number of samples, are shown in `spotsupctl status` and `report`.

    It also saves every `every_steps`, and in a spotsup job before each validation: a notice during a validation waits
    for the next step, but loses none.

    Checkpoints are Lightning's own, below `directory` (default: SPOTSUP_CHECKPOINT_DIR, which a spotsup job sets), the
    `keep` newest. Raises ValueError without a directory, TypeError if the Trainer writes them in the background.
    To resume:

        callback = SpotsupLightningCallback(every_steps=500)
        trainer = Trainer(..., callbacks=[callback], num_nodes=int(os.environ["GROUP_WORLD_SIZE"]))
        trainer.fit(model, ckpt_path=callback.newest())
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        every_steps: int | None = None,
        keep: int = 2,
        park_timeout_s: float = 120.0,
    ) -> None:
        super().__init__()
        directory = directory or os.environ.get("SPOTSUP_CHECKPOINT_DIR")
        if not directory:
            raise ValueError(
                "no directory for checkpoints: outside a spotsup job, pass directory=; in one, the job's `checkpoints` "
                "has to be a folder, for this callback writes to no object store"
            )
        if keep < 1 or (every_steps is not None and every_steps < 1):
            raise ValueError(f"keep is {keep}, every_steps is {every_steps}; they must be at least 1")
        self._directory = Path(directory)
        self._every_steps, self._keep = every_steps, keep
        self._park_timeout_s = park_timeout_s
        self._parking: Parking | None = None
        self._step = self._samples = 0

    def newest(self) -> str | None:
        """Return the newest complete checkpoint, the same on all ranks (collective); None without one.

        A job that was submitted with --resume-from and has none yet takes that of the earlier job.
        """
        folders = (self._directory, *earlier_folders(os.environ))
        checkpoints = next(filter(None, map(_checkpoints_in, folders)), [])
        return as_rank_0_sees(str(checkpoints[0]) if checkpoints else "") or None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # the framework's
        """Begin: the process group exists now: agree with all ranks."""
        if isinstance(trainer.strategy.checkpoint_io, _framework().plugins.AsyncCheckpointIO):
            raise TypeError("AsyncCheckpointIO does not report when a checkpoint is complete: do not use it")
        self._step = trainer.global_step
        self._parking = Parking(self._step, park_timeout_s=self._park_timeout_s)
        if self._parking.rank == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            for leftover in self._directory.glob("step_*.ckpt.tmp"):
                _remove(leftover)
        self._parking.all_here()

    def state_dict(self) -> dict[str, Any]:
        """Return for Lightning's checkpoints: the samples that all ranks have trained on."""
        return {"samples": self._samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do the reverse."""
        self._samples = state_dict["samples"]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:  # noqa: ARG002  # the framework's
        """Lightning's own ModelCheckpoint saves here, too. Within an accumulated step, samples are counted only."""
        assert self._parking is not None
        self._samples += batch_size(batch) * _replicas(trainer)
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        loss = _loss(outputs, trainer.accumulate_grad_batches)
        leaving = self._parking.step_done(self._step, trainer.current_epoch, loss=loss, samples=self._samples)
        if leaving or (self._every_steps is not None and self._step % self._every_steps == 0):
            self._save(trainer, self._parking)
        if leaving:
            self._parking.park()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # the framework's
        """Save first: a validation can take longer than a node has left."""
        parking = self._parking
        if parking is not None and parking.active and not parking.is_saved:
            self._save(trainer, parking)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # the framework's
        """Save no more: `trainer.validate` may follow."""
        assert self._parking is not None
        self._parking.ended()
        self._parking = None

    def _save(self, trainer: Any, parking: Parking) -> None:
        """Save: all ranks write under a temporary name, so that a checkpoint with its final name is complete."""
        target = self._directory / f"step_{self._step:08d}.ckpt"
        temporary = target.with_name(f"{target.name}.tmp")
        trainer.save_checkpoint(temporary)  # a file, or a directory where the strategy shards; waits for all ranks
        parking.all_here()
        if parking.rank == 0:
            if target.is_dir():
                shutil.rmtree(target)
            temporary.replace(target)
            for old in _checkpoints_in(self._directory)[self._keep :]:
                _remove(old)
        parking.saved()


def _loss(outputs: Any, accumulated: int) -> Any:
    """Return the loss of the last micro-batch, as `training_step` returned it; None where it returned none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    # Lightning has divided it
    return None if loss is None else loss * accumulated


def _replicas(trainer: Any) -> int:
    """Ranks with samples of their own; below tensor parallelism these are fewer than the ranks."""
    return int((trainer.distributed_sampler_kwargs or {}).get("num_replicas", trainer.world_size))


def _checkpoints_in(folder: Path) -> list[Path]:
    """Return the newest checkpoints first."""
    found = (path for path in folder.glob("step_*.ckpt") if re.fullmatch(r"step_\d{8,}\.ckpt", path.name))
    return sorted(found, key=lambda path: int(path.stem.removeprefix("step_")), reverse=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
