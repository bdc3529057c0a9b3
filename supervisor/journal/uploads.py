"""Chunks of code that users have uploaded, in etcd, until an archive is made of them: any daemon goes on with an upload
that another one began.

Each user has a record of theirs, below `uploads/users/`, and the chunks below `uploads/chunks/USER/`. Every change is
one transaction, guarded by the record's revision: what the record has is there, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias
from urllib.parse import quote

from spotsup_trainer.etcd import Compare, Delete, Put
from spotsup_trainer.wire import Keys

from supervisor.errors import BusyError, SchemaError
from supervisor.journal.codec import dump, load
from supervisor.journal.store import Store
from supervisor.uploads import UploadRecord, added, named, outdated

MAX_TRIES = 20
READS_AT_A_TIME = 4
DELETED_AT_ONCE = 100  # chunks per transaction: etcd takes 128 operations

# Guards and operations; the new revision, 0 if a guard did not hold.
Txn: TypeAlias = Callable[[Sequence[Compare], Sequence[Put | Delete]], int]


class Uploads:
    """All methods raise JournalUnavailableError if etcd does not answer."""

    def __init__(self, store: Store, keys: Keys, txn: Txn) -> None:
        self._store = store
        self._keys = keys
        self._txn = txn

    def missing(self, user: str, hashes: Sequence[str], now: float) -> list[str]:
        """Which of an archive's chunks this user has not uploaded. The others stay for another while."""
        for _ in range(MAX_TRIES):
            record, revision = self._record(user)
            found, missing = named(record, hashes, now)
            if len(missing) == len(set(hashes)) or self._replace(found, revision, []):
                return missing
        raise _busy(user)

    def put(self, user: str, sha256: str, data: bytes, now: float) -> None:
        """Store a chunk. `sha256`: its own."""
        for _ in range(MAX_TRIES):
            record, revision = self._record(user)
            found, over = added(record, sha256, len(data), now)
            if len(over) > DELETED_AT_ONCE:
                self._drop(record, revision, over[:DELETED_AT_ONCE])
                continue
            operations: list[Put | Delete] = [Delete(self._chunk_key(user, each)) for each in over]
            if sha256 not in record.chunks:
                operations.append(Put(self._chunk_key(user, sha256), data))
            if self._replace(found, revision, operations):
                return
        raise _busy(user)

    def read(self, user: str, hashes: Sequence[str]) -> bytes | None:
        """These chunks of a user, one after another; None if one is missing."""
        with ThreadPoolExecutor(READS_AT_A_TIME, thread_name_prefix="chunk") as pool:
            keys = {each: self._chunk_key(user, each) for each in hashes}
            read = dict(zip(keys, pool.map(self._store.get, keys.values()), strict=True))
        parts = [kv.value for each in hashes if (kv := read[each]) is not None]
        return b"".join(parts) if len(parts) == len(hashes) else None

    def size_bytes(self, user: str, hashes: Sequence[str]) -> int:
        """Of these chunks together, as far as they are there."""
        chunks = self._record(user)[0].chunks
        return sum(chunks[each].size_bytes for each in hashes if each in chunks)

    def trim(self, now: float, leader_guard: Sequence[Compare]) -> int:
        """Delete what is kept for too long, or is too much. Returns how many chunks were deleted."""
        found: dict[str, tuple[UploadRecord, int]] = {}
        for kv in self._store.range(self._user_key("")):
            try:
                record = load(UploadRecord, kv.value, kv.key)
            except SchemaError:
                self._forget(kv.key, kv.mod_revision, leader_guard)
            else:
                found[record.user] = record, kv.mod_revision
        count = 0
        for user, hashes in outdated([record for record, _ in found.values()], now).items():
            record, revision = found[user]
            for begin in range(0, len(hashes), DELETED_AT_ONCE):
                batch = hashes[begin : begin + DELETED_AT_ONCE]
                record, revision = record.without(batch), self._drop(record, revision, batch, leader_guard)
                if not revision:
                    break  # the user uploads: at the next time
                count += len(batch)
        return count

    def _record(self, user: str) -> tuple[UploadRecord, int]:
        """And its revision, 0 for none. One that cannot be read is deleted with its chunks."""
        key = self._user_key(user)
        found = self._store.get(key)
        if found is None:
            return UploadRecord(user), 0
        try:
            return load(UploadRecord, found.value, key), found.mod_revision
        except SchemaError:
            self._forget(key, found.mod_revision)
            return UploadRecord(user), 0

    def _replace(
        self, record: UploadRecord, revision: int, operations: list[Put | Delete], guard: Sequence[Compare] = ()
    ) -> int:
        key = self._user_key(record.user)
        kept: Put | Delete = Put(key, dump(record)) if record.chunks else Delete(key)
        return self._txn([*guard, Compare(key, "mod", revision)], [kept, *operations])

    def _drop(self, record: UploadRecord, revision: int, over: Sequence[str], guard: Sequence[Compare] = ()) -> int:
        deletions: list[Put | Delete] = [Delete(self._chunk_key(record.user, each)) for each in over]
        return self._replace(record.without(over), revision, deletions, guard)

    def _forget(self, key: str, revision: int, guard: Sequence[Compare] = ()) -> None:
        chunks = f"{self._keys.root}uploads/chunks/{key.removeprefix(self._user_key(''))}/"
        self._txn([*guard, Compare(key, "mod", revision)], [Delete(key), Delete(chunks, prefix=True)])

    def _user_key(self, user: str) -> str:
        return f"{self._keys.root}uploads/users/{quote(user, safe='')}"

    def _chunk_key(self, user: str, sha256: str) -> str:
        return f"{self._keys.root}uploads/chunks/{quote(user, safe='')}/{sha256}"


def _busy(user: str) -> BusyError:
    return BusyError(f"several uploads of {user or 'one user'} change at the same time: try again in a moment")
