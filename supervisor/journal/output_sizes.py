"""How much output jobs have in etcd. Agents delete the oldest of what they write; whoever has a job's etcd user need
not, and would fill etcd, so that nothing new starts for anybody (P16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotsup_trainer.etcd import Compare, Delete, Etcd, Range

from supervisor.features.flood.record import MAX_OUTPUT_BYTES, MAX_OUTPUT_KEYS
from supervisor.features.flood.rule import FLOOD
from supervisor.journal.journal import USES_ETCD, Journal
from supervisor.planner.world import JobView

# Of one look, one every minute: decoding that much takes a second or two of the leader's CPU. Other jobs wait.
MAX_READ_BYTES = 64 * 2**20
_KEY_BYTES = 100  # what etcd needs for a key beside its name and value


@dataclass(frozen=True, slots=True)
class _Size:
    """What a job had at most when it was looked at, at a revision."""

    revision: int = 0
    size_bytes: int = 0
    keys: int = 0

    def plus(self, page: Range) -> _Size:
        """Return it with keys that were written since."""
        read = sum(len(kv.key) + len(kv.value) + _KEY_BYTES for kv in page.kvs)
        return _Size(page.revision, self.size_bytes + read, self.keys + len(page.kvs))


class OutputSizes:
    """A task of housekeeping. `guard`: as Leadership has it."""

    def __init__(
        self,
        etcd: Etcd,
        journal: Journal,
        guard: Callable[[], Sequence[Compare]],
        max_bytes: int = MAX_OUTPUT_BYTES,
        max_keys: int = MAX_OUTPUT_KEYS,
    ) -> None:
        self._etcd = etcd
        self._journal = journal
        self._guard = guard
        self._max_bytes, self._max_keys = max_bytes, max_keys
        self._seen: dict[str, _Size] = {}  # by job; those that were looked at last, last

    def run(self) -> str:
        """Mark the jobs that have too much, so that they pause; delete it once nobody writes any more. Says what it
        deleted. Raises EtcdError."""
        jobs = self._journal.read().jobs
        self._seen = {name: seen for name, seen in self._seen.items() if name in jobs}
        read_bytes, deleted = 0, []
        for name in [*(jobs.keys() - self._seen.keys()), *self._seen]:
            if read_bytes > MAX_READ_BYTES:
                break
            found, read = self._look(name)
            read_bytes += read
            self._seen.pop(name, None)
            if self._is_over(found) and _is_quiet(jobs[name]):
                self._etcd.txn(self._guard(), [Delete(self._journal.keys.logs(name), prefix=True)])
                deleted.append(name)
            else:
                self._seen[name] = found
        self._journal.over_output = frozenset(name for name, seen in self._seen.items() if self._is_over(seen))
        return f"deleted the output of jobs that had too much of it: {', '.join(sorted(deleted))}" if deleted else ""

    def _is_over(self, size: _Size) -> bool:
        return size.size_bytes > self._max_bytes or size.keys > self._max_keys

    def _look(self, name: str) -> tuple[_Size, int]:
        """Return what a job has, and how many bytes were read: what was written since the last time, as if it was new;
        all, where that is too much."""
        read_bytes = 0
        for before in (self._seen.get(name, _Size()), _Size()):
            found = before
            for page in self._etcd.pages(self._journal.keys.logs(name), before.revision):
                found = found.plus(page)
                if self._is_over(found):
                    break
            read_bytes += found.size_bytes - before.size_bytes
            if not self._is_over(found) or before == _Size():
                break
        return found, read_bytes


def _is_quiet(view: JobView) -> bool:
    """True if no node writes any more, and none will: a job that was resumed since has an etcd user again."""
    over = view.record.ended or view.record.pause.by == FLOOD
    return over and not any(node.state in USES_ETCD for node in view.nodes.values())
