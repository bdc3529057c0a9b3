"""Exports the journal to one file and imports it: jobs, nodes, events, code, and messages that carry no lease.

The file is gzipped lines of JSON: a header, one line per key, and a last line with the number of keys, so that a
truncated file is detected. Keys under a lease are left out (live nodes write them again), and so are the logs.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotsup_trainer.etcd import Compare, Etcd, EtcdError, KeyValue, Put
from spotsup_trainer.wire import Keys

from supervisor.cron import next_run
from supervisor.errors import CommandRefusedError, JournalUnavailableError, UsageError
from supervisor.journal.codec import dump, load, schema_of
from supervisor.journal.reading import CLUSTER, TOKENS
from supervisor.model import SCHEMA_VERSION, ClusterRecord
from supervisor.planner.continuity import IMPORTED, doubted

FORMAT = 1
# etcd refuses requests above 1.5 MiB, and transactions of more than 128 operations.
MAX_BYTES = 768 * 1024
MAX_KEYS = 100
# In the order of their names, backups are in the order of their times.
_NAME = "journal-%Y%m%dT%H%M%SZ.gz"


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """How much was exported or imported."""

    jobs: int
    nodes: int
    keys: int


def export_journal(etcd: Etcd, keys: Keys, path: Path, now: float) -> CopyCounts:
    """Write the journal to `path` atomically. Daemons may run meanwhile.

    Raises JournalUnavailableError, and UsageError if there is no journal or the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            with gzip.open(raw, "wt", encoding="ascii") as file:
                counts = _write(etcd, keys, file, now)
            os.fsync(raw.fileno())
        temporary.replace(path)
    except EtcdError as error:
        raise JournalUnavailableError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return counts


