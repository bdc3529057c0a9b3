"""The journal in etcd. Every intent is written here before it is acted on.

Layout below /spotsup/<cluster>/: `world/` is small and mirrored (jobs, nodes, alerts that wait to be sent, the API's
tokens, the messages between daemon and nodes); `past/`, `events/`, `curves/`, `pools/`, `sweeps/`, `secrets/`,
`audit/`, `logs/`, `blobs/` and `unused/` are read on demand. Every write of the daemon is one transaction, guarded by
leadership (P10) and by the revision of each record that it changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

from spotsup_trainer.etcd import Compare, Delete, KeyValue, Put
from spotsup_trainer.wire import CaBundle, Keys, encode

from supervisor.access import AuditEntry, TokenRecord
from supervisor.budget import BudgetRecord
from supervisor.curve import Curve
from supervisor.errors import JournalRefusedError, NotFoundError, SchemaError
from supervisor.features.budgets.rule import spent_before, with_deleted
from supervisor.features.flood.rule import FLOOD
from supervisor.features.warm.rule import carry_over, warm_nodes
from supervisor.journal.codec import Record, dump, load
from supervisor.journal.output import Output, begins_at, part_of
from supervisor.journal.past import KEPT_RUNS, past_run
from supervisor.journal.reading import BUDGETS, CAPACITY, CLUSTER, PAUSE, SECRETS, TOKENS, Reader, Reading, tokens_of
from supervisor.journal.store import Store
from supervisor.model import ClusterRecord, DaemonPause, Event, JobRecord, NodeRecord, NodeState, PastRun
from supervisor.planner.actions import MAX_COMMIT_BYTES, MAX_OPERATIONS, Commit
from supervisor.planner.world import JobView
from supervisor.pool_days import PoolDay, decode_day, encode_day
from supervisor.sealed import SecretRecord
from supervisor.sweep import SweepRecord
from supervisor.unused_archives import Upload, displaced

# How the key of an audit entry about something refused ends.
_REFUSED = "-refused"

__all__ = ["BLOB_CHUNK_BYTES", "USES_ETCD", "EtcdUse", "Journal", "Reading"]

DayKey: TypeAlias = tuple[str, str]  # the day as 2026-01-31, and `PoolName.key`

BLOB_CHUNK_BYTES = 512 * 1024  # etcd refuses requests above 1.5 MiB, and base64 adds a third


# A node that is being terminated has said all it had to say.
USES_ETCD = frozenset(
    {NodeState.BOOTSTRAPPING, NodeState.READY, NodeState.MEMBER, NodeState.DRAINING, NodeState.SUSPECT}
)


@dataclass(frozen=True, slots=True)
class EtcdUse:
    """Jobs whose nodes may use etcd."""

    jobs: tuple[JobRecord, ...]
    # Those that have such nodes now.
    with_nodes: tuple[JobRecord, ...]
    # Names of jobs of which a record cannot be read: nothing is known of them.
    unreadable: frozenset[str]


class Journal:
    """Reads come from a mirror and never block; writes go to etcd and are durable when they return."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.keys = keys
        self._store = store
        self._reader = Reader(keys)
        self.over_output: frozenset[str] = frozenset()  # jobs with more output than a job may have (output_sizes.py)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self) -> Reading:
        """Return the world as the mirror has it now."""
        return self._reader.read(self._store.view(), self.over_output)

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        """Write the changes of one job. Returns the new revision, or 0 if a guard did not hold and nothing was written.

        Raises JournalUnavailableError if etcd did not answer: it may or may not have been written.
        """
        # Once a pause is acknowledged no daemon commits, not even one whose mirror does not have the pause yet.
        guards = [*leader_guard, Compare(f"{self.keys.world}{PAUSE}", "create", 0)]
        for record, revision in commit.guards.items():
            key = self._job_key(record) if record == commit.job else self._node_key(commit.job, record)
            guards.append(Compare(key, "mod", revision))
        for node, revision in commit.ended_of_others:
            guards.append(Compare(self._node_key(node.job, node.id), "mod", revision))
        if commit.cluster is not None:
            guards.append(Compare(f"{self.keys.world}{CLUSTER}", "mod", commit.cluster_revision))
        if commit.budgets is not None:
            guards.append(Compare(f"{self.keys.world}{BUDGETS}", "mod", commit.budgets_revision))
        return self._txn(guards, self._operations(commit))

    def _operations(self, commit: Commit) -> list[Put | Delete]:
        operations: list[Put | Delete] = []
        if commit.job_record is not None:
            operations.append(Put(self._job_key(commit.job), dump(commit.job_record)))
        if commit.cluster is not None:
            operations.append(Put(f"{self.keys.world}{CLUSTER}", dump(commit.cluster)))
        if commit.capacity is not None:
            operations.append(Put(f"{self.keys.world}{CAPACITY}", dump(commit.capacity)))
        if commit.budgets is not None:
            operations.append(Put(f"{self.keys.world}{BUDGETS}", dump(commit.budgets)))
        operations += [Put(self._node_key(commit.job, node.id), dump(node)) for node in commit.nodes]
        operations += [Put(self._node_key(node.job, node.id), dump(node)) for node, _ in commit.ended_of_others]
        operations += [Delete(self._node_key(commit.job, node)) for node in commit.delete_nodes]
        operations += [Put(key, value) for key, value in commit.put_keys.items()]
        operations += [Delete(key, prefix=key.endswith("/")) for key in commit.delete_keys]
        operations += [Put(self._event_key(event.job, event.id), dump(event)) for event in commit.events]
        operations += [Put(f"{self.keys.world}alerts/{event.id}", dump(event)) for event in commit.alerts]
        operations += [Delete(self._event_key(commit.job, event)) for event in commit.delete_events]
        return operations

    def _txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> int:
        size = sum(len(op.key) + len(op.value) for op in operations if isinstance(op, Put))
        if max(len(operations), len(guards)) > MAX_OPERATIONS or size > MAX_COMMIT_BYTES:
            raise JournalRefusedError(
                f"{len(operations)} operations and {len(guards)} guards with {size} bytes are too many for one "
                f"transaction: at most {MAX_OPERATIONS} with {MAX_COMMIT_BYTES} bytes are sent to etcd"
            )
        result = self._store.txn(guards, operations)
        return result.revision if result.succeeded else 0

    def create_job(
        self,
        record: JobRecord,
        event: Event,
        replaced: JobView | None,
        code: KeyValue | None = None,
        guard: Sequence[Compare] = (),
    ) -> bool:
        """Store a new job; any daemon may, leader or not. False if the job's record or its code changed meanwhile.

        `replaced`: the ended job of that name; it is kept as a past run, and the new job has its machines that wait.
        `code`: what `find_blob` returned. `guard`: more of what must hold.
        """
        name, waiting = record.name, warm_nodes(replaced) if replaced is not None else []
        guards = [*guard, Compare(self._job_key(name), "mod", replaced.revision if replaced else 0)]
        if replaced is not None:
            # What it has spent this month counts, also once it is forgotten. The guard holds the sum.
            record = dataclasses.replace(
                record, billing=dataclasses.replace(record.billing, earlier=spent_before(replaced, record.submitted_at))
            )
            guards += [Compare(self._node_key(name, each.id), "mod", replaced.revisions[each.id]) for each in waiting]
            carried = carry_over(replaced, record, record.submitted_at)
            operations = self._puts(carried.job, event)
            operations += self._keep(past_run(carried.old))
            operations += [Put(self._node_key(name, node.id), dump(node)) for node in carried.nodes]
        else:
            operations = self._puts(record, event)
        if code is not None:
            # Rewritten with the job: of this transaction and a concurrent `delete_code` one fails.
            guards.append(Compare(code.key, "mod", code.mod_revision))
            operations += [Put(code.key, code.value), Delete(self._unused_key(record.owner, record.code_sha256))]
        return self._txn(guards, operations) > 0

    def _keep(self, run: PastRun) -> list[Put | Delete]:
        """Keep a run, its events and its logs; the logs of earlier runs are deleted, and of the oldest run all."""
        name, keys = run.job.name, self.keys
        operations: list[Put | Delete] = [Put(self._past_key(name, run.job.run), dump(run))]
        # Of this run alone: the new one may have nodes already.
        nodes = self._node_key(name, f"{run.job.task_id}-")
        operations += [Delete(prefix, prefix=True) for prefix in (keys.run(name), nodes)]
        earlier = self.past_runs(name)
        operations += [Delete(f"{keys.logs(name)}{each.job.task_id}-", prefix=True) for each in earlier]
        for old in earlier[: max(0, len(earlier) + 1 - KEPT_RUNS)]:
            operations.append(Delete(self._past_key(name, old.job.run)))
            operations.append(Delete(self._event_key(name, f"{old.job.task_id}-"), prefix=True))
            operations.append(Delete(self._curve_key(old.job)))
        return operations

    def delete_job(self, view: JobView, now: float, guard: Sequence[Compare] = ()) -> bool:
        """Delete an ended job without machines, with all that etcd has of it and of earlier runs of its name. False if
        its record, or the sum of what deleted jobs have spent, changed meanwhile. `guard`: the leader's.

        Its record is guarded by its revision, and every later write of the job by a revision too: none brings part of
        it back. A job that has cost nothing this month is deleted without a write, as an etcd that is full needs it.
        """
        name, keys, budgets = view.record.name, self.keys, f"{self.keys.world}{BUDGETS}"
        guards = [*guard, Compare(self._job_key(name), "mod", view.revision)]
        prefixes = [self._node_key(name, ""), keys.run(name), keys.logs(name), self._event_key(name, "")]
        prefixes += [f"{keys.root}curves/{name}/", f"{keys.root}past/{name}/"]
        operations: list[Put | Delete] = [
            Delete(self._job_key(name)),
            *(Delete(each, prefix=True) for each in prefixes),
        ]
        found = self._store.get(budgets)
        spent = with_deleted(load(BudgetRecord, found.value, found.key) if found else None, view, now)
        if spent is not None:
            guards.append(Compare(budgets, "mod", found.mod_revision if found else 0))
            operations.append(Put(budgets, dump(spent)))
        return self._txn(guards, operations) > 0

    def update_job(self, view: JobView, record: JobRecord, event: Event, node: NodeRecord | None = None) -> bool:
        """Store a user's change to a job, and to one of its nodes. False if either changed meanwhile."""
        guards = [Compare(self._job_key(record.name), "mod", view.revision)]
        operations = self._puts(record, event)
        if node is not None:
            guards.append(Compare(self._node_key(record.name, node.id), "mod", view.revisions[node.id]))
            operations.append(Put(self._node_key(record.name, node.id), dump(node)))
        return self._txn(guards, operations) > 0

    def adopt(self, job: JobRecord, revision: int, nodes: Sequence[NodeRecord], event: Event) -> bool:
        """Store nodes without a record, and their job. False if the job left `revision`, or a node has a record."""
        guards = [Compare(self._job_key(job.name), "mod", revision)]
        operations = self._puts(job, event)
        stored = True
        for begin in range(0, len(nodes), MAX_OPERATIONS // 2):
            # One transaction, except for very many nodes: the rest stays unjournaled until it is written.
            batch = nodes[begin : begin + MAX_OPERATIONS // 2]
            guards += [Compare(self._node_key(job.name, node.id), "create", 0) for node in batch]
            operations += [Put(self._node_key(job.name, node.id), dump(node)) for node in batch]
            stored = stored and self._txn(guards, operations) > 0
            guards, operations = [], []
        return stored

    def set_cluster(self, record: ClusterRecord, revision: int) -> bool:
        """Replace what the journal says of itself. False if that left `revision`."""
        key = f"{self.keys.world}{CLUSTER}"
        return self._txn([Compare(key, "mod", revision)], [Put(key, dump(record))]) > 0

    def set_pause(self, pause: DaemonPause | None) -> None:
        """Pause all daemons of the cluster, or resume them."""
        key = f"{self.keys.world}{PAUSE}"
        self._txn([], [Put(key, dump(pause)) if pause else Delete(key)])

    def trim_cluster_events(self, keep: int, leader_guard: Sequence[Compare]) -> int:
        """Delete all but the newest `keep` events of the cluster as a whole. Returns how many were deleted."""
        found = sorted(self._store.range(self._event_key("", "")), key=lambda kv: kv.mod_revision)
        old = [kv.key for kv in found[: max(0, len(found) - keep)]]
        for begin in range(0, len(old), MAX_OPERATIONS):
            batch = old[begin : begin + MAX_OPERATIONS]
            if not self._txn(leader_guard, [Delete(key) for key in batch]):
                return begin
        return len(old)

    def put_curve(self, job: JobRecord, curve: Curve, leader_guard: Sequence[Compare]) -> bool:
        """Replace a job's training curve. False if another daemon leads, a user paused them, or it was deleted."""
        guards = [*leader_guard, Compare(f"{self.keys.world}{PAUSE}", "create", 0)]
        guards.append(Compare(self._job_key(job.name), "mod", self.job_revision(job.name) or -1))
        return self._txn(guards, [Put(self._curve_key(job), dump(curve))]) > 0

    def put_pool_day(self, key: DayKey, day: PoolDay, leader_guard: Sequence[Compare]) -> bool:
        """Replace what is kept of a pool's day. False if another daemon leads, or a user paused them."""
        guards = [*leader_guard, Compare(f"{self.keys.world}{PAUSE}", "create", 0)]
        return self._txn(guards, [Put(self._pool_key(key), encode_day(day))]) > 0

    def delete_pool_days(self, keys: Sequence[DayKey], leader_guard: Sequence[Compare]) -> bool:
        """Delete pools' days. False if another daemon leads."""
        batches = [keys[begin : begin + MAX_OPERATIONS] for begin in range(0, len(keys), MAX_OPERATIONS)]
        return all(self._txn(leader_guard, [Delete(self._pool_key(key)) for key in batch]) > 0 for batch in batches)

    def add_token(self, token: TokenRecord) -> bool:
        """Store a new token of the API. False if there is one with its id."""
        key = self._token_key(token.id)
        return self._txn([Compare(key, "create", 0)], [Put(key, dump(token))]) > 0

    def delete_tokens(self, ids: Sequence[str]) -> None:
        """Delete tokens of the API: every daemon refuses them as soon as its copy of the journal has it."""
        for begin in range(0, len(ids), MAX_OPERATIONS):
            self._txn([], [Delete(self._token_key(each)) for each in ids[begin : begin + MAX_OPERATIONS]])

    def add_audit(self, entry: AuditEntry) -> None:
        """Store what a caller of the API has done."""
        end = _REFUSED if 400 <= entry.status < 500 else ""
        self._txn([], [Put(self._audit_key(f"{round(entry.at * 1000):014d}-{entry.request}{end}"), dump(entry))])

    def trim_audit(self, keep: int, leader_guard: Sequence[Compare]) -> int:
        """Delete all but the newest `keep` entries of the audit log of what was done, and as many of what was refused:
        who is refused often displaces nothing else. Returns how many were deleted."""
        keys = [kv.key for kv in self._store.range(self._audit_key(""))]
        refused = [key for key in keys if key.endswith(_REFUSED)]
        done = [key for key in keys if not key.endswith(_REFUSED)]
        old = [key for each in (done, refused) for key in each[: max(0, len(each) - keep)]]
        for begin in range(0, len(old), MAX_OPERATIONS):
            if not self._txn(leader_guard, [Delete(key) for key in old[begin : begin + MAX_OPERATIONS]]):
                return begin
        return len(old)

    def sweeps(self) -> list[tuple[SweepRecord, int]]:
        """Return all sweeps and the revisions of their records. Those that cannot be read are left out."""
        found = []
        for kv in self._store.range(self.sweep_key("")):
            with contextlib.suppress(SchemaError):
                found.append((load(SweepRecord, kv.value, kv.key), kv.mod_revision))
        return found

    def sweep(self, name: str) -> tuple[SweepRecord, int] | None:
        """Return one sweep and its record's revision. Raises SchemaError if it cannot be read."""
        found = self._store.get(self.sweep_key(name))
        return (load(SweepRecord, found.value, found.key), found.mod_revision) if found else None

    def put_sweep(
        self, sweep: SweepRecord, revision: int, guard: Sequence[Compare] = (), code: KeyValue | None = None
    ) -> int:
        """Store a sweep in place of that of `revision`, 0 for none. Returns the new revision, 0 if it has changed.

        `guard`: the leader's. `code`: what `find_blob` returned, for a new sweep: its archive stays as for a job.
        """
        guards = [*guard, Compare(self.sweep_key(sweep.name), "mod", revision)]
        operations: list[Put | Delete] = [Put(self.sweep_key(sweep.name), dump(sweep))]
        if code is not None:
            guards.append(Compare(code.key, "mod", code.mod_revision))
            operations += [Put(code.key, code.value), Delete(self._unused_key(sweep.owner, sweep.code_sha256))]
        return self._txn(guards, operations)

    def secrets(self, owner: str) -> list[tuple[SecretRecord, int]]:
        """Return a user's secrets, sealed, and the revisions of their records. Those that cannot be read are left
        out."""
        return self._secrets(self._secret_key(owner, ""))

    def all_secrets(self) -> list[tuple[SecretRecord, int]]:
        """Return the secrets of all users."""
        return self._secrets(f"{self.keys.root}{SECRETS}/")

    def _secrets(self, prefix: str) -> list[tuple[SecretRecord, int]]:
        found = []
        for kv in self._store.range(prefix):
            with contextlib.suppress(SchemaError):
                record = load(SecretRecord, kv.value, kv.key)
                if kv.key == self._secret_key(record.owner, record.name):
                    found.append((record, kv.mod_revision))
        return found

    def put_secret(self, secret: SecretRecord, revision: int) -> bool:
        """Store a secret in place of that of `revision`, 0 for none. False if it has changed."""
        key = self._secret_key(secret.owner, secret.name)
        return self._txn([Compare(key, "mod", revision)], [Put(key, dump(secret))]) > 0

    def delete_secret(self, secret: SecretRecord, revision: int) -> bool:
        """Delete a secret. False if it has changed."""
        key = self._secret_key(secret.owner, secret.name)
        return self._txn([Compare(key, "mod", revision)], [Delete(key)]) > 0

    def job_revision(self, name: str) -> int:
        """Return the revision of a job's record in etcd, 0 if there is none. The mirror may be behind."""
        found = self._store.get(self._job_key(name))
        return found.mod_revision if found else 0

    # -- reading on demand ---------------------------------------------------------------------------------

    def past_runs(self, job: str = "") -> list[PastRun]:
        """Return what is kept of ended jobs whose names were used again: of all, or of this name, the oldest first.

        Those of another schema are left out.
        """
        return _readable(
            PastRun, self._store.range(f"{self.keys.root}past/{job}/" if job else f"{self.keys.root}past/")
        )

    def etcd_use(self) -> EtcdUse:
        """Return which jobs' nodes may use etcd: of those that have not ended, and of ended ones while they leave in
        order; none of one that floods it."""
        jobs: list[JobRecord] = []
        with_nodes: set[str] = set()
        unreadable: set[str] = set()
        nodes = f"{self.keys.world}nodes/"
        for kv in self._store.range(nodes):
            try:
                node = self._reader.known(NodeRecord, kv) or load(NodeRecord, kv.value, kv.key)
            except SchemaError:
                unreadable.add(kv.key.removeprefix(nodes).partition("/")[0])
            else:
                if node.state in USES_ETCD:
                    with_nodes.add(node.job)
        for kv in self._store.range(self._job_key("")):
            try:
                jobs.append(self._reader.known(JobRecord, kv) or load(JobRecord, kv.value, kv.key))
            except SchemaError:
                unreadable.add(kv.key.removeprefix(self._job_key("")))
        active = tuple(job for job in jobs if (not job.ended or job.name in with_nodes) and job.pause.by != FLOOD)
        return EtcdUse(active, tuple(job for job in active if job.name in with_nodes), frozenset(unreadable))

    def publish_ca(self, ca: str, leader_guard: Sequence[Compare] = ()) -> list[str]:
        """Have all nodes that use etcd trust it by these CAs (PEM text). Returns the jobs for which that is news."""
        message, done = encode(CaBundle(ca)), []
        for job in self.etcd_use().with_nodes:
            key = self.keys.ca(job.name)
            found = self._store.get(key)
            if found is not None and found.value == message:
                continue
            # The job's keys are deleted with it: none is written for one that was replaced meanwhile.
            guard = Compare(self._job_key(job.name), "mod", self.job_revision(job.name) or -1)
            if self._txn([*leader_guard, guard], [Put(key, message)]):
                done.append(job.name)
        return done

    def past_run(self, job: str, run: int) -> PastRun | None:
        """Return one of them."""
        key = self._past_key(job, run)
        found = self._store.get(key)
        return load(PastRun, found.value, key) if found else None

    def events(self, job: str, after: str = "", task_id: str = "") -> list[Event]:
        """Return a job's events in order, from after the event with id `after`; of all runs, or of the one with
        `task_id`.

        Those of another schema are left out.
        """
        prefix = self._event_key(job, "")
        found = self._store.range(prefix + (f"{task_id}-" if task_id else ""))
        return _readable(Event, [kv for kv in found if kv.key.removeprefix(prefix) > after])

    def curve(self, job: JobRecord) -> Curve | None:
        """Return a job's training curve, None before its first steps. Raises SchemaError if it cannot be read."""
        key = self._curve_key(job)
        found = self._store.get(key)
        return load(Curve, found.value, key) if found else None

    def pool_days(self) -> Mapping[DayKey, PoolDay | None]:
        """Return all that is kept of pools; None for what is no record of the pool of its key."""
        prefix, found = self._pool_key(("", "")), {}
        for kv in self._store.range(prefix):
            day, _, pool = kv.key.removeprefix(prefix).partition("/")
            record = decode_day(kv.value)
            found[day, pool] = record if record is not None and record.pool.key == pool else None
        return found

    def tokens(self) -> Mapping[str, TokenRecord]:
        """Return the API's tokens by id, as etcd has them."""
        return tokens_of(self._store.range(self._token_key("")))

    def audit(self) -> list[AuditEntry]:
        """Return what callers of the API have done, the oldest first. Entries of another schema are left out."""
        return _readable(AuditEntry, self._store.range(self._audit_key("")))

    def logs(self, job: str, nodes: str = "", after: int = 0) -> Output:
        """Return what nodes whose keys begin with `nodes` have printed after a position, as far as one answer has room
        for it.

        A position that etcd has not reached is from before etcd was restored: all is read again.
        """
        prefix = self.keys.logs(job)
        found = self._store.changes(prefix + nodes, after)
        if found.revision < after:
            found = self._store.changes(prefix + nodes, 0)
        return part_of([(kv.key.removeprefix(prefix), kv) for kv in found.kvs], found.revision)

    def log_begins(self, job: str, nodes: str, since: float) -> Mapping[str, tuple[str, int]]:
        """Return by node: chunk, and character in it, where output since a time begins. `nodes`: how their keys
        begin."""
        prefix = self.keys.logs(job)
        found = self._store.changes(prefix + nodes, 0)
        return begins_at([(kv.key.removeprefix(prefix), kv) for kv in found.kvs], since)

    def put_blob(self, data: bytes, user: str = "") -> str:
        """Store a user's code archive under its SHA-256, and return that.

        Storing it again protects it from `delete_code`. The user's oldest archives that no job came for are deleted
        where there are too many.
        """
        digest, size = hashlib.sha256(data).hexdigest(), str(len(data)).encode()
        marks = [Put(self._blob_key(digest, "size"), size), Put(self._unused_key(user, digest), size)]
        found = self.find_blob(digest)
        if found is None or not self._txn([Compare(found.key, "mod", found.mod_revision)], marks):
            # It is missing, or was deleted just now.
            parts = [data[begin : begin + BLOB_CHUNK_BYTES] for begin in range(0, len(data), BLOB_CHUNK_BYTES)]
            self._store.put_all([Put(self._blob_key(digest, f"{at:05d}"), each) for at, each in enumerate(parts)])
            self._txn([], marks)
        self._delete_displaced(user)
        return digest

    def _delete_displaced(self, user: str) -> None:
        prefix = self._unused_key(user, "")
        found = self._store.range(prefix)
        uploads = [Upload(kv.key.removeprefix(prefix), int(kv.value), kv.mod_revision) for kv in found]
        for each in displaced(uploads):
            self.delete_code(each.sha256, each.revision)
            key = self._unused_key(user, each.sha256)
            self._txn([Compare(key, "mod", each.revision)], [Delete(key)])

    def find_blob(self, digest: str) -> KeyValue | None:
        """Return the key that marks an archive as complete, None if it is not stored completely."""
        return self._store.get(self._blob_key(digest, "size"))

    def delete_code(self, digest: str, revision: int) -> bool:
        """Delete an archive, unless a job uses it that is open, or has a schedule; or it was stored again after
        `revision` for one to come.

        Raises SchemaError if a job's record cannot be read.
        """
        found = self.find_blob(digest)
        if found is None or found.mod_revision > revision:
            return False
        jobs = [load(JobRecord, kv.value, kv.key) for kv in self._store.range(self._job_key(""))]
        if any(job.code_sha256 == digest and (job.is_renewed or not job.ended) for job in jobs):
            return False
        if any(sweep.code_sha256 == digest and not sweep.over for sweep, _ in self.sweeps()):
            return False
        guard = Compare(found.key, "mod", found.mod_revision)
        return self._txn([guard], [Delete(self._blob_key(digest, ""), prefix=True)]) > 0

    def get_blob(self, digest: str) -> bytes:
        """Return an archive. Raises NotFoundError if it is missing or corrupt."""
        found = self._store.range(self._blob_key(digest, ""))
        data = b"".join(kv.value for kv in found if not kv.key.endswith("/size"))
        if not found or hashlib.sha256(data).hexdigest() != digest:
            raise NotFoundError(
                f"the code archive {digest[:12]} is missing from etcd, or corrupt: submit the job again"
            )
        return data

    def _puts(self, job: JobRecord, event: Event) -> list[Put | Delete]:
        return [Put(self._job_key(job.name), dump(job)), Put(self._event_key(job.name, event.id), dump(event))]

    def _job_key(self, job: str) -> str:
        return f"{self.keys.world}jobs/{job}"

    def _node_key(self, job: str, node: str) -> str:
        return f"{self.keys.world}nodes/{job}/{node}"

    def _event_key(self, job: str, event: str) -> str:
        return f"{self.keys.root}events/{job or '-'}/{event}"

    def _curve_key(self, job: JobRecord) -> str:
        return f"{self.keys.root}curves/{job.name}/{job.task_id}"

    def sweep_key(self, name: str) -> str:
        """Return the key of a sweep's record, for who guards a write by it."""
        return f"{self.keys.root}sweeps/{name}"

    def _secret_key(self, owner: str, name: str) -> str:
        return f"{self.keys.root}{SECRETS}/{quote(owner, safe='')}/{name}"

    def _pool_key(self, key: DayKey) -> str:
        return f"{self.keys.root}pools/{'/'.join(filter(None, key))}"

    def _token_key(self, token: str) -> str:
        return f"{self.keys.world}{TOKENS}/{token}"

    def _audit_key(self, entry: str) -> str:
        return f"{self.keys.root}audit/{entry}"

    def _past_key(self, job: str, run: int) -> str:
        return f"{self.keys.root}past/{job}/{run:06d}"

    @property
    def blobs_key(self) -> str:
        """Return how the keys of archives begin."""
        return f"{self.keys.root}blobs/"

    @property
    def unused_key(self) -> str:
        """Return how the keys begin that name archives which no job came for, by user."""
        return f"{self.keys.root}unused/"

    def _blob_key(self, digest: str, part: str) -> str:
        return f"{self.blobs_key}{digest}/{part}"

    def _unused_key(self, user: str, digest: str) -> str:
        return f"{self.unused_key}{quote(user, safe='')}/{digest}"


def _readable(kind: type[Record], found: Iterable[KeyValue]) -> list[Record]:
    """Return the records among them, without those of another schema."""
    records = []
    for kv in found:
        with contextlib.suppress(SchemaError):
            records.append(load(kind, kv.value, kv.key))
    return records
