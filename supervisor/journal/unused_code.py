"""Deletes archives of code that were uploaded and then not used: no job came, or the daemon died over them."""

from __future__ import annotations

from collections import defaultdict

from spotsup_trainer.etcd import Compare, Delete, Etcd, KeyValue

from supervisor.journal.journal import Journal

KEPT_S = 24 * 3600.0
MAX_GUARDS = 100  # etcd takes 128 in one transaction; an archive has 64 chunks at most


class UnusedCode:
    """etcd has no times: how long an archive has been there as it is, is since it was first seen here."""

    def __init__(self, etcd: Etcd, journal: Journal) -> None:
        self._etcd = etcd
        self._journal = journal
        # By archive: the newest revision of its keys, and when that was seen first.
        self._seen: dict[str, tuple[int, float]] = {}

    def delete(self, now: float) -> int:
        """Delete those that nothing has used or written for a day; how many. Raises EtcdError."""
        named = self._etcd.range(self._journal.unused_key, keys_only=True).kvs
        found = self._found()
        self._forget([kv for kv in named if kv.key.rpartition("/")[2] not in found])
        reading, sweeps = self._journal.read(), self._journal.sweeps()
        all_sweeps = self._etcd.range(self._journal.sweep_key(""), keys_only=True).kvs
        if not reading.live or reading.refused or len(sweeps) < len(all_sweeps):
            return 0  # who knows what the records that cannot be read use
        used = {view.record.code_sha256 for view in reading.jobs.values()}
        used |= {sweep.code_sha256 for sweep, _ in sweeps}
        seen = {}
        for digest in found.keys() - used:
            newest = max(kv.mod_revision for kv in found[digest])
            before, since = self._seen.get(digest, (0, now))
            seen[digest] = (newest, min(since, now) if before == newest else now)
        self._seen = seen
        old = [digest for digest, (_, since) in seen.items() if now - since >= KEPT_S]
        return sum(self._delete(digest, found[digest]) for digest in old)

    def _found(self) -> dict[str, list[KeyValue]]:
        found: defaultdict[str, list[KeyValue]] = defaultdict(list)
        prefix = self._journal.blobs_key
        for kv in self._etcd.range(prefix, keys_only=True).kvs:
            found[kv.key.removeprefix(prefix).partition("/")[0]].append(kv)
        return dict(found)

    def _forget(self, gone: list[KeyValue]) -> None:
        """Delete what names archives that are gone."""
        for kv in gone:
            self._etcd.txn([Compare(kv.key, "mod", kv.mod_revision)], [Delete(kv.key)])

    def _delete(self, digest: str, keys: list[KeyValue]) -> bool:
        complete = next((kv for kv in keys if kv.key.endswith("/size")), None)
        if complete is not None:
            return self._journal.delete_code(digest, complete.mod_revision)
        # Somebody may upload it again just now: then one of its keys has changed, or is about to come back.
        guards = [Compare(kv.key, "mod", kv.mod_revision) for kv in keys[:MAX_GUARDS]]
        return self._etcd.txn(guards, [Delete(f"{self._journal.blobs_key}{digest}/", prefix=True)]).succeeded
