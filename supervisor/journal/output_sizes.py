"""How much output jobs have in etcd. Agents delete the oldest of what they write; whoever has a job's etcd user need
not, and would fill etcd, so that nothing new starts for anybody (P16). So would the output of thousands of ended jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spotsup_trainer.etcd import Compare, Delete, Etcd, Range

from supervisor.features.flood.record import MAX_OUTPUT_BYTES, MAX_OUTPUT_KEYS
from supervisor.features.flood.rule import FLOOD
from supervisor.journal.journal import USES_ETCD, Journal
from supervisor.planner.world import JobView

# Of all ended jobs together: a quarter of what etcd takes by default.
MAX_ENDED_BYTES = 512 * 2**20
# Of one look, one every minute: decoding that much takes a second or two of the leader's CPU. Other jobs wait.
MAX_READ_BYTES = 64 * 2**20
MAX_LOOKS = 500
MAX_NAMED = 5  # in the log
_KEY_BYTES = 100  # what etcd needs for a key beside its name and value


@dataclass(frozen=True, slots=True)
class _Size:
    """What a job had at most when it was looked at, at a revision. `exact`: nothing is counted that was written again
    since, or deleted."""

    revision: int = 0
    size_bytes: int = 0
    keys: int = 0
    exact: bool = True

    def plus(self, page: Range) -> _Size:
        """Return it with keys that were written since."""
        read = sum(len(kv.key) + len(kv.value) + _KEY_BYTES for kv in page.kvs)
        return _Size(page.revision, self.size_bytes + read, self.keys + len(page.kvs), self.exact)


class OutputSizes:
    """A task of housekeeping. `guard`: as Leadership has it."""

    def __init__(
        self,
        etcd: Etcd,
        journal: Journal,
        guard: Callable[[], Sequence[Compare]],
        *,
        max_bytes: int = MAX_OUTPUT_BYTES,
        max_keys: int = MAX_OUTPUT_KEYS,
        max_ended_bytes: int = MAX_ENDED_BYTES,
    ) -> None:
        self._etcd = etcd
        self._journal = journal
        self._guard = guard
        self._max_bytes, self._max_keys, self._max_ended_bytes = max_bytes, max_keys, max_ended_bytes
        self._seen: dict[str, _Size] = {}  # by task id; those that were looked at last, last

    def run(self) -> str:
        """Mark the jobs that have too much, so that they pause, and delete it once nobody writes any more; of ended
        jobs keep what those have that ended last. Says what it deleted. Raises EtcdError."""
        jobs = {view.record.task_id: view for view in self._journal.read().jobs.values()}
        self._seen = {task: seen for task, seen in self._seen.items() if task in jobs}
        self._look_at(jobs[task] for task in [*(jobs.keys() - self._seen.keys()), *self._seen])
        gone = [view for view in jobs.values() if _is_quiet(view) and self._is_over(self._size_of(view))]
        gone += self._beyond([view for view in jobs.values() if self._is_settled(view)])
        for view in gone:
            self._etcd.txn(self._guard(), [Delete(self._journal.keys.logs(view.record.name), prefix=True)])
            self._seen[view.record.task_id] = _Size()
        over = [view.record.name for view in jobs.values() if self._is_over(self._size_of(view))]
        self._journal.over_output = frozenset(over)
        more = f" and {len(gone) - MAX_NAMED} more" if len(gone) > MAX_NAMED else ""
        names = ", ".join(sorted(view.record.name for view in gone)[:MAX_NAMED])
        return f"deleted the output of {names}{more}: there was too much of it in etcd" if gone else ""

    def _look_at(self, views: Iterable[JobView]) -> None:
        read_bytes, looks = 0, 0
        for view in views:
            if self._is_settled(view):
                continue
            if read_bytes > MAX_READ_BYTES or looks >= MAX_LOOKS:
                return
            before = self._seen.pop(view.record.task_id, None)
            found = self._read(view, before or _Size())
            read_bytes, looks = read_bytes + found.size_bytes - (before or _Size()).size_bytes, looks + 1
            if before and (self._is_over(found) or (_is_quiet(view) and not found.exact)):
                found = self._read(view, _Size())
                read_bytes += found.size_bytes
            self._seen[view.record.task_id] = found

    def _read(self, view: JobView, before: _Size) -> _Size:
        """Return what a job has with all that was written since, as if it was new."""
        found = before
        for page in self._etcd.pages(self._journal.keys.logs(view.record.name), before.revision):
            found = found.plus(page)
            if self._is_over(found):
                break
        written = before.revision and found.keys > before.keys
        return _Size(found.revision, found.size_bytes, found.keys, exact=before.exact and not written)

    def _beyond(self, settled: Iterable[JobView]) -> list[JobView]:
        """Return the ended jobs whose output is more than is kept of all."""
        total, found = 0, []
        for view in sorted(settled, key=lambda view: view.record.ended_at, reverse=True):
            size = self._size_of(view).size_bytes
            total += size
            if size and total > self._max_ended_bytes:
                found.append(view)
        return found

    def _size_of(self, view: JobView) -> _Size:
        return self._seen.get(view.record.task_id, _Size())

    def _is_over(self, size: _Size) -> bool:
        return size.size_bytes > self._max_bytes or size.keys > self._max_keys

    def _is_settled(self, view: JobView) -> bool:
        """True if it has ended, nobody writes any more, and what it has is known."""
        known = self._seen.get(view.record.task_id)
        return view.record.ended and _is_quiet(view) and known is not None and known.exact


def _is_quiet(view: JobView) -> bool:
    """True if no node writes any more, and none will: a job that was resumed since has an etcd user again."""
    over = view.record.ended or view.record.pause.by == FLOOD
    return over and not any(node.state in USES_ETCD for node in view.nodes.values())
