"""The journal in etcd: what the daemon knows for certain. Intents are written here before anything is done.

Layout below /spotsup/<cluster>/: `world/` is mirrored and small (jobs, nodes, alerts waiting to be sent, the words
between daemon and nodes); `events/`, `logs/` and `blobs/` are read when someone asks. Every write is one transaction,
guarded by leadership (P10) and by the revision of each record it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from spotsup_trainer.etcd import Compare, Delete, KeyValue, Put
from spotsup_trainer.wire import Keys

from supervisor.errors import NotFoundError
from supervisor.journal.codec import dump, load
from supervisor.journal.reading import CLUSTER, PAUSE, Reader, Reading
from supervisor.journal.store import Store
from supervisor.model import DaemonPause, Event, JobRecord, NodeRecord
from supervisor.planner.actions import MAX_OPERATIONS, Commit
from supervisor.planner.world import JobView

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
        # No daemon does anything once a pause was acknowledged, not even one that has not heard of it yet.
        guards = [*leader_guard, Compare(f"{self.keys.world}{PAUSE}", "create", 0)]
        for record, revision in commit.guards.items():
            key = self._job_key(record) if record == commit.job else self._node_key(commit.job, record)
            guards.append(Compare(key, "mod", revision))
        if commit.cluster is not None:
            guards.append(Compare(f"{self.keys.world}{CLUSTER}", "create", 0))
        return self._txn(guards, self._operations(commit))

    def _operations(self, commit: Commit) -> list[Put | Delete]:
        operations: list[Put | Delete] = []
        if commit.job_record is not None:
            operations.append(Put(self._job_key(commit.job), dump(commit.job_record)))
        if commit.cluster is not None:
            operations.append(Put(f"{self.keys.world}{CLUSTER}", dump(commit.cluster)))
        operations += [Put(self._node_key(commit.job, node.id), dump(node)) for node in commit.nodes]
        operations += [Delete(self._node_key(commit.job, node)) for node in commit.delete_nodes]
        operations += [Put(key, value) for key, value in commit.put_keys.items()]
        operations += [Delete(key, prefix=key.endswith("/")) for key in commit.delete_keys]
        operations += [Put(self._event_key(event.job, event.id), dump(event)) for event in commit.events]
        operations += [Put(f"{self.keys.world}alerts/{event.id}", dump(event)) for event in commit.alerts]
        operations += [Delete(self._event_key(commit.job, event)) for event in commit.delete_events]
        return operations

    def _txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> int:
        assert len(operations) <= MAX_OPERATIONS, f"{len(operations)} operations in one transaction"
        result = self._store.txn(guards, operations)
        return result.revision if result.succeeded else 0

    def create_job(self, record: JobRecord, event: Event, replaced: int, code: KeyValue | None = None) -> bool:
        """Store a new job, as a user's word that needs no leader; False when the name's record changed meanwhile, or
        its code.

        `replaced`: the revision of the ended job of that name, or 0. What that one left behind goes with it. `code`: as
        `find_blob` gave it.
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
        guards = [Compare(self._job_key(name), "mod", replaced)]
        if code is not None:
            # Written anew together with the job: of this and `delete_code` at one moment, one comes too late.
            guards.append(Compare(code.key, "mod", code.mod_revision))
            operations.append(Put(code.key, code.value))
        return self._txn(guards, operations) > 0

    def update_job(self, view: JobView, record: JobRecord, event: Event, node: NodeRecord | None = None) -> bool:
        """Store a changed job as a user wants it, and one changed node of it; False when either changed meanwhile."""
        guards = [Compare(self._job_key(record.name), "mod", view.revision)]
        operations: list[Put | Delete] = [
            Put(self._job_key(record.name), dump(record)),
            Put(self._event_key(record.name, event.id), dump(event)),
        ]
        if node is not None:
            guards.append(Compare(self._node_key(record.name, node.id), "mod", view.revisions[node.id]))
            operations.append(Put(self._node_key(record.name, node.id), dump(node)))
        return self._txn(guards, operations) > 0

    def adopt(self, job: JobRecord, revision: int, nodes: Sequence[NodeRecord], event: Event) -> bool:
        """Store nodes that had no record, and their job; False where it is not as of `revision`, or a node is known."""
        guards = [Compare(self._job_key(job.name), "mod", revision)]
        operations: list[Put | Delete] = [
            Put(self._job_key(job.name), dump(job)),
            Put(self._event_key(job.name, event.id), dump(event)),
        ]
        stored = True
        for begin in range(0, len(nodes), MAX_OPERATIONS // 2):
            # All at once but for a job of very many nodes: of these, the rest is unknown until it is written, too.
            batch = nodes[begin : begin + MAX_OPERATIONS // 2]
            guards += [Compare(self._node_key(job.name, node.id), "create", 0) for node in batch]
            operations += [Put(self._node_key(job.name, node.id), dump(node)) for node in batch]
            stored = stored and self._txn(guards, operations) > 0
            guards, operations = [], []
        return stored

    def set_pause(self, pause: DaemonPause | None) -> None:
        """Have all daemons of the cluster do nothing, or go on."""
        key = f"{self.keys.world}{PAUSE}"
        self._txn([], [Put(key, dump(pause)) if pause else Delete(key)])

    def job_revision(self, name: str) -> int:
        """The revision of a job's record as etcd holds it now, 0 where there is none: the mirror may be behind."""
        found = self._store.get(self._job_key(name))
        return found.mod_revision if found else 0

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
        """Store a code archive under its SHA-256, which is returned. Storing it again keeps it from being forgotten."""
        digest = hashlib.sha256(data).hexdigest()
        complete = Put(self._blob_key(digest, "size"), str(len(data)).encode())
        found = self.find_blob(digest)
        if found is not None and self._txn([Compare(found.key, "mod", found.mod_revision)], [complete]):
            return digest
        # It is not there, or was forgotten just now.
        for number, begin in enumerate(range(0, len(data), BLOB_CHUNK_BYTES)):
            chunk = data[begin : begin + BLOB_CHUNK_BYTES]
            self._txn([], [Put(self._blob_key(digest, f"{number:05d}"), chunk)])
        self._txn([], [complete])
        return digest

    def find_blob(self, digest: str) -> KeyValue | None:
        """The key that says that an archive is stored completely; None where it is not."""
        return self._store.get(self._blob_key(digest, "size"))

    def delete_code(self, digest: str, revision: int) -> bool:
        """Remove an archive, unless a job that has not ended names it, or will: it was stored again after `revision`.
        Raises SchemaError where that cannot be told."""
        found = self.find_blob(digest)
        if found is None or found.mod_revision > revision:
            return False
        jobs = [load(JobRecord, kv.value, kv.key) for kv in self._store.range(self._job_key(""))]
        if any(job.code_sha256 == digest and not job.ended for job in jobs):
            return False
        guard = Compare(found.key, "mod", found.mod_revision)
        return self._txn([guard], [Delete(self._blob_key(digest, ""), prefix=True)]) > 0

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
