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


class SpotsupTrainerCallback(_transformers.TrainerCallback):  # type: ignore[misc]  # transformers may not be installed
    """On a notice, makes the Trainer save this very step into its `output_dir`, on all ranks, and parks.

    All other checkpoints are the Trainer's own (`save_strategy`, `save_steps`). To resume:

        callback = SpotsupTrainerCallback()
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.newest(training_args.output_dir))

    The last step of training does not park, because the script goes on to its end. A notice during an evaluation waits
    for the next step, because the Trainer cannot save before it evaluates.
    """

    def __init__(self, *, park_timeout_s: float = 120.0) -> None:
        self._park_timeout_s = park_timeout_s
        self._parking: Parking | None = None
        self._leaving = False

    @staticmethod
    def newest(output_dir: str | os.PathLike[str]) -> str | None:
        """The newest complete checkpoint below `output_dir`, the same on all ranks (collective); None without one.

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
        """The process group exists now: agree with all ranks."""
        self._parking = Parking(state.global_step, park_timeout_s=self._park_timeout_s)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002  # the framework's
        """After an optimizer step of any number of batches: request a checkpoint if a node must leave."""
        assert self._parking is not None
        leaving = self._parking.step_done(state.global_step, int(state.epoch or 0))
        # a Trainer that resumes after its last step makes one more before it sees that training is over
        self._leaving = leaving and not control.should_training_stop
        if self._leaving:
            control.should_save = True
            control.should_evaluate = False  # evaluation comes before saving, and there is no time for it
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the framework's
        """The Trainer has saved."""
        assert self._parking is not None
        self._parking.saved()
        if self._leaving:
            self._parking.park()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the framework's
        """Report the last step."""
        assert self._parking is not None
        self._parking.ended()


def _is_whole(file: Path) -> bool:
    """Whether the file is complete: the Trainer does not write it atomically."""
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
