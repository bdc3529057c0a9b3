"""How `make bench-checkpoint` combines the measurements of its ranks."""

from __future__ import annotations

import pytest

from benchmarks.checkpoint.__main__ import in_order, slowest, verdicts
from benchmarks.results import Sample, summarise


def test_the_slowest_rank_counts_and_ranks_must_tell_the_same() -> None:
    lines: list[dict[str, str | float]] = [
        {"subject": "spotsup", "metric": "blocking", "seconds": seconds} for seconds in (0.1, 0.3, 0.2)
    ]
    assert slowest("3 processes", lines) == Sample("3 processes", "spotsup", "blocking", "s", 0.3)
    with pytest.raises(AssertionError):
        slowest("3 processes", [*lines, {"subject": "spotsup", "metric": "complete", "seconds": 1.0}])


def test_the_goal_is_judged_by_the_median_of_spotsup_blocking() -> None:
    samples = [
        Sample(case, subject, metric, "s", seconds)
        for case, seconds in (("1 process", 0.301), ("2 processes", 0.3))
        for subject, metric in (("dcp.save", "restore"), ("spotsup", "complete"), ("spotsup", "blocking"))
    ]
    rows = in_order(summarise(samples))
    assert [row.metric for row in rows] == ["blocking", "complete", "restore"] * 2
    assert list(verdicts(rows, 1.0)) == [
        "1 process: training stops for 0.301 s (goal 0.3 s): missed",
        "2 processes: training stops for 0.300 s (goal 0.3 s): met",
    ]
    assert all(sentence.endswith("met") for sentence in verdicts(rows, 2.0))
