"""How tests are distributed: two whole jobs at a time at most, the first to begin, and every test once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lanes import Lanes

WHOLE = [f"tests/e2e/test_a.py::test_{n}" for n in range(12)]
OTHERS = [f"tests/unit/test_b.py::test_{n}" for n in range(100)]


class Worker:
    """A worker that runs a test when it knows the next, or that none comes."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.queue: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, tests: list[int]) -> None:
        assert not self.shutting_down
        self.queue += tests

    def shutdown(self) -> None:
        self.shutting_down = True

    def running(self) -> int | None:
        return self.queue[0] if len(self.queue) > 1 or (self.queue and self.shutting_down) else None


def distributed(workers: int, tests: list[str]) -> tuple[Lanes, list[Worker]]:
    """Lanes whose workers, in another order than their numbers, have collected the tests."""
    config: Any = SimpleNamespace(
        getvalue=lambda _name: [f"{workers}*popen"], getoption=lambda _name, _default=None: None, rootpath="/"
    )
    lanes = Lanes(config)
    made = [Worker(number) for number in reversed(range(workers))]
    for worker in made:
        lanes.add_node(worker)
        lanes.add_node_collection(worker, tests)
    lanes.schedule()
    return lanes, made


def run(lanes: Lanes, workers: list[Worker], tests: list[str]) -> list[set[str]]:
    """Run to the end, each worker a test per turn; return which tests ran in the same turn."""
    turns = []
    while running := [(each, index) for each in workers if (index := each.running()) is not None]:
        turns.append({tests[index] for _, index in running})
        for worker, index in running:
            worker.queue.remove(index)
            lanes.mark_test_complete(worker, index)
    assert lanes.tests_finished
    return turns


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_every_test_runs_once_and_at_most_two_of_them_are_whole_jobs(workers: int) -> None:
    lanes, made = distributed(workers, [*WHOLE, *OTHERS])
    turns = run(lanes, made, [*WHOLE, *OTHERS])
    ran = [test for turn in turns for test in turn]
    assert sorted(ran) == sorted([*WHOLE, *OTHERS])
    whole = [sum(test in WHOLE for test in turn) for turn in turns]
    assert max(whole) == min(workers, 2)
    assert sum(whole[: len(WHOLE) // min(workers, 2)]) == len(WHOLE), "none of their workers does anything else before"


def test_fewer_tests_than_workers_run_and_the_others_end() -> None:
    lanes, made = distributed(4, OTHERS[:2])
    assert sorted(test for turn in run(lanes, made, OTHERS) for test in turn) == OTHERS[:2]
    assert all(worker.shutting_down for worker in made)


def test_what_a_crashed_worker_had_is_run_by_others() -> None:
    tests = [*WHOLE, *OTHERS]
    lanes, made = distributed(4, tests)
    crashed = next(worker for worker in made if worker.gateway.id == "gw0")
    made.remove(crashed)
    running = crashed.queue[0]
    assert lanes.remove_node(crashed) == tests[running]
    ran = [test for turn in run(lanes, made, tests) for test in turn]
    assert sorted(ran) == sorted(set(tests) - {tests[running]})


def test_workers_that_collected_different_tests_run_none() -> None:
    config: Any = SimpleNamespace(
        getvalue=lambda _name: ["2*popen"],
        getoption=lambda _name, _default=None: None,
        hook=SimpleNamespace(pytest_collectreport=lambda **_report: None),
    )
    lanes = Lanes(config)
    made = [Worker(number) for number in range(2)]
    for worker, tests in zip(made, (WHOLE, OTHERS), strict=True):
        lanes.add_node(worker)
        lanes.add_node_collection(worker, tests)
    lanes.schedule()
    assert not any(worker.queue for worker in made)
