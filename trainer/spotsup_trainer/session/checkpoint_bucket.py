"""Checkpoints in an object store. A checkpoint is complete, or it does not exist. Without torch.

    index.json                          which process may complete checkpoints, and which checkpoints are complete
    step_00000150.r4-4f3a….1/           one checkpoint: round and token of its writer, and the number of the attempt
        __0_0.distcp.00000 …            data and `.metadata` by torch.distributed.checkpoint: see object_files.py
        manifest.json                   position, and name, size and etag of each object; written last

An object store has no rename, so nothing is moved, and no object is written twice but the index. Each change of the
index is one conditional write: it fails if any other process has written the index since it was read. So of two
processes that claim the same place, only one at a time can complete checkpoints, whatever is delayed on the way, and
what the other one writes stays in folders of its own, which the index does not name.

Only rank 0 writes here, but for the data.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from spotsup_trainer.objects.store import ChangedError, Object, Store, StoreError
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Owner, Position, SupersededError, position_in
from spotsup_trainer.session.retention import Retention

INDEX = "index.json"
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step_(\d{8,})\.r(\d+)-([0-9a-f]+)\.(\d+)")
# Of processes that once owned this place. More than a few are there only if their folders could not be deleted.
_MAX_PAST = 50
_SWAPS = 5


@dataclass(frozen=True)
class Folder:
    """The objects of one checkpoint."""

    store: Store
    name: str

    def __str__(self) -> str:
        return f"{self.store.url}/{self.name}"

    @property
    def step(self) -> int:
        """Return the step that it is of."""
        return _step_of(self.name)

    def objects(self) -> list[Object]:
        """Return what is there now, by names within the folder. Raises StoreError."""
        skip = len(self.name) + 1
        return [replace(each, name=each.name[skip:]) for each in self.store.listed(self.name)]

    def manifest(self) -> dict[str, Any] | None:
        """Return its manifest; None while it is being written. Raises StoreError while the store does not answer."""
        found = self.store.get(f"{self.name}/{MANIFEST}")
        return json.loads(found[0]) if found else None

    def written(self) -> list[Object]:
        """Return what the manifest says that was written. Raises CheckpointError, and StoreError as above."""
        try:
            manifest = self.manifest()
            if manifest is None:
                raise CheckpointError(f"{self}/{MANIFEST} was deleted")
            return [Object(*each) for each in manifest["objects"]]
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{self}/{MANIFEST} cannot be read: {error!r}") from error

    def checked_objects(self) -> list[Object]:
        """Return what is there; that it is what was written, if there is a manifest. Raises as above."""
        listed = self.objects()
        found = [each for each in listed if each.name != MANIFEST]
        written = self.written() if len(listed) > len(found) else found
        if found != written:
            have = {each.name: each for each in found}
            wrong = next(each for each in [*written, *found] if have.get(each.name) != each or each not in written)
            what = "was deleted" if wrong.name not in have else "is not what was written"
            raise CheckpointError(f"{self}/{wrong.name} {what}")
        return found


@dataclass(frozen=True)
class BucketCheckpoint:
    """A complete checkpoint."""

    step: int
    path: Folder

    def position(self) -> Position:
        """As its manifest says. Raises CheckpointError if it says none, StoreError while the store does not answer."""
        where = f"{self.path}/{MANIFEST}"
        try:
            manifest = self.path.manifest()
            if manifest is None:
                raise CheckpointError(f"{where} was deleted")
            return position_in(manifest["position"], where, self.step)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{where} cannot be read: {error!r}") from error


@dataclass(frozen=True)
class Index:
    """The content of index.json."""

    owner: Owner | None = None
    # Folders of complete checkpoints, the newest first.
    complete: tuple[str, ...] = ()
    # The newest checkpoint of an abandoned history, kept for people: not restored.
    aside: str = ""
    # Tokens of earlier owners. They can complete nothing any more, so what they left may be deleted.
    past: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """As JSON."""
        return json.dumps({**asdict(self), "owner": str(self.owner) if self.owner else None}, indent=1).encode()

    @classmethod
    def decoded(cls, text: bytes) -> Index:
        """Return the reverse of `encoded`. Raises ValueError."""
        try:
            found = json.loads(text)
            owner = Owner.parse(found["owner"]) if found["owner"] else None
            names, past = tuple(map(str, found["complete"])), tuple(map(str, found["past"]))
            return cls(owner, tuple(name for name in names if _FOLDER.fullmatch(name)), str(found["aside"]), past)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{error!r}") from error


def bucket_checkpoints(store: Store) -> list[BucketCheckpoint]:
    """Return the complete checkpoints in `store`, the newest first. Raises StoreError, CheckpointError."""
    return [BucketCheckpoint(_step_of(name), Folder(store, name)) for name in _read(store)[0].complete]


class CheckpointBucket:
    """The checkpoints in `store`, as `CheckpointDir` has them in a directory, as `owner` sees them. Every call may
    raise StoreError, which is an OSError."""

    def __init__(self, store: Store, owner: Owner, keep: Retention) -> None:
        self.root = store.url
        self.title = f"the object store {store.url}"
        self._store = store
        self._owner = owner
        self._keep = keep
        self._owner_before: Owner | None = None
        self._claimed = False
        self._attempt = 0
        # A folder that the index may name, although the write of the index has failed: its answer may have been lost.
        self._unsure = ""

    def checkpoints(self) -> list[BucketCheckpoint]:
        """Return the complete checkpoints, the newest first."""
        return bucket_checkpoints(self._store)

    def remember_owner(self) -> Owner | None:
        """Return the owner now. Call it before reading a checkpoint: a later `claim` may replace this owner."""
        self._owner_before = _read(self._store)[0].owner
        return self._owner_before

    def claim(self, restored_step: int) -> None:
        """As `CheckpointDir.claim`: this process alone completes checkpoints here from now on, and newer ones than
        `restored_step` are set aside. Raises SupersededError."""
        if self._claimed:
            return
        for _ in range(_SWAPS):
            index, etag = _read(self._store)
            before = index.owner or self._owner
            if before not in {self._owner, self._owner_before} and before.round >= self._owner.round:
                raise self._superseded_by(before)
            newer = [name for name in index.complete if _step_of(name) > restored_step]
            if newer and len(newer) == len(index.complete):
                # The one that this process has read was removed meanwhile: until it has completed one itself, another
                # history is better than none.
                newer = newer[1:]
            past = index.past if before == self._owner else (*index.past, before.token)
            claimed = Index(
                self._owner,
                tuple(name for name in index.complete if name not in newer),
                newer[0] if newer else index.aside,
                past[-_MAX_PAST:],
            )
            if self._swap(claimed, etag):
                break
        else:
            raise StoreError(f"{self.root}/{INDEX} is changed by other processes all the time")
        self._claimed = True
        self._remove_leftovers(claimed)

    def staging(self, step: int) -> Folder:
        """Return where the ranks write the data of a step's checkpoint. The same on all ranks until `begin` is
        called."""
        return Folder(self._store, f"step_{step:08d}.r{self._owner.round}-{self._owner.token}.{self._attempt}")

    def begin(self) -> None:
        """Begin the next checkpoint: the next checkpoint is written, on every rank: it gets a folder that no earlier
        attempt wrote to."""
        self._attempt += 1

    def complete(self, position: Position) -> None:
        """Turn `staging` into the checkpoint of its step, and remove old checkpoints. Raises SupersededError."""
        folder = self.staging(position.step)
        objects = [[each.name, each.size, each.etag] for each in folder.objects() if each.name != MANIFEST]
        manifest = {"position": asdict(position), "objects": objects}
        index, etag = _read(self._store)
        self._expect_own(index)
        folder.store.put(f"{folder.name}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
        for _ in range(_SWAPS):
            older = [name for name in index.complete if _step_of(name) < position.step]
            newer = [name for name in index.complete if _step_of(name) > position.step]
            names = (folder.name, *older)
            kept = self._keep.kept(map(_step_of, names), position.best)
            completed = replace(
                index,
                owner=self._owner,
                complete=tuple(name for name in names if _step_of(name) in kept),
                aside=newer[0] if newer else index.aside,
            )
            self._unsure = folder.name
            if self._swap(completed, etag):
                break
            index, etag = _read(self._store)
            if folder.name not in {*index.complete, index.aside}:
                self._unsure = ""  # else it was our own write, sent twice, and a newer owner may have read it since
            self._expect_own(index)
        else:
            raise StoreError(f"{self.root}/{INDEX} is changed by other processes all the time")
        self._remove_leftovers(completed)

    def discard(self, step: int) -> None:
        """Remove an unfinished checkpoint. If that fails, the next `complete` or `claim` does it."""
        folder = self.staging(step)
        with contextlib.suppress(StoreError):
            if folder.name != self._unsure:
                self._delete(folder.name)

    def _swap(self, index: Index, etag: str) -> bool:
        """Write the index, unless another process has written it meanwhile."""
        try:
            self._store.swap(INDEX, index.encoded(), etag)
        except ChangedError:
            return False
        return True

    def _expect_own(self, index: Index) -> None:
        if index.owner is not None and index.owner != self._owner:
            raise self._superseded_by(index.owner)

    def _superseded_by(self, owner: Owner) -> SupersededError:
        return SupersededError(
            f"another process ({owner}) trains with {self.root} now, so this one ({self._owner}) must stop; "
            "if both are meant to run, give each its own place for checkpoints"
        )

    def _remove_leftovers(self, index: Index) -> None:
        """Remove old checkpoints, and what earlier processes and attempts left. Other ranks may be writing this one.

        A newer owner may be at work already. Its own folders stay, and it can name no others than `index` does: its
        own index was made from this one, or from a later one.
        """
        with contextlib.suppress(StoreError):  # it is tried again with the next checkpoint
            for name in self._store.folders():
                match = _FOLDER.fullmatch(name)
                if match is None or name in {*index.complete, index.aside}:
                    continue
                number, token, attempt = int(match[2]), match[3], int(match[4])
                own = token == self._owner.token
                if attempt < self._attempt if own else number < self._owner.round or token in index.past:
                    self._delete(name)

    def _delete(self, name: str) -> None:
        """Delete the manifest first: a folder with a manifest is whole."""
        self._store.delete([f"{name}/{MANIFEST}"])
        self._store.delete([each.name for each in self._store.listed(name)])
        # With a hierarchical namespace (abfs://) a folder stays until it is deleted, which Delete Blob does
        # if it is empty. Elsewhere there is no such object.
        self._store.delete([name])


def _read(store: Store) -> tuple[Index, str]:
    """Return the index and its etag. Where it was deleted by hand, one without owner, of the checkpoints with a
    manifest, and "". Raises StoreError, CheckpointError."""
    found = store.get(INDEX)
    if found is None:
        return Index(complete=_with_manifest(store)), ""
    try:
        return Index.decoded(found[0]), found[1]
    except ValueError as error:
        raise CheckpointError(
            f"{store.url}/{INDEX} cannot be read ({error}): delete it, and the checkpoints with a {MANIFEST} count"
        ) from error


def _with_manifest(store: Store) -> tuple[str, ...]:
    names = {each.name.rpartition("/")[0] for each in store.listed() if each.name.endswith(f"/{MANIFEST}")}
    return tuple(sorted(filter(_FOLDER.fullmatch, names), key=_step_of, reverse=True))


def _step_of(name: str) -> int:
    match = _FOLDER.fullmatch(name)
    assert match, f"{name} is no folder of a checkpoint"
    return int(match[1])
