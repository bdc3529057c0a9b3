"""The checkpoint directory. A checkpoint is complete, or it does not exist. Standard library only.

    step_00000150/               complete: data and `.metadata` by torch.distributed.checkpoint, and `session.json`
    step_00000200.4f3a….tmp/     being written; renamed to `step_00000200` once all of it is on the disk
    step_00000150.before/        what step_00000150 was, while it is written again; complete where that is not there
    step_00000175.aside/         set aside: not restored, because it cannot be read or belongs to an abandoned history;
                                 only the newest of these is kept
    LATEST                       the name of the newest, written last; for people and tools, not read by us
    OWNER                        which process may complete checkpoints: round and token of the last that began to train

Only rank 0 writes here. The directory may be on NFS: nothing but an atomic rename is required of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import zlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from spotsup_trainer.session.retention import Best, Retention

POSITION_FILE = "session.json"
METADATA_FILE = ".metadata"  # DCP's
LATEST_FILE = "LATEST"
OWNER_FILE = "OWNER"
_COMPLETE = re.compile(r"(?P<name>step_(?P<step>\d{8,}))")
_BEFORE = re.compile(rf"{_COMPLETE.pattern}\.before")
_ASIDE = re.compile(r"step_(\d{8,})\.aside")
_LEFTOVER = re.compile(r"(step_\d{8,}|LATEST|OWNER)\..*tmp")


class CheckpointError(Exception):
    """A checkpoint could not be written, or none could be read. The message names the path and the remedy."""


class SupersededError(CheckpointError):
    """Another process trains with this directory now; this one must stop."""


@dataclass(frozen=True)
class Position:
    """How far training is: everything beside the tensors that a Session needs to resume."""

    # Completed optimizer steps.
    step: int
    # The sampler's cursor.
    epoch: int = 0
    offset: int = 0
    # Samples trained on, over all epochs.
    samples: int = 0
    # Each restart derives its random streams from this.
    rng_seed: int = 0
    # The order of the epoch's samples was made from these.
    data_length: int = 0
    data_seed: int = 0
    # 0: the data set's own order, 1: shuffled, 2: that of the program's batch sampler, 3: of its own loader.
    data_shuffled: int = 1
    # Of how many epochs the program has also done what follows their last batch; -1: it does not say.
    epochs_closed: int = -1
    # By metric; see retention.py.
    best: tuple[Best, ...] = field(default=(), compare=False)
    # Of the round that wrote it; for people.
    round: int = 0
    world: int = 1
    # Of the copy of the state that it belongs to, a number of its own; 0: none was made. See survivors.py.
    snapshot: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Owner:
    """The process that may complete checkpoints: its round (0 outside of spotsup jobs), and a token of its own."""

    round: int
    token: str

    def __str__(self) -> str:
        return f"{self.round} {self.token}"

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Return the reverse of `str`. Any other text counts as an owner of round 0."""
        number, _, token = text.partition(" ")
        return cls(int(number), token) if number.isdigit() else cls(0, text)


@dataclass(frozen=True)
class Checkpoint:
    """A directory that has a complete checkpoint's name."""

    step: int
    path: Path

    def position(self) -> Position:
        """Return the content of `session.json`. Raises CheckpointError if it cannot be read."""
        path = self.path / POSITION_FILE
        try:
            parsed = json.loads(path.read_text())
            _check_seal(parsed, self.path)
            return position_in(parsed, str(path), self.step)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error


def position_in(parsed: Any, where: str, step: int) -> Position:
    """Return a position as it was written, which has to be of `step`. Raises CheckpointError."""
    try:
        known = {spec.name for spec in fields(Position)} - {"best"}
        best = tuple(Best(**each) for each in parsed.get("best", ()))
        position = Position(**{name: int(value) for name, value in parsed.items() if name in known}, best=best)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where} cannot be read: {error}") from error
    if position.step != step:
        raise CheckpointError(f"{where} says step {position.step}")
    return position


