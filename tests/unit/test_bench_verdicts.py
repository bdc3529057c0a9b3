"""What the benchmarks of the control plane, of checkpoints and of the rendezvous make of their measurements."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.bootstrap import __main__ as bootstrap
from benchmarks.checkpoint import __main__ as checkpoint
from benchmarks.cli import __main__ as commands
from benchmarks.control import __main__ as control
from benchmarks.rendezvous.__main__ import AGAIN, FIRST, REPLACED, case, overhead, speedup, table, verdict
from benchmarks.results import Row, Sample, summarise

SPOTSUP, SECURED, C10D, ETCD = "spotsup", "spotsup-secured", "torchrun-c10d", "torchrun-etcd-v2"


def row(case: str, subject: str, metric: str, value: float) -> Row:
    return Row(case, subject, metric, "s", value, value, value, 3)


# -- the control plane ----------------------------------------------------------------------------------------


def test_it_says_how_the_cost_of_a_node_grows_with_their_number() -> None:
    rows = [
        row("1,000 nodes in 20 jobs: training", SPOTSUP, control.NODE_CPU, 50.0),
        row("10,000 nodes in 200 jobs: training", SPOTSUP, control.NODE_CPU, 45.0),
        row("1,000 nodes in 20 jobs: churn", SPOTSUP, control.EVENT_CPU, 10.0),
        row("10,000 nodes in 200 jobs: churn", SPOTSUP, control.EVENT_CPU, 15.0),
    ]
    assert list(control.verdicts(rows)) == [
        "training: CPU per node with 10,000 nodes is 0.90 times that with 1,000 (goal at most 1.2): met",
        "churn: CPU per event with 10,000 nodes is 1.50 times that with 1,000 (goal at most 1.2): missed",
    ]


def test_of_what_was_not_measured_it_says_nothing() -> None:
    assert list(control.verdicts([row("1,000 nodes in 20 jobs: training", SPOTSUP, control.NODE_CPU, 50.0)])) == []


# -- bootstrap ------------------------------------------------------------------------------------------------


def test_what_tls_and_users_cost_is_told_of_each_number_of_nodes() -> None:
    rows = [
        row("1 node", SPOTSUP, bootstrap.WORKERS, 10.0),
        row("1 node", SECURED, bootstrap.WORKERS, 12.0),
        row("8 nodes", SPOTSUP, bootstrap.WORKERS, 10.0),
        row("8 nodes", SECURED, bootstrap.WORKERS, 12.1),
        row("32 nodes", SPOTSUP, bootstrap.WORKERS, 10.0),
    ]
    assert list(bootstrap.overheads(rows)) == [
        "TLS and users, 1 node: +20% until all workers (goal 20%): met",
        "TLS and users, 8 nodes: +21% until all workers (goal 20%): missed",
    ]


# -- checkpoints ----------------------------------------------------------------------------------------------


def test_the_slowest_rank_counts_and_ranks_must_tell_the_same() -> None:
    lines: list[dict[str, str | float]] = [
        {"subject": "spotsup", "metric": "blocking", "seconds": seconds} for seconds in (0.1, 0.3, 0.2)
    ]
    assert checkpoint.slowest("3 processes", lines) == Sample("3 processes", "spotsup", "blocking", "s", 0.3)
    with pytest.raises(AssertionError):
        checkpoint.slowest("3 processes", [*lines, {"subject": "spotsup", "metric": "complete", "seconds": 1.0}])


def test_the_goal_is_judged_by_the_median_of_spotsup_blocking() -> None:
    samples = [
        Sample(case, subject, metric, "s", seconds)
        for case, seconds in (("1 process", 0.301), ("2 processes", 0.3))
        for subject, metric in (("dcp.save", "restore"), ("spotsup", "complete"), ("spotsup", "blocking"))
    ]
    rows = checkpoint.in_order(summarise(samples))
    assert [row.metric for row in rows] == ["blocking", "complete", "restore"] * 2
    assert list(checkpoint.verdicts(rows, 1.0)) == [
        "1 process: training stops for 0.301 s (goal 0.3 s): missed",
        "2 processes: training stops for 0.300 s (goal 0.3 s): met",
    ]
    assert all(sentence.endswith("met") for sentence in checkpoint.verdicts(rows, 2.0))


# -- the rendezvous -------------------------------------------------------------------------------------------


def formed(subject: str, seconds: float, *, size: int = 64, metric: str = AGAIN) -> Row:
    return row(case(size), subject, metric, seconds)


def test_a_speedup_is_that_over_c10d_in_the_same_measurement() -> None:
    rows = [formed(SPOTSUP, 0.25), formed(C10D, 2.0), formed(C10D, 9.0, size=8), formed(C10D, 7.0, metric=FIRST)]
    assert [speedup(rows, each) for each in rows[:2]] == [8.0, 1.0]
    assert speedup(rows[:1], rows[0]) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "report"),
    [
        (0.25, 2.0, "0.250 s (goal 0.5 s), 8.0 times as fast as c10d (goal 5): met"),
        (0.5, 2.5, "0.500 s (goal 0.5 s), 5.0 times as fast as c10d (goal 5): met"),
        (0.51, 5.1, "missed"),
        (0.4, 1.9, "missed"),
        (0.4, None, "0.400 s (goal 0.5 s), c10d was not measured: missed"),
    ],
)
def test_the_verdict_needs_both_goals(mine: float, theirs: float | None, report: str) -> None:
    rows = [formed(SPOTSUP, mine), formed(SPOTSUP, 0.01, size=8), *([formed(C10D, theirs)] if theirs else [])]
    assert verdict(rows).startswith("re-formation of 64: ")
    assert verdict(rows).endswith(report)


@pytest.mark.parametrize(
    ("seconds", "report"), [(0.48, "+20% (goal 20%): met"), (0.49, "+22% (goal 20%): missed"), (0.36, "-10%")]
)
def test_what_tls_and_users_cost_is_compared_with_the_same_measurement_without(seconds: float, report: str) -> None:
    rows = [formed(SPOTSUP, 0.4), formed(SECURED, seconds), formed(SECURED, 9.0, size=8)]
    assert overhead(rows).startswith(f"TLS and users: {report}")
    assert overhead(rows[:1]) == overhead(rows[1:]) == ""


def test_there_is_no_verdict_on_what_was_not_measured() -> None:
    assert verdict([formed(SPOTSUP, 0.1, size=32), formed(C10D, 2.0, size=32)]) == ""


def test_the_table_has_what_belongs_together_side_by_side_and_fits_80_columns() -> None:
    samples = [
        Sample(case(size), subject, metric, "s", value)
        for size in (8, 64)
        for subject, value in ((SPOTSUP, 0.25), (C10D, 2.5), (ETCD, 5.0))
        for metric in (FIRST, AGAIN, *([REPLACED] if subject == SPOTSUP else []))
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(table(summarise(samples)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    message = [" ".join(line.split()) for line in lines if line.strip()][2:]
    assert message == [
        f"{size} nodes {metric} {subject} {value:.3f} s {value:.3f} s {value:.3f} s 1 {times}".rstrip()
        for size in (8, 64)
        for metric, subject, value, times in (
            (FIRST, SPOTSUP, 0.25, "10.0"),
            (FIRST, C10D, 2.5, "1.0"),
            (FIRST, ETCD, 5.0, "0.5"),
            (AGAIN, SPOTSUP, 0.25, "10.0"),
            (AGAIN, C10D, 2.5, "1.0"),
            (AGAIN, ETCD, 5.0, "0.5"),
            (REPLACED, SPOTSUP, 0.25, ""),
        )
    ]


# -- the command line -----------------------------------------------------------------------------------------


def test_commands_count_beside_a_python_that_does_nothing_and_many_of_them_together() -> None:
    rows = [
        row("python -c pass", "floor", "wall", 0.02),
        row("--help", SPOTSUP, "wall", 0.15),
        row("list, 20 jobs × 64 nodes", SPOTSUP, "wall", 0.2),
        row("100 submits", SPOTSUP, "wall", 6.0),
        row("100 cancels, one command", SPOTSUP, "wall", 3.5),
    ]
    assert commands.verdicts(rows) == [
        "--help: 0.130 s, goal 0.15 s met",
        "list, 20 jobs × 64 nodes: 0.180 s, goal 0.15 s MISSED",
        "100 submits and cancels: 9.500 s, goal 10 s met",
    ]
