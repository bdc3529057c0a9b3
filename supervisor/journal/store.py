"""The few operations on etcd that the journal needs, as a protocol: a simulation implements it, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from spotsup_trainer.etcd import Compare, Delete, Etcd, EtcdError, EtcdRefusedError, KeyValue, Put, Range, TxnResult
from spotsup_trainer.etcd.mirror import Mirror, MirrorView
from spotsup_trainer.vitals import Vitals

from supervisor.errors import JournalFullError, JournalRefusedError, JournalUnavailableError, SpotsupError
from supervisor.features.flood.record import messages_quota

# gRPC's code when the alarm NOSPACE is raised, https://etcd.io/docs/v3.5/op-guide/maintenance/; and for "too many
# requests", which passes (etcd's api/v3rpc/rpctypes/error.go).
RESOURCE_EXHAUSTED = 8
PUTS_AT_A_TIME = 4
# Of one answer: twice what a job's agents keep of its output. Whoever has their login may write more, and no reader
# needs memory for it.
MAX_CHANGES_BYTES = 32 * 2**20
FULL = (
    "etcd refuses writes because its space quota is used up: training goes on, nothing new starts until an operator "
    "frees space and disarms the alarm (docs/operations.md)"
)


class Store(Protocol):
    """Keys with revisions. All methods but `view` raise JournalUnavailableError if etcd does not answer."""

    def view(self) -> MirrorView:
        """Return all mirrored keys; never blocks."""
        ...

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """Carry out all operations or none. Without an answer they may or may not have happened.

        Raises JournalRefusedError if etcd refuses them as they are.
        """
        ...

    def put_all(self, puts: Sequence[Put]) -> None:
        """Put each by itself, in any order; where it raises, any of them may have happened.

        Raises JournalRefusedError if etcd refuses one.
        """
        ...

    def range(self, prefix: str) -> Sequence[KeyValue]:
        """Return all keys that begin with `prefix`, in order."""
        ...

    def changes(self, prefix: str, after: int) -> Range:
        """Return those of the keys that begin with `prefix` that were written after a revision, of very many the first;
        the store's revision now."""
        ...

    def get(self, key: str) -> KeyValue | None:
        """Return one key."""
        ...


class EtcdStore:
    """etcd: `view` reads a mirror of `world`, everything else asks etcd."""

    def __init__(self, etcd: Etcd, world: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._etcd = etcd
        self._mirror = Mirror(etcd, world, on_change, quota=messages_quota(world))

    def start(self, timeout_s: float) -> None:
        """Start the mirror. Raises JournalUnavailableError if etcd does not answer in time."""
        self._mirror.start()
        if not self._mirror.wait_live(timeout_s):
            raise JournalUnavailableError(
                f"etcd at {', '.join(self._etcd.endpoints)} does not answer: is it running, and reachable from "
                "here? `--embedded-etcd` starts one beside the daemon"
            )

    def close(self) -> None:
        """Stop mirroring."""
        self._mirror.close()

    def vitals(self) -> Vitals:
        """Return how the mirror's threads are."""
        return self._mirror.vitals()

    def view(self) -> MirrorView:
        """As Store."""
        return self._mirror.view()

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """As Store."""
        try:
            return self._etcd.txn(guards, operations)
        except EtcdError as error:
            raise journal_error(error) from error

    def put_all(self, puts: Sequence[Put]) -> None:
        """As Store. Several at a time: etcd then writes them to its disk together."""
        with ThreadPoolExecutor(PUTS_AT_A_TIME, thread_name_prefix="put") as pool:
            for _ in pool.map(lambda put: self.txn([], [put]), puts):
                pass

    def range(self, prefix: str) -> Sequence[KeyValue]:
        """As Store."""
        try:
            return [kv for page in self._etcd.pages(prefix) for kv in page.kvs]
        except EtcdError as error:
            raise JournalUnavailableError(str(error)) from error

    def changes(self, prefix: str, after: int) -> Range:
        """As Store."""
        found: list[KeyValue] = []
        size = revision = 0
        try:
            for page in self._etcd.pages(prefix, after):
                found += page.kvs
                size += sum(len(kv.value) for kv in page.kvs)
                revision = page.revision
                if size > MAX_CHANGES_BYTES:
                    break
            return Range(tuple(found), revision)
        except EtcdError as error:
            raise JournalUnavailableError(str(error)) from error

    def get(self, key: str) -> KeyValue | None:
        """As Store."""
        try:
            return self._etcd.get(key)
        except EtcdError as error:
            raise JournalUnavailableError(str(error)) from error


def journal_error(error: EtcdError) -> SpotsupError:
    """Return what a write that failed means for the journal."""
    if isinstance(error, EtcdRefusedError) and error.code != RESOURCE_EXHAUSTED:
        return JournalRefusedError(f"etcd refuses the write: {error}")
    return (JournalFullError if is_full(error) else JournalUnavailableError)(describe(error))


def describe(error: EtcdError) -> str:
    """Return what is wrong with etcd, in one sentence."""
    return FULL if is_full(error) else str(error)


def is_full(error: EtcdError) -> bool:
    """True if etcd is full, so that an operator has to free space."""
    return isinstance(error, EtcdRefusedError) and error.code == RESOURCE_EXHAUSTED and "space" in str(error)