class Backups:
    """Exports of the journal in one folder, a new one whenever the cron expression says so."""

    def __init__(self, folder: Path, cron: str, keep: int) -> None:
        self._folder = folder
        self._cron = cron
        self._keep = keep

    def back_up(self, etcd: Etcd, keys: Keys, now: float) -> str:
        """Export the journal if that is due, and delete the oldest exports. Returns what was done, or "".

        What is due follows from the newest file, so a daemon that was down at the time makes up for it.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        newest = max(self._written(now).values(), default=None)
        if newest is not None and now < next_run(self._cron, newest):
            return ""
        for leftover in self._folder.glob(".journal-*"):
            leftover.unlink()  # of a daemon that was killed meanwhile
        path = self._folder / datetime.fromtimestamp(now, UTC).strftime(_NAME)
        counts = export_journal(etcd, keys, path, now)
        for old in sorted(self._written(now))[: -self._keep]:
            old.unlink()
        return f"backed up {counts.keys} keys of the journal to {path}"

    def _written(self, now: float) -> dict[Path, float]:
        """Return when each was written; those of a clock that was ahead are left alone."""
        found = {}
        for path in self._folder.glob("journal-*.gz"):
            with contextlib.suppress(ValueError):
                at = datetime.strptime(path.name, _NAME).replace(tzinfo=UTC).timestamp()
                if at <= now:
                    found[path] = at
        return found


def _write(etcd: Etcd, keys: Keys, file: Any, now: float) -> CopyCounts:
    found = _keys_to_export(etcd, keys)
    if not any(kv.key == f"{keys.world}{CLUSTER}" for kv in found):
        raise UsageError(f"etcd at {', '.join(etcd.endpoints)} holds no journal of cluster {keys.cluster}")
    header = {"spotsup": "journal", "format": FORMAT, "cluster": keys.cluster, "at": now}
    print(json.dumps(header), file=file)
    digests = sorted({kv.key.removeprefix(_blobs(keys)).partition("/")[0] for kv in _blob_keys(etcd, keys)})
    count = 0
    for kv in (*found, *(kv for digest in digests for kv in etcd.range(f"{_blobs(keys)}{digest}/").kvs)):
        line = {"key": kv.key.removeprefix(keys.root), "value": base64.b64encode(kv.value).decode()}
        print(json.dumps(line), file=file)
        count += 1
    print(json.dumps({"keys": count}), file=file)
    return _counts(keys, {kv.key for kv in found}, count)


def _keys_to_export(etcd: Etcd, keys: Keys) -> list[KeyValue]:
    """Return all keys of the journal without a lease, but no hints: an old hint would make newer nodes leave. And no
    tokens: one that was revoked since would be valid again.

    Events are read first: no exported event then has a number beyond its job record's counter.
    """
    events, world = etcd.range(f"{keys.root}events/").kvs, etcd.range(keys.world).kvs
    past, curves = etcd.range(f"{keys.root}past/").kvs, etcd.range(f"{keys.root}curves/").kvs
    sweeps = etcd.range(f"{keys.root}sweeps/").kvs
    return [kv for kv in (*world, *past, *curves, *sweeps, *events) if not kv.lease and not _is_left_out(keys, kv.key)]


def _is_left_out(keys: Keys, key: str) -> bool:
    section, _, rest = key.removeprefix(keys.world).partition("/")
    return section == TOKENS or (section == "run" and key == keys.hint(rest.partition("/")[0]))


def _blob_keys(etcd: Etcd, keys: Keys) -> tuple[KeyValue, ...]:
    return etcd.range(_blobs(keys), keys_only=True).kvs


def _blobs(keys: Keys) -> str:
    return f"{keys.root}blobs/"


def _counts(keys: Keys, written: set[str], count: int) -> CopyCounts:
    jobs, nodes = (sum(key.startswith(f"{keys.world}{kind}/") for key in written) for kind in ("jobs", "nodes"))
    return CopyCounts(jobs, nodes, count)


def import_journal(etcd: Etcd, keys: Keys, path: Path, now: float) -> CopyCounts:
    """Write an exported journal into an etcd without one. What nodes published since the export is kept. Machines may
    be younger than the file, so the journal is not believed until an operator has looked (planner/continuity.py).

    An interrupted import may be repeated: the cluster record, which makes it a journal, is written last. Raises
    UsageError for a file that is not an export, CommandRefusedError if a journal exists or a daemon leads, and
    JournalUnavailableError.
    """
    values = _read(path, keys)
    cluster_key = f"{keys.world}{CLUSTER}"
    before = load(ClusterRecord, values.pop(cluster_key), cluster_key)
    cluster = {cluster_key: dump(doubted(before, IMPORTED, now))}
    idle = Compare(f"{keys.root}leader", "create", 0)
    try:
        _check_empty(etcd, keys, values)
        for batch in _batches(values):
            # Key by key where nodes have written some of them meanwhile: theirs are newer.
            if not etcd.txn([idle, *(Compare(key, "create", 0) for key in batch)], _puts(batch)).succeeded:
                for key, value in batch.items():
                    etcd.txn([idle, Compare(key, "create", 0)], [Put(key, value)])
        if not etcd.txn([idle, Compare(cluster_key, "create", 0)], _puts(cluster)).succeeded:
            raise CommandRefusedError(
                f"a daemon of cluster {keys.cluster} started meanwhile: stop it, and repeat the import"
            )
    except EtcdError as error:
        raise JournalUnavailableError(f"{error}; repeat the import when etcd is back") from error
    return _counts(keys, {*values}, len(values) + 1)


def _check_empty(etcd: Etcd, keys: Keys, values: Mapping[str, bytes]) -> None:
    where = f"etcd at {', '.join(etcd.endpoints)}"
    if etcd.get(f"{keys.root}leader") is not None:
        raise CommandRefusedError(f"a daemon of cluster {keys.cluster} leads on {where}: stop all of them first")
    if etcd.get(f"{keys.world}{CLUSTER}") is not None:
        raise CommandRefusedError(
            f"{where} already has a journal of cluster {keys.cluster}: nothing was imported; import into an empty etcd"
        )
    for prefix in ("world/jobs/", "world/nodes/"):
        for kv in etcd.range(f"{keys.root}{prefix}").kvs:
            if values.get(kv.key) != kv.value:
                raise CommandRefusedError(f"{where} holds {kv.key}, which differs from the file: nothing was imported")


def _batches(values: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    batch: dict[str, bytes] = {}
    size = 0
    for key, value in values.items():
        if batch and (len(batch) >= MAX_KEYS or size + len(value) > MAX_BYTES):
            yield batch
            batch, size = {}, 0
        batch[key] = value
        size += len(value)
    if batch:
        yield batch


def _puts(batch: Mapping[str, bytes]) -> list[Put]:
    return [Put(key, value) for key, value in batch.items()]


def _read(path: Path, keys: Keys) -> dict[str, bytes]:
    """Read and check the whole file before anything is written: key -> value."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = [json.loads(line) for line in file]
        header, *rows, end = lines
        if header["spotsup"] != "journal" or header["format"] != FORMAT or end["keys"] != len(rows):
            raise ValueError("it has another format, or is truncated")
        if header["cluster"] != keys.cluster:
            raise UsageError(
                f"{path} is of cluster {header['cluster']}, but the configuration names "
                f"{keys.cluster}: import it with `cluster` set to that one"
            )
        values = {f"{keys.root}{row['key']}": base64.b64decode(row["value"]) for row in rows}
        values[f"{keys.world}{CLUSTER}"]
        for key, value in values.items():
            if key.startswith((f"{keys.world}jobs/", f"{keys.world}nodes/")) and schema_of(value) != SCHEMA_VERSION:
                raise UsageError(
                    f"{path} was exported by another version of spotsupd ({key} has schema {schema_of(value)}, "
                    f"this one reads {SCHEMA_VERSION}): import it with that version"
                )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise UsageError(f"{path} is not a journal exported by spotsupd: {error}") from error
    return values
