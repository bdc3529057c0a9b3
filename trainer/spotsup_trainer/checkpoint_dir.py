"""Where checkpoints lie, and when one counts: it is complete, or it is not there. Standard library only.

    step_00000150/               complete: data and `.metadata` by torch.distributed.checkpoint, and `session.json`
    step_00000200.4f3a….tmp/     being written; made `step_00000200` by one rename, once all of it is on the disk
    step_00000175.aside/         set aside: not restored, because it cannot be read or belongs to an abandoned history;
                                 only the newest of these is kept
    LATEST                       the name of the newest, written last; for people and tools, not read by us
    OWNER                        who may complete checkpoints: the process that began to train last

Only rank 0 calls what changes anything here. Paths may be on NFS: a rename is the only thing that is relied on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

POSITION_FILE = "session.json"
LATEST_FILE = "LATEST"
OWNER_FILE = "OWNER"
_COMPLETE = re.compile(r"step_(\d{8,})")
_ASIDE = re.compile(r"step_(\d{8,})\.aside")
_LEFTOVER = re.compile(r"(step_\d{8,}|LATEST|OWNER)\..*tmp")


class CheckpointError(Exception):
    """A checkpoint could not be written, or none could be read. Says where, and what would help."""


class SupersededError(CheckpointError):
    """Another process trains this job now: this one was cut off, and must stop."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far training is, next to the tensors: all that a Session needs to go on where it stopped.

    `step`: completed optimizer steps. `epoch`, `offset`: the sampler's cursor. `samples`: trained on, over all epochs.
    `rng_seed`: from which each restart makes new random streams. `data_length`, `data_seed`, `data_shuffled`: what the
    epoch's order was made from. `round`, `world`: of the round that wrote it, for people.
    """

    step: int
    epoch: int = 0
    offset: int = 0
    samples: int = 0
    rng_seed: int = 0
    data_length: int = 0
    data_seed: int = 0
    data_shuffled: int = 1
    round: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory that has a complete checkpoint's name."""

    step: int
    path: Path

    def position(self) -> Position:
        """What `session.json` says. Raises CheckpointError where it is not there or not one."""
        path = self.path / POSITION_FILE
        try:
            parsed = json.loads(path.read_text())
            known = {spec.name for spec in fields(Position)}
            position = Position(**{name: int(value) for name, value in parsed.items() if name in known})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if position.step != self.step:
            raise CheckpointError(f"{path} says step {position.step}")
        return position


class CheckpointDir:
    """The checkpoints below `root`, the `keep` newest of which are kept.

    `token` is this process's own: it names its unfinished checkpoints and its ownership.
    """

    def __init__(self, root: Path, token: str, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must be kept, 2 or more to survive a broken one")
        self.root = root
        self._token = token
        self._keep = keep

    def checkpoints(self) -> list[Checkpoint]:
        """The newest first; none where the directory does not exist."""
        if not self.root.is_dir():
            return []
        found = [
            Checkpoint(int(match[1]), entry)
            for entry in self.root.iterdir()
            if (match := _COMPLETE.fullmatch(entry.name)) and entry.is_dir()
        ]
        return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)

    def claim(self, restored_step: int) -> None:
        """From now on only this process completes checkpoints here. Call it when training goes on from
        `restored_step`: newer checkpoints are set aside, because their steps are about to be done again; so the newest
        name is always the one to restore. What earlier processes left unfinished is removed.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self._replace(OWNER_FILE, self._token)
        for checkpoint in self.checkpoints():
            if checkpoint.step > restored_step:
                aside = self.root / f"{checkpoint.path.name}.aside"
                shutil.rmtree(aside, ignore_errors=True)
                checkpoint.path.rename(aside)
        asides = sorted(entry for entry in self.root.iterdir() if _ASIDE.fullmatch(entry.name))
        leftovers = [entry for entry in self.root.iterdir() if _LEFTOVER.fullmatch(entry.name)]
        for entry in asides[:-1] + leftovers:
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)

    def staging(self, step: int) -> Path:
        """Where the ranks write the data of a step's checkpoint."""
        return self.root / f"step_{step:08d}.{self._token}.tmp"

    def complete(self, position: Position) -> None:
        """Make what lies in `staging` the checkpoint of its step, durably, and remove what is too old.

        Raises OSError where the disk refuses, SupersededError where another process has claimed the directory.
        """
        self._check_owner()
        staging = self.staging(position.step)
        _write_durably(staging / POSITION_FILE, json.dumps(asdict(position)))
        _sync_dir(staging)
        target = self.root / f"step_{position.step:08d}"
        if target.exists():
            target.rename(self.root / f"{target.name}.{self._token}.old.tmp")
        staging.rename(target)
        _sync_dir(self.root)
        self._replace(LATEST_FILE, target.name)
        self._prune()

    def discard(self, step: int) -> None:
        """Remove an unfinished checkpoint. What cannot be removed now, the next `claim` removes."""
        shutil.rmtree(self.staging(step), ignore_errors=True)

    def _check_owner(self) -> None:
        try:
            owner = (self.root / OWNER_FILE).read_text()
        except FileNotFoundError:
            return  # the claim failed on a full or read-only disk, and no one else made one
        if owner != self._token:
            raise SupersededError(
                f"another process (token {owner}) trains with {self.root} now: this one (token {self._token}) was "
                "replaced and must stop; if both are meant to run, give each its own checkpoint directory"
            )

    def _prune(self) -> None:
        for checkpoint in self.checkpoints()[self._keep :]:
            doomed = self.root / f"{checkpoint.path.name}.{self._token}.old.tmp"
            checkpoint.path.rename(doomed)
        for entry in self.root.glob(f"step_*.{self._token}.old.tmp"):
            shutil.rmtree(entry, ignore_errors=True)

    def _replace(self, name: str, text: str) -> None:
        temporary = self.root / f"{name}.{self._token}.tmp"
        _write_durably(temporary, text)
        temporary.replace(self.root / name)
        _sync_dir(self.root)


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
