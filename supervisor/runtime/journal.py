"""The journal in etcd: what the daemon knows for certain. Intents are written here before anything is done.

Layout below /spotsup/<cluster>/: `world/` is mirrored and small (jobs, nodes, alerts waiting to be sent, the words
between daemon and nodes); `events/`, `logs/` and `blobs/` are read when someone asks. Every write is one transaction,
guarded by leadership (P10) and by the revision of each record it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from spotsup_trainer.etcd import Compare, Delete, Put
from spotsup_trainer.wire import Keys

from supervisor.errors import NotFoundError
from supervisor.model import Event, JobRecord, NodeRecord
from supervisor.planner.actions import MOST_OPERATIONS, Commit
from supervisor.planner.world import JobView
from supervisor.runtime.codec import dump, load
from supervisor.runtime.reading import Reader, Reading
from supervisor.runtime.store import Store

__all__ = ["BLOB_CHUNK_BYTES", "Journal", "Reading"]

BLOB_CHUNK_BYTES = 512 * 1024  # etcd refuses requests above 1.5 MiB, and base64 adds a third


class Journal:
    """Reads come from a mirror that never blocks; writes go to etcd and are durable when they return."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.keys = keys
        self._store = store
        self._reader = Reader(keys)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self) -> Reading:
        """The world as the mirror has it now."""
        return self._reader.read(self._store.view())

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        """Write one plan's changes: the new revision, or 0 where a guard did not hold and nothing was written.

        Raises JournalUnavailableError when etcd gave no answer: it may or may not have been written.
        """
        guards = [*leader_guard]
        for record, revision in commit.guards.items():
            key = self._job_key(record) if record == commit.job else self._node_key(commit.job, record)
            guards.append(Compare(key, "mod", revision))
        return self._txn(guards, self._operations(commit))

    def _operations(self, commit: Commit) -> list[Put | Delete]:
        operations: list[Put | Delete] = []
        if commit.job_record is not None:
            operations.append(Put(self._job_key(commit.job), dump(commit.job_record)))
        operations += [Put(self._node_key(commit.job, node.id), dump(node)) for node in commit.nodes]
        operations += [Delete(self._node_key(commit.job, node)) for node in commit.forget_nodes]
        operations += [Put(key, value) for key, value in commit.words.items()]
        operations += [Delete(key, prefix=key.endswith("/")) for key in commit.forget_words]
        operations += [Put(self._event_key(event.job, event.id), dump(event)) for event in commit.events]
        operations += [Put(f"{self.keys.world}alerts/{event.id}", dump(event)) for event in commit.alerts]
        operations += [Delete(self._event_key(commit.job, event)) for event in commit.drop_events]
        return operations

    def _txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> int:
        assert len(operations) <= MOST_OPERATIONS, f"{len(operations)} operations in one transaction"
        result = self._store.txn(guards, operations)
        return result.revision if result.succeeded else 0

    def create_job(self, record: JobRecord, event: Event, replaced: int, leader_guard: Sequence[Compare]) -> bool:
        """Store a new job; False when the name's record changed meanwhile.

        `replaced`: the revision of the ended job of that name, or 0. What that one left behind goes with it.
        """
        name = record.name
        operations: list[Put | Delete] = [
            Delete(self.keys.run(name), prefix=True),
            Delete(self.keys.logs(name), prefix=True),
            Delete(f"{self.keys.world}nodes/{name}/", prefix=True),
        ]
        if not replaced:
            operations = []
        operations += [Put(self._job_key(name), dump(record)), Put(self._event_key(name, event.id), dump(event))]
        return self._txn([*leader_guard, Compare(self._job_key(name), "mod", replaced)], operations) > 0

    def update_job(self, view: JobView, record: JobRecord, event: Event, leader_guard: Sequence[Compare]) -> bool:
        """Store a changed job; False when it changed meanwhile."""
        guards = [*leader_guard, Compare(self._job_key(record.name), "mod", view.revision)]
        operations = [
            Put(self._job_key(record.name), dump(record)),
            Put(self._event_key(record.name, event.id), dump(event)),
        ]
        return self._txn(guards, operations) > 0

    # -- what is read when someone asks --------------------------------------------------------------------

    def events(self, job: str, after: str = "") -> list[Event]:
        """A job's story, in order; only what came after the event with id `after`."""
        prefix = self._event_key(job, "")
        found = self._store.range(prefix)
        return [load(Event, kv.value, kv.key) for kv in found if kv.key.removeprefix(prefix) > after]

    def alert(self, event_id: str) -> Event | None:
        """An alert that waits to be sent."""
        key = f"{self.keys.world}alerts/{event_id}"
        found = self._store.get(key)
        return load(Event, found.value, key) if found else None

    def logs(self, job: str, node: str = "") -> list[tuple[str, str, bytes]]:
        """The last chunks of output: (node, chunk number, bytes), in order within each node."""
        prefix = self.keys.logs(job)
        found = self._store.range(self.keys.logs(job, node))
        chunks = []
        for kv in found:
            name, _, number = kv.key.removeprefix(prefix).partition("/")
            chunks.append((name, number, kv.value))
        return chunks

    def put_blob(self, data: bytes) -> str:
        """Store a code archive under its SHA-256, which is returned. Storing it again is harmless."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.has_blob(digest):
            for number, begin in enumerate(range(0, len(data), BLOB_CHUNK_BYTES)):
                chunk = data[begin : begin + BLOB_CHUNK_BYTES]
                self._txn([], [Put(self._blob_key(digest, f"{number:05d}"), chunk)])
            self._txn([], [Put(self._blob_key(digest, "size"), str(len(data)).encode())])
        return digest

    def has_blob(self, digest: str) -> bool:
        """Whether an archive is stored completely."""
        return self._store.get(self._blob_key(digest, "size")) is not None

    def get_blob(self, digest: str) -> bytes:
        """An archive. Raises NotFoundError where it is missing or broken."""
        found = self._store.range(self._blob_key(digest, ""))
        data = b"".join(kv.value for kv in found if not kv.key.endswith("/size"))
        if not found or hashlib.sha256(data).hexdigest() != digest:
            raise NotFoundError(f"the code archive {digest[:12]} is not in etcd, or broken: submit the job again")
        return data

    def _job_key(self, job: str) -> str:
        return f"{self.keys.world}jobs/{job}"

    def _node_key(self, job: str, node: str) -> str:
        return f"{self.keys.world}nodes/{job}/{node}"

    def _event_key(self, job: str, event: str) -> str:
        return f"{self.keys.root}events/{job or '-'}/{event}"

    def _blob_key(self, digest: str, part: str) -> str:
        return f"{self.keys.root}blobs/{digest}/{part}"
