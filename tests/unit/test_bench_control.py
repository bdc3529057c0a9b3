"""What bench-control says of its numbers."""

from __future__ import annotations

from benchmarks.control.__main__ import EVENT_CPU, NODE_CPU, verdicts
from benchmarks.results import Row


def row(case: str, metric: str, value: float) -> Row:
    return Row(case, "spotsup", metric, "us/s", value, value, value, 1)


def test_it_says_how_the_cost_of_a_node_grows_with_their_number() -> None:
    rows = [
        row("1,000 nodes in 20 jobs: training", NODE_CPU, 50.0),
        row("10,000 nodes in 200 jobs: training", NODE_CPU, 45.0),
        row("1,000 nodes in 20 jobs: churn", EVENT_CPU, 10.0),
        row("10,000 nodes in 200 jobs: churn", EVENT_CPU, 15.0),
    ]
    assert list(verdicts(rows)) == [
        "training: CPU per node with 10,000 nodes is 0.90 times that with 1,000 (goal at most 1.2): met",
        "churn: CPU per event with 10,000 nodes is 1.50 times that with 1,000 (goal at most 1.2): missed",
    ]


def test_of_what_was_not_measured_it_says_nothing() -> None:
    assert list(verdicts([row("1,000 nodes in 20 jobs: training", NODE_CPU, 50.0)])) == []
