"""Which worker runs which test: whole jobs have two workers, all other tests fill what those leave of the CPU."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

from xdist.scheduler.load import LoadScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# A whole job mostly waits: for leases, boots, polls. With three at once on two cores those waits get too long.
WHOLE_JOBS_AT_ONCE = 2
WHOLE_JOBS = "tests/e2e/"
# Few, as a worker keeps what it has been sent: at the end one of them would have all the slow ones.
TESTS_SENT_AT_ONCE = 8
# While whole jobs run, the CPU is theirs first. Much more, and busy neighbours would starve the other tests.
NICENESS_OF_FILLERS = 2


def yield_cpu_to_whole_jobs() -> None:
    """Lower the priority of this process, and of what it will start, if whole jobs run in other workers."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and _number(worker) >= WHOLE_JOBS_AT_ONCE:
        os.nice(NICENESS_OF_FILLERS)


class Lanes(LoadScheduling):
    """Sends whole jobs to the first workers, one at a time, and the other tests, in their order, to whoever asks."""

    collection: list[str] | None
    pending: list[int]
    node2pending: dict[WorkerController, list[int]]

    def schedule(self) -> None:
        """Begin, once all workers have collected the same tests."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            self.pending[:] = range(len(self.collection))
        for node in self.nodes:
            self.check_schedule(node)

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Send tests to a worker that has less than two left: it runs one when it knows the next."""
        if node.shutting_down or len(self.node2pending[node]) >= 2:
            return
        tests = self._suitable(node)
        if not tests:
            node.shutdown()  # which lets it run the last one that it has
            return
        for index in tests:
            self.pending.remove(index)
        self.node2pending[node].extend(tests)
        node.send_runtest_some(tests)

    def _suitable(self, node: WorkerController) -> list[int]:
        working = sorted(
            (each for each in self.nodes if not each.shutting_down), key=lambda each: _number(each.gateway.id)
        )
        if node in working[:WHOLE_JOBS_AT_ONCE]:
            whole = (index for index in self.pending if self._is_whole_job(index))
            if tests := list(islice(whole, 2 - len(self.node2pending[node]))):
                return tests
        others = (index for index in self.pending if not self._is_whole_job(index))
        return list(islice(others, TESTS_SENT_AT_ONCE))

    def _is_whole_job(self, index: int) -> bool:
        assert self.collection is not None
        return self.collection[index].startswith(WHOLE_JOBS)


def _number(worker: str) -> int:
    return int(worker.removeprefix("gw"))
