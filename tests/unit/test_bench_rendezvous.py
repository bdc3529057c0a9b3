"""What `make bench-rendezvous` computes from its measurements."""

import io

import pytest
from rich.console import Console

from benchmarks.rendezvous.__main__ import AGAIN, FIRST, REPLACED, case, speedup, table, verdict
from benchmarks.results import Row, Sample, summarise

SPOTSUP, C10D, ETCD = "spotsup", "torchrun-c10d", "torchrun-etcd-v2"


def row(subject: str, median: float | None, *, size: int = 64, metric: str = AGAIN) -> Row:
    return Row(case(size), subject, metric, "s", median, median, median, 3)


def test_a_speedup_is_that_over_c10d_in_the_same_measurement() -> None:
    rows = [row(SPOTSUP, 0.25), row(C10D, 2.0), row(C10D, 9.0, size=8), row(C10D, 7.0, metric=FIRST)]
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
    rows = [row(SPOTSUP, mine), row(SPOTSUP, 0.01, size=8), *([row(C10D, theirs)] if theirs else [])]
    assert verdict(rows).startswith("re-formation of 64: ")
    assert verdict(rows).endswith(report)


def test_there_is_no_verdict_on_what_was_not_measured() -> None:
    assert verdict([row(SPOTSUP, 0.1, size=32), row(C10D, 2.0, size=32)]) == ""


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