def checkpoints_in(root: Path) -> list[Checkpoint]:
    """Return the complete checkpoints below `root`, the newest first; none if it does not exist.

    Raises OSError for any other answer: an automounter that cannot mount says ELOOP, and that is no fresh start.
    Path.is_dir() takes it for a no, from Python 3.14 on any error.
    """
    try:
        entries = list(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = {entry.name for entry in entries}
    found = [
        Checkpoint(int(match["step"]), entry)
        for entry in entries
        if (match := _COMPLETE.fullmatch(entry.name) or _BEFORE.fullmatch(entry.name))
        and (entry.name == match["name"] or match["name"] not in names)
        and stat.S_ISDIR(entry.stat().st_mode)
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)


class CheckpointDir:
    """The checkpoints below `root`, of which some are kept, as `owner` sees them.

    The owner's token names its unfinished checkpoints.
    """

    def __init__(self, root: Path, owner: Owner, keep: Retention) -> None:
        self.root = root
        self.title = f"the checkpoint directory {root}"
        self._owner = owner
        self._keep = keep
        self._owner_before: Owner | None = None
        self._claimed = False

    def checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints, the newest first; none if the directory does not exist."""
        return checkpoints_in(self.root)

    def remember_owner(self) -> Owner | None:
        """Return the owner now. To be called before a checkpoint is read: a later `claim` may replace it. Raises
        OSError."""
        self._owner_before = self._read_owner()
        return self._owner_before

    def claim(self, restored_step: int) -> None:
        """Make this process the only one that completes checkpoints here. Call it when training goes on from
        `restored_step`.

        Unfinished checkpoints of earlier processes are removed first, because they may fill the disk. Checkpoints newer
        than `restored_step` are set aside, because their steps are about to be repeated; so the newest name is always
        the one to restore.

        A second call does nothing. Raises OSError if the disk refuses (then call it again later), SupersededError if a
        process that is not older has claimed the directory since `remember_owner`.
        """
        if self._claimed:
            return
        current = self._read_owner() or self._owner
        if current not in {self._owner, self._owner_before} and current.round >= self._owner.round:
            raise self._superseded_by(current)
        self.root.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        self._remove_replaced()
        self._replace(OWNER_FILE, str(self._owner))
        for checkpoint in self.checkpoints():
            if checkpoint.step > restored_step:
                aside = self.root / f"step_{checkpoint.step:08d}.aside"
                shutil.rmtree(aside, ignore_errors=True)
                checkpoint.path.rename(aside)
        for old in self._asides()[:-1]:
            shutil.rmtree(old, ignore_errors=True)
        self._claimed = True

    def staging(self, step: int) -> Path:
        """Return where the ranks write the data of a step's checkpoint."""
        return self.root / f"step_{step:08d}.{self._owner.token}.tmp"

    def begin(self) -> None:
        """Begin the next checkpoint: the next checkpoint is written: over what an earlier attempt left."""

    def complete(self, position: Position) -> None:
        """Turn `staging` into the checkpoint of its step, durably, and remove old checkpoints.

        Raises OSError if the disk refuses, SupersededError if another process has claimed the directory.
        """
        current = self._read_owner() or self._owner
        if current != self._owner:
            raise self._superseded_by(current)
        staging = self.staging(position.step)
        _write_durably(staging / POSITION_FILE, _sealed(asdict(position), staging))
        _sync_dir(staging)
        target = self.root / f"step_{position.step:08d}"
        if target.exists():
            # At every instant one of the two is there: a machine may be taken now.
            before = self.root / f"{target.name}.before"
            shutil.rmtree(before, ignore_errors=True)
            target.rename(before)
        staging.rename(target)
        _sync_dir(self.root)
        self._prune(position)
        self._replace(LATEST_FILE, target.name)

    def discard(self, step: int) -> None:
        """Remove an unfinished checkpoint. If that fails, the next `complete` or `claim` does it."""
        shutil.rmtree(self.staging(step), ignore_errors=True)

    def _read_owner(self) -> Owner | None:
        """None if no process has claimed the directory, or its files were removed by hand."""
        try:
            return Owner.parse((self.root / OWNER_FILE).read_text())
        except FileNotFoundError:
            return None

    def _superseded_by(self, owner: Owner) -> SupersededError:
        return SupersededError(
            f"another process ({owner}) trains with {self.root} now, so this one ({self._owner}) must stop; "
            "if both are meant to run, give each its own checkpoint directory"
        )

    def _asides(self) -> list[Path]:
        return sorted(entry for entry in self.root.iterdir() if _ASIDE.fullmatch(entry.name))

    def _remove_leftovers(self) -> None:
        for entry in list(self.root.iterdir()):
            if not _LEFTOVER.fullmatch(entry.name) or f".{self._owner.token}." in entry.name:
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)

    def _doomed(self, checkpoint: Path) -> Path:
        """Return an unused name for a complete checkpoint that is about to be removed."""
        doomed = self.root / f"{checkpoint.name}.{self._owner.token}.old.tmp"
        shutil.rmtree(doomed, ignore_errors=True)
        return doomed

    def _prune(self, newest: Position) -> None:
        """Remove old checkpoints, and files that this process could not remove before."""
        found = self.checkpoints()
        kept = self._keep.kept((checkpoint.step for checkpoint in found), newest.best)
        for checkpoint in found:
            if checkpoint.step not in kept:
                checkpoint.path.rename(self._doomed(checkpoint.path))
        for entry in self.root.glob(f"step_*.{self._owner.token}.*tmp"):
            shutil.rmtree(entry, ignore_errors=True)
        self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Remove what was written again; where that was interrupted, what it was before gets its name back."""
        for entry in self.root.glob("step_*.before"):
            target = entry.with_suffix("")
            if target.exists():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.rename(target)

    def _replace(self, name: str, text: str) -> None:
        temporary = self.root / f"{name}.{self._owner.token}.tmp"
        try:
            _write_durably(temporary, text)
            temporary.replace(self.root / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
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


def _sealed(fields: dict[str, Any], folder: Path) -> str:
    """Return the text of `session.json`, with checksums of itself and of DCP's metadata in the same folder."""
    metadata = folder / METADATA_FILE
    whole = {**fields, "metadata_crc32": zlib.crc32(metadata.read_bytes()) if metadata.exists() else None}
    return json.dumps({**whole, "crc32": _crc32(whole)})


def _check_seal(fields: Any, folder: Path) -> None:
    """Raise ValueError if either is not what was written, and OSError. Without checksums, as before, nothing is."""
    if not isinstance(fields, dict) or "crc32" not in fields:
        return
    whole = {name: value for name, value in fields.items() if name != "crc32"}
    if _crc32(whole) != fields["crc32"]:
        raise ValueError("it is not what was written: it is damaged")
    expected = whole.get("metadata_crc32")
    if expected is not None and zlib.crc32((folder / METADATA_FILE).read_bytes()) != expected:
        raise ValueError(f"{METADATA_FILE} beside it is not what was written: it is damaged")


def _crc32(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
