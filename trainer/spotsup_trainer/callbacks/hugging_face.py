"""The callback for Hugging Face's Trainer. Importing this needs transformers."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

from spotsup_trainer.callbacks.parking import Parking, as_rank_0_sees
from spotsup_trainer.worker_files import earlier_folders

try:
    _transformers: Any = importlib.import_module("transformers")
except ImportError as error:
    raise ImportError("SpotsupTrainerCallback needs transformers, which cannot be imported here") from error


# What a callback with a state of its own is, which the Trainer's checkpoints hold, from transformers 4.42 on.
_WithState: Any = getattr(_transformers.trainer_callback, "ExportableState", object)


class SpotsupTrainerCallback(_transformers.TrainerCallback, _WithState):  # type: ignore[misc]  # may not be installed
    """On a notice, makes the Trainer save this very step into its `output_dir`, on all ranks, and parks.

    All other checkpoints are the Trainer's own (`save_strategy`, `save_steps`). To resume:

        callback = SpotsupTrainerCallback()
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.newest(training_args.output_dir))

    The loss is the one that the Trainer logs every `logging_steps`; with the number of samples it is shown in
    `spotsupctl status` and `report`.

    The last step of training does not park, because the script goes on to its end. A notice during an evaluation waits
    for the next step, because the Trainer cannot save before it evaluates.
    """

    def __init__(self, *, park_timeout_s: float = 120.0) -> None:
        self._park_timeout_s = park_timeout_s
        self._parking: Parking | None = None
        self._leaving = False
        self._loss: float | None = None
        self.samples = 0

    @staticmethod
    def newest(output_dir: str | os.PathLike[str]) -> str | None:
        """Return the newest complete checkpoint below `output_dir`, the same on all ranks (collective); None without
        one.

        A job that was submitted with --resume-from and has none yet takes that of the earlier job.
        transformers' own get_last_checkpoint takes the highest number, even if its writer was killed before it was
        done; the Trainer writes `trainer_state.json` last.
        """
        for folder in (Path(output_dir), *earlier_folders(os.environ)):
            found = {
                int(match[1]): path
                for path in folder.glob("checkpoint-*")
                if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and _is_whole(path / "trainer_state.json")
            }
            if found:
                break
        return as_rank_0_sees(str(found[max(found)]) if found else "") or None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the framework's
        """Begin: the process group exists now: agree with all ranks."""
        self._parking = Parking(state.global_step, park_timeout_s=self._park_timeout_s)
        self._loss, self.samples = None, _samples(state)

    def state(self) -> dict[str, Any]:
        """Return for the Trainer's checkpoints: how to make this callback, and its attributes."""
        return {"args": {"park_timeout_s": self._park_timeout_s}, "attributes": {"samples": self.samples}}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002  # the framework's
        """Use that the Trainer has read its loss: no rank waits for it once more."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """After an optimizer step of any number of batches: request a checkpoint if a node must leave."""
        assert self._parking is not None
        # the last step of an epoch may have fewer: the Trainer's own samples per second count them in the same way
        self.samples += args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        leaving = self._parking.step_done(
            state.global_step, int(state.epoch or 0), loss=self._loss, samples=self.samples
        )
        # a Trainer that resumes after its last step makes one more before it sees that training is over
        self._leaving = leaving and not control.should_training_stop
        if self._leaving:
            control.should_save = True
            control.should_evaluate = False  # evaluation comes before saving, and there is no time for it
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the framework's
        """Take note that the Trainer has saved."""
        assert self._parking is not None
        self._parking.saved()
        if self._leaving:
            self._parking.park()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the framework's
        """Report the last step."""
        assert self._parking is not None
        self._parking.ended()


def _samples(state: Any) -> int:
    """Return those that the checkpoint which `state` is from has counted; 0 if it is none of ours."""
    saved = (getattr(state, "stateful_callbacks", None) or {}).get("SpotsupTrainerCallback")
    return int(saved["attributes"]["samples"]) if isinstance(saved, dict) else 0


def _is_whole(file: Path) -> bool:
    """True if the file is complete: the Trainer does not write it atomically."""
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
