"""What the node agent decides, and the files that it shares with its launcher."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.agent.decisions import (
    JOB_BYTES_PER_S,
    JOB_KEPT_BYTES,
    MAX_CRASHES,
    Exit,
    Restart,
    collapse,
    cut,
    has_changed,
    judge,
    log_budget,
    must_leave,
)
from spotsup_trainer.agent.notices import LocalReader, NoticeWatcher, reader_for
from spotsup_trainer.launcher.run_dir import Outcome, RunDir
from spotsup_trainer.wire import Ended, Metadata, Progress, encode
from spotsup_trainer.worker_files import WorkerFiles


def test_a_round_a_checkpoint_and_trouble_are_news_and_a_step_is_not() -> None:
    before = Progress(1, 100, 5.0, 1.0, checkpoint_step=50)
    assert has_changed(None, before)
    assert not has_changed(before, replace(before, step=101, at=5.1, samples=3, loss=0.5))
    for changes in ({"round": 2}, {"checkpoint_step": 100}, {"checkpoint_problem": "the disk is full"}):
        assert has_changed(before, replace(before, **changes))


@pytest.mark.parametrize("outcome", ["success", "failure", "left"])
def test_the_launchers_own_outcome_counts(outcome: Literal["success", "failure", "left"]) -> None:
    end = Exit("a", 1, Outcome(outcome, "because"), leaving=False, crashes=0)
    assert judge(end, 5.0) == Ended("a", outcome, 1, "because", 5.0)


@pytest.mark.parametrize(
    ("end", "outcome", "text"),
    [
        (Exit("a", -9, None, leaving=True, crashes=0), "left", "asked to leave: killed by signal 9"),
        (Exit("a", 2, None, leaving=False, crashes=0), "failure", "rejected its command line, such as"),
        (
            Exit("a", -11, None, leaving=False, crashes=MAX_CRASHES),
            "failure",
            "died 6 times in a row: killed by signal 11",
        ),
        (Exit("a", 1, None, leaving=False, crashes=MAX_CRASHES), "failure", "exit code 1"),
    ],
)
def test_what_a_launcher_without_an_outcome_means(end: Exit, outcome: str, text: str) -> None:
    verdict = judge(end, 5.0)
    assert isinstance(verdict, Ended)
    assert verdict.outcome == outcome
    assert text in verdict.message


def test_a_launcher_that_died_is_started_again_later_and_later() -> None:
    verdicts = [judge(Exit("a", -9, None, leaving=False, crashes=n), 0.0) for n in range(MAX_CRASHES)]
    waits = [verdict.after_s for verdict in verdicts if isinstance(verdict, Restart)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_node_leaves_by_itself_only_when_its_notice_runs_out() -> None:
    assert not must_leave(None, 8.0, 1e9)
    assert not must_leave(100.0, 8.0, 91.9)
    assert must_leave(100.0, 8.0, 92.0)


@given(st.integers(0, 10_000))
def test_all_nodes_of_a_job_stay_within_its_budget_of_logs(nodes: int) -> None:
    budget = log_budget(nodes)
    if nodes <= 64:
        assert budget.kept_bytes * nodes <= JOB_KEPT_BYTES
        assert budget.bytes_per_s * nodes <= JOB_BYTES_PER_S
    assert (64 << 10) <= budget.kept_bytes <= (1 << 20)
    assert (1 << 10) <= budget.bytes_per_s <= (16 << 10)


@pytest.mark.parametrize(
    ("raw", "open_line", "shown"),
    [
        (b"\r 10%|x\r 20%|xx", True, b"\n 20%|xx"),
        (b"\r 10%|x\r 20%|xx", False, b" 20%|xx"),
        (b" 10%\r 20%\r", False, b" 20%"),
        (b"one\r\ntwo\r\n", True, b"one\ntwo\n"),
        (b"rest of a line\n 1%\r 2%\nend\n", True, b"rest of a line\n 2%\nend\n"),
        (b"\r\r", True, b""),
    ],
)
def test_a_progress_bar_is_its_last_drawing(raw: bytes, open_line: bool, shown: bytes) -> None:
    assert collapse(raw, open_line=open_line) == shown


@given(st.binary(), st.booleans())
def test_output_without_carriage_returns_stays_as_it_is(raw: bytes, open_line: bool) -> None:
    plain = raw.replace(b"\r", b"")
    assert collapse(plain, open_line=open_line) == plain


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 10))
def test_what_is_cut_is_the_newest_and_says_what_is_missing(text: bytes, room: int, skipped: int) -> None:
    note, _, rest = cut(text, room, skipped, "it is there").rpartition(b"it is there\n")
    assert text.endswith(rest)
    assert len(rest) <= max(room, 0)
    missing = skipped + len(text) - len(rest)
    assert note.decode() == (f"… {missing} bytes skipped; " if missing else "")


def test_metadata_readers() -> None:
    assert reader_for(Metadata("none")) is None
    assert isinstance(reader_for(Metadata("local", "http://127.0.0.1:80")), LocalReader)
    with pytest.raises(ValueError, match="it should look like http"):
        reader_for(Metadata("local", "127.0.0.1"))
    with pytest.raises(ValueError, match="'moon'; it knows: local, aws"):
        reader_for(Metadata("moon", ""))


def test_launcher_and_workers_agree_on_their_files(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "new" / "run")
    workers = [WorkerFiles.named_by(run_dir.worker_env(7, rank)) for rank in range(2)]
    assert (run_dir.sessions(7, 2), run_dir.parked(7, 2)) == (0, 0)
    workers[1].announce()
    assert run_dir.sessions(7, 2) == 1
    assert not workers[0].yield_wanted()
    run_dir.ask_to_yield(7)
    assert all(worker.yield_wanted() for worker in workers)
    for worker in workers:
        with pytest.raises(SystemExit):
            worker.park(3, True, 0.0)
    assert run_dir.parked(7, 2) == 2
    assert run_dir.parked(8, 2) == 0
    progress = Progress(7, 3, 1.0, 0.5)
    workers[0].write_progress(progress)
    assert run_dir.progress() == progress


def test_nothing_of_an_old_round_stays(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for number in (1, 11, 2):
        run_dir.ask_to_yield(number)
        (tmp_path / f"progress-{number}.json").write_bytes(encode(Progress(number, 1, 1.0, 1.0)))
        (tmp_path / f"session-{number}-0").touch()
    (tmp_path / "something-else").touch()
    newest = run_dir.progress()
    assert newest is not None
    assert newest.round == 11
    run_dir.begin(2)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"yield-2", "progress-2.json", "session-2-0", "something-else"}


def test_the_launchers_outcome_is_read_once(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.take_outcome() is None
    (tmp_path / "ended.json").write_text('{"outcome": "nonsense", "message": ""}')
    assert run_dir.take_outcome() is None
    run_dir.write_outcome(Outcome("left", "in order"))
    assert run_dir.take_outcome() == Outcome("left", "in order")
    assert run_dir.take_outcome() is None


def test_a_thousand_rounds_leave_the_files_of_one(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    for number in range(1, 1001):
        run_dir.begin(number)
        run_dir.ask_to_yield(number)
        for rank in range(2):
            environ = run_dir.worker_env(number, rank)
            worker = WorkerFiles.named_by(environ)
            worker.announce()
            worker.write_progress(Progress(number, 1, 0.0, 0.0))
            # a worker that was killed while it wrote
            Path(f"{environ['SPOTSUP_PARKED_FILE']}.tmp").touch()
    run_dir.write_outcome(Outcome("left", "asked to leave"))
    left = sorted(file.name for file in run_dir.path.iterdir())
    assert left == [
        *("ended.json", "parked-1000-0.tmp", "parked-1000-1.tmp", "progress-1000.json"),
        *("session-1000-0", "session-1000-1", "yield-1000"),
    ]
    assert (run_dir.sessions(1000, 2), run_dir.parked(1000, 2)) == (2, 0)


class OddReader:
    """Its cloud answers once in an unforeseen form."""

    def __init__(self) -> None:
        self._answers = iter([None, 17.0])

    def read(self) -> float | None:
        answer = next(self._answers)
        return answer.real  # type: ignore[union-attr]  # of None: an AttributeError


def test_an_unforeseen_answer_of_a_metadata_service_does_not_end_the_watch() -> None:
    deadlines: queue.SimpleQueue[float] = queue.SimpleQueue()
    watcher = NoticeWatcher(OddReader(), deadlines.put)
    watcher.start()
    assert deadlines.get(timeout=30.0) == 17.0
