"""When the jobs of a simulation are submitted: by name, or as schedule.csv says."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsup_simulator.replay.ledger import Part, Result, total_of
from spotsup_simulator.replay.schedule import Entry, schedule_of
from spotsup_simulator.replay.tables import table_of_jobs

from supervisor.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.yaml", "a.yaml", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def test_without_a_schedule_files_come_in_the_order_of_their_names(folder: Path) -> None:
    assert schedule_of(folder, 2.0, 10.0) == [Entry("a.yaml", 0.0, 10.0), Entry("b.yaml", 2.0, 10.0)]


def test_a_schedule_gives_times_and_work_and_may_leave_files_out(folder: Path) -> None:
    (folder / "schedule.csv").write_text("job,hours,work\n\nb.yaml, 0.5, 40\na.yaml,0,\n")
    assert schedule_of(folder, 2.0, 10.0) == [Entry("b.yaml", 0.5, 40.0), Entry("a.yaml", 0.0, 10.0)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"schedule.csv does not begin with `job,hours,work`"),
        ("job,hours,work\n", r"schedule.csv has no rows below its first line"),
        ("job,hours,work\na.yaml,1\n", r"'a.yaml,1' has 2 columns, not the 3 of its first line"),
        ("job,hours,work\na.yaml,-1,\n", r"'-1' is no number of hours from 0 on"),
        ("job,hours,work\na.yaml,1,nan\n", r"'nan' is no number of hours from 0 on"),
        ("job,hours,work\nc.yaml,1,\n", r"schedule.csv names 'c.yaml', which .* does not have"),
    ],
)
def test_a_schedule_that_says_nothing_clear_is_refused(folder: Path, text: str, sentence: str) -> None:
    (folder / "schedule.csv").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        schedule_of(folder)


def test_a_folder_without_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no folder: --jobs names one with job files"):
        schedule_of(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no job files"):
        schedule_of(tmp_path)


def part(job: str, submitted_h: float, hours: float, *, finished: bool = True, usd: float | None = 2.0) -> Part:
    result = Result(
        "spotsup", hours, finished, 4.0, 8.0, 8.0, 5.0, 0.0, usd, None, 0.0, 0.0, 0.0, 1, 2, 3, 4
    )  # fmt: skip
    return Part(job, submitted_h, 0.25, result)


def test_the_sum_counts_from_the_first_submission_to_the_last_end() -> None:
    total = total_of("spotsup", [part("a", 1.0, 2.0), part("b", 2.0, 5.5)])
    assert (total.makespan_h, total.useful_node_h, total.usd, total.usd_per_useful_node_h) == (6.5, 8.0, 4.0, 0.5)
    assert (total.finished, total.requests) == (2, 6)


def test_a_job_that_has_not_ended_has_no_makespan_and_one_without_a_price_no_sum() -> None:
    parts = [part("a", 0.0, 2.0), part("b", 0.0, 5.5, finished=False, usd=None)]
    total = total_of("spotsup", parts)
    assert (total.makespan_h, total.usd, total.usd_per_useful_node_h) == (None, None, None)
    head, *lines = table_of_jobs(parts, [total]).splitlines()
    assert head.split()[:2] == ["job", "submitted"]
    assert [line.split()[:4] for line in lines[:2]] == [["a", "0.00", "0.25", "2.00"], ["b", "0.00", "0.25", "not"]]
    assert "1 of 2" in lines[2]
