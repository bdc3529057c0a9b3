"""What a pause consists of: its parts add up, what is not known is no zero, and what is kept is bounded."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.launcher.pauses import MAX_PAUSES, PauseWatch, Stopped, pause_of, with_another
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.moments import Connecting, MomentFile, Moments, connect, read_moments
from spotsup_trainer.wire import PAUSE_PARTS, Pause, Pauses

AT = 1e9
WHOLE = Moments(103.0, 1.0, 104.5, 1.5, 105.0, 110.0)
KILLED = Stopped(95.0, 100.0, parked=False)
PARKED = Stopped(95.0, 100.0, parked=True)


def test_after_a_loss_the_time_until_it_is_known_counts_as_detection() -> None:
    assert pause_of(3, KILLED, 101.0, WHOLE, AT) == Pause(3, AT, 10.0, 5.0, 0.0, 1.0, 1.0, 1.5, 1.0, 0.5)


def test_when_all_were_parked_it_was_the_checkpoint() -> None:
    assert pause_of(3, PARKED, 101.0, WHOLE, AT) == Pause(3, AT, 10.0, 0.0, 5.0, 1.0, 1.0, 1.5, 1.0, 0.5)


def test_a_pause_has_what_was_read_from_where_if_that_is_known() -> None:
    found = pause_of(3, KILLED, 101.0, replace(WHOLE, own_bytes=5.0, peers_bytes=0.0, storage_bytes=2.0**70), AT)
    assert found is not None
    assert found.sources() == {"own": 5, "peers": 0, "storage": None}, "more than 2^53 bytes are a mistake"
    found = pause_of(3, KILLED, 101.0, replace(WHOLE, own_bytes=-1.0), AT)
    assert found is not None
    assert set(found.sources().values()) == {None}


def test_without_a_state_nothing_was_read(tmp_path: Path) -> None:
    MomentFile(tmp_path / "moments", lambda: 1.0).restored(None)
    found = read_moments(tmp_path / "moments")
    assert (found.own_bytes, found.peers_bytes, found.storage_bytes) == (0, 0, 0)


def test_there_is_no_pause_before_a_step_of_the_round_is_completed() -> None:
    assert pause_of(3, KILLED, 101.0, Moments(103.0, 1.0, 104.5, 1.5), AT) is None


@pytest.mark.parametrize(
    ("stopped", "moments", "unknown"),
    [
        # no worker said when its last step was: it had no Session, or made none
        (Stopped(None, 100.0, parked=False), WHOLE, {"pause", "detect", "checkpoint"}),
        # this node was in no round before
        (None, WHOLE, {"pause", "detect", "checkpoint", "agree"}),
        # a callback does not see the framework restore
        (KILLED, Moments(103.0, 1.0, None, None, 105.0), {"restore"}),
        # workers of an interpreter of their own do not say when they connect
        (KILLED, Moments(103.0, None, 104.5, None, 105.0), {"connect"}),
    ],
)
def test_what_is_not_known_is_no_zero(stopped: Stopped | None, moments: Moments, unknown: set[str]) -> None:
    found = pause_of(3, stopped, 101.0, moments, AT)
    assert found is not None
    assert {name for name in ("pause", *PAUSE_PARTS) if getattr(found, f"{name}_s") is None} == unknown
    if found.pause_s is not None:
        assert math.isclose(sum(value for value in found.parts().values() if value is not None), found.pause_s)


@given(
    st.lists(st.floats(0, 1e5), min_size=6, max_size=6).map(sorted),
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_the_parts_add_up_to_the_pause(
    at: list[float], before: float, after: float, parked: bool, restores: bool, connects: bool
) -> None:
    """Whatever is known, and whatever takes how long. `before`, `after`: the shares of the time until Session is
    called, and in it, in which process groups are made."""
    last, known, agreed, called, restored, first = at
    first_connect = before * (called - agreed)
    second_connect = first_connect + after * (restored - called)
    moments = Moments(
        called,
        first_connect if connects else None,
        restored if restores else None,
        second_connect if connects and restores else None,
        first,
        first,
    )
    found = pause_of(2, Stopped(last, known, parked=parked), agreed, moments, AT)
    assert found is not None
    assert found.pause_s is not None
    total = sum(value for value in found.parts().values() if value is not None)
    assert math.isclose(total, found.pause_s, abs_tol=1e-3)
    assert all(value >= 0 for value in found.parts().values() if value is not None)


def test_a_round_without_a_step_prolongs_the_pause(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    watch = PauseWatch(run_dir, "a")
    trained(run_dir, 1, first=5.0, last=10.0)
    watch.stopped(1, 12.0, parked=False)
    watch.agreed(2, 13.0, None)
    watch.stopped(2, 20.0, parked=False)  # it broke before a step
    watch.agreed(3, 21.0, 15.0)  # a loss that was known before
    trained(run_dir, 3, first=30.0, last=31.0)
    watch.look(100.0)
    found = run_dir.pauses()
    assert found is not None
    assert [(each.round, each.pause_s, each.detect_s, each.agree_s) for each in found.pauses] == [(3, 20.0, 5.0, 6.0)]


def test_a_first_round_has_no_pause_and_a_short_one_is_not_missed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    watch = PauseWatch(run_dir, "a")
    watch.agreed(1, 1.0, None)
    trained(run_dir, 1, first=5.0, last=10.0)
    watch.look(100.0)
    watch.stopped(1, 12.0, parked=True)
    assert run_dir.pauses() is None
    watch.agreed(2, 13.0, 12.5)  # losses do not matter to those who have parked
    trained(run_dir, 2, first=14.0, last=14.0)
    watch.stopped(2, 14.1, parked=True)
    found = run_dir.pauses()
    assert found is not None
    assert [(each.round, each.pause_s, each.detect_s, each.checkpoint_s) for each in found.pauses] == [(2, 4.0, 0, 2.0)]


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [((1, 30), (31, 40), 0), ((1, 30), (21, 22), 10), ((1, 30), (50, 51), 0), ((5, 2**60), (1, 2), None)],
)
def test_a_pause_has_how_many_steps_are_made_again(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int], again: int | None
) -> None:
    run_dir = RunDir(tmp_path)
    watch = PauseWatch(run_dir, "a")
    trained(run_dir, 1, first=5.0, last=10.0, steps=before)
    watch.stopped(1, 12.0, parked=False)
    watch.agreed(2, 13.0, None)
    trained(run_dir, 2, first=14.0, last=15.0, steps=after)
    watch.look(100.0)
    found = run_dir.pauses()
    assert found is not None
    assert [each.steps_again for each in found.pauses] == [again]


def test_a_node_that_was_in_no_round_before_does_not_know_what_was_lost() -> None:
    found = pause_of(3, None, 101.0, replace(WHOLE, first_step=5.0), AT)
    assert found is not None
    assert found.steps_again is None


def test_a_few_pauses_are_kept_and_none_of_another_job() -> None:
    found: Pauses | None = None
    for number in range(2, 40):
        found = with_another(found, "a", Pause(number, AT))
    assert found is not None
    assert [each.round for each in found.pauses] == list(range(30, 40))
    assert len(found.pauses) == MAX_PAUSES
    assert [each.round for each in with_another(found, "b", Pause(31, AT)).pauses] == [30, 31]


# -- the worker's file -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sources:
    own: int
    peers: int
    storage: int


READ = (12.0, 34.0, 2.0**40)


def trained(run_dir: RunDir, number: int, first: float, last: float, steps: tuple[int, int] = (1, 2)) -> None:
    times = iter([first, last])
    file = MomentFile(run_dir.path / f"moments-{number}", lambda: next(times))
    file.step_done(steps[0], first=True)
    file.step_done(steps[1], first=False)


def test_a_worker_writes_what_it_has_done_as_it_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "total_s", 0.5)
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    file = MomentFile(tmp_path / "moments", lambda: next(times))
    assert read_moments(tmp_path / "moments") == Moments()
    seen = []
    file.called()
    seen.append(read_moments(tmp_path / "moments"))
    monkeypatch.setattr(connect, "total_s", 0.75)
    file.restored(Sources(12, 34, 2**40))
    for step in (7, 8, 9):
        seen.append(read_moments(tmp_path / "moments"))
        file.step_done(step, first=step == 7)
    assert seen == [
        Moments(1.0, 0.5),
        Moments(1.0, 0.5, 2.0, 0.75, None, None, None, None, *READ),
        Moments(1.0, 0.5, 2.0, 0.75, 3.0, 3.0, 7.0, 7.0, *READ),
        Moments(1.0, 0.5, 2.0, 0.75, 3.0, 4.0, 8.0, 7.0, *READ),
    ]
    assert read_moments(tmp_path / "moments").last_step_at == 5.0
    assert all((tmp_path / "moments").stat().st_size == 88 for _ in pairwise(seen))


def test_a_disk_that_refuses_stops_nothing(tmp_path: Path) -> None:
    for path in (None, tmp_path / "missing" / "moments", tmp_path):
        file = MomentFile(path)
        file.called()
        file.step_done(1, first=True)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"x" * 1000, json.dumps({}).encode(), b"\xff" * 48])
def test_what_a_program_writes_there_is_read_without_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "moments").write_bytes(content)
    found = read_moments(tmp_path / "moments")
    assert isinstance(found, Moments)
    (tmp_path / "pauses.json").write_bytes(content)
    assert RunDir(tmp_path).pauses() is None


def test_time_in_which_process_groups_are_made_counts_once() -> None:
    unknown, known = Connecting(), Connecting()
    known.begin()
    for each in (unknown, known):
        with each.counted(), each.counted():
            pass
    assert unknown.total_s is None
    assert known.total_s is not None
    assert 0 < known.total_s < 1
