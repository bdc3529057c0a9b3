"""What /proc says of processes: who lives, and who is below whom."""

from __future__ import annotations

import pytest
from spotsup_trainer.launcher.processes import Process, descendants


@pytest.mark.parametrize(
    ("state", "threads", "alive"), [("R", 1, True), ("D", 1, True), ("Z", 2, True), ("Z", 1, False), ("X", 1, False)]
)
def test_a_process_lives_while_one_of_its_threads_does(state: str, threads: int, alive: bool) -> None:
    assert Process(state, 1, 1, 0.0, threads).alive is alive


def test_descendants_are_children_and_theirs() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    found = {pid: Process("S", parent, pid, 0.0, 1) for pid, parent in parents.items()}
    assert sorted(descendants(2, found)) == [3, 4]
    assert sorted(descendants(1, found)) == [2, 3, 4, 5, 6]
    assert descendants(6, found) == []
