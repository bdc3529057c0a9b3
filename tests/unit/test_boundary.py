"""How much is said of each job's faults, and of whose a fault is."""

from __future__ import annotations

import pytest

from supervisor.planner.boundary import FORGOTTEN_S, Budget, owner_of


def test_one_jobs_faults_use_up_no_others_share() -> None:
    budget = Budget(3)
    for number in range(500):
        if budget.is_new("evil", f"key {number}", 0.0):
            budget.add("evil", f"key {number}", 0.0)
    assert not budget.is_new("evil", "key 9", 1.0)
    assert budget.is_new("ann", "undecided", 1.0)


def test_what_was_said_is_news_again_after_an_hour() -> None:
    budget = Budget(1)
    budget.add("job", "a", 0.0)
    assert [budget.is_new("job", "a", at) for at in (0.0, FORGOTTEN_S - 1, FORGOTTEN_S)] == [False, False, True]
    budget.add("job", "b", FORGOTTEN_S)
    assert not budget.is_new("job", "a", FORGOTTEN_S + 1), "there is room for one"


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("/spotsup/c/world/run/evil/agent/evil-1-2", "evil"),
        ("/spotsup/c/world/jobs/ann", "ann"),
        ("/spotsup/c/world/nodes/ann/ann-1-2", "ann"),
        ("ann: ValueError in sync.py:7 < plan.py:9", "ann"),
        ("/spotsup/c/world/cluster", "/spotsup/c/world/cluster"),
        ("ann", "ann"),
    ],
)
def test_the_job_of_a_key_or_a_fault_is_known(name: str, owner: str) -> None:
    assert owner_of(name) == owner
