"""Where checkpoints are: a directory that all nodes share, or a folder of an object store, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from spotsup_trainer.objects import url as urls
from spotsup_trainer.session.checkpoint_dir import CheckpointDir, Owner, Position, checkpoints_in
from spotsup_trainer.session.retention import Retention

if TYPE_CHECKING:
    from typing import TypeAlias

    from spotsup_trainer.session.checkpoint_bucket import Folder

    # The data of one checkpoint, which snapshot.py writes and reads.
    Data: TypeAlias = Path | Folder


# Tries to read from an object store that does not answer, when training starts; each takes two minutes if requests
# hang. In all less than gloo's 30 min.
READ_TRIES = 5


class Checkpoint(Protocol):
    """A complete checkpoint."""

    @property
    def step(self) -> int:
        """Return the step that it is of."""
        ...

    @property
    def path(self) -> Data:
        """Return its data."""
        ...

    def position(self) -> Position:
        """Raise CheckpointError if it cannot be read."""
        ...


class Place(Protocol):
    """What `CheckpointDir` and `CheckpointBucket` have in common; each method is described there."""

    title: str

    @property
    def root(self) -> Path | str:
        """Return the place as users write it; `title` is as a sentence names it."""
        ...

    def checkpoints(self) -> Sequence[Checkpoint]:
        """As CheckpointDir says."""
        ...

    def remember_owner(self) -> Owner | None:
        """As CheckpointDir says."""
        ...

    def claim(self, restored_step: int) -> None:
        """As CheckpointDir says."""

    def staging(self, step: int) -> Data:
        """As CheckpointDir says."""
        ...

    def begin(self) -> None:
        """Take note that a checkpoint is about to be written, on every rank."""

    def complete(self, position: Position) -> None:
        """As CheckpointDir says."""

    def discard(self, step: int) -> None:
        """As CheckpointDir says."""


def open_place(place: Path | str, owner: Owner, keep: Retention) -> Place:
    """Return the place for checkpoints at a folder or an address. Raises ValueError, and StoreError without obstore."""
    if isinstance(place, Path) and place.parts and place.parts[0] in {f"{scheme}:" for scheme in urls.SCHEMES}:
        raise ValueError(f"{place} was an address, and a Path has changed it: pass the address as text")
    if not urls.is_url(str(place)):
        return CheckpointDir(Path(place), owner, keep)
    from spotsup_trainer.objects.store import open_store
    from spotsup_trainer.session.checkpoint_bucket import CheckpointBucket

    return CheckpointBucket(open_store(urls.checked(str(place))), owner, keep)


def checkpoints_at(place: Path | str) -> Sequence[Checkpoint]:
    """Return the complete checkpoints at a folder or an address, the newest first. Raises OSError, CheckpointError."""
    if not urls.is_url(str(place)):
        return checkpoints_in(Path(place))
    from spotsup_trainer.objects.store import open_store
    from spotsup_trainer.session.checkpoint_bucket import bucket_checkpoints

    return bucket_checkpoints(open_store(urls.checked(str(place))))
