"""For which rank all others wait, as status and the page say it."""

from __future__ import annotations

import pytest
from rich.console import Console
from spotsup_trainer.wire import RankTimes

from supervisor.api.jobs.ranks import is_waited_for, rank_rows
from supervisor.api.jobs.views import job_detail
from supervisor.cli import show
from supervisor.planner.world import JobView
from tests.unit.scene import NOW, job, member, name, view


def view_of(*step_s: float, number: int = 1) -> JobView:
    return view(job(3), [member(n) for n in (1, 2, 3)], rank_times=RankTimes(number, NOW, step_s, step_s))


def test_each_rank_has_its_node_and_for_how_long_the_others_wait_for_it() -> None:
    rows = rank_rows(view_of(0.1, 0.1, 0.1, 0.16, 0.0, 0.1))
    assert [(row["rank"], row["node"]) for row in rows] == [
        (0, name(1)),
        (1, name(1)),
        (2, name(2)),
        (3, name(2)),
        (5, name(3)),
    ]
    assert [row["waited_s"] for row in rows] == pytest.approx([0.0, 0.0, 0.0, 0.06, 0.0])
    assert [row["rank"] for row in rows if is_waited_for(row)] == [3]


@pytest.mark.parametrize("found", [view_of(0.1, 0.1), view_of(), view_of(0.1, 0.1, 0.1, number=9)])
def test_a_report_that_does_not_fit_the_round_has_no_rows(found: JobView) -> None:
    assert rank_rows(found) == []


@pytest.mark.parametrize(
    ("last_s", "said"),
    [(0.16, "all others wait 60 ms in each step for rank 2 on job-u-3, which works 160 ms"), (0.105, "")],
)
def test_status_names_the_rank_that_all_others_wait_for(
    last_s: float, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "console_of", lambda: Console(width=200))
    show.show_job(job_detail(view_of(0.1, 0.1, last_s), "3 nodes train", NOW))
    printed = capsys.readouterr().out
    assert said in printed
    assert ("wait" in printed) is bool(said)
