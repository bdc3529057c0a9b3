"""How new the journal was when the daemon last saw it: kept on its disk, and compared whenever etcd is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.model import ClusterRecord
from supervisor.planner.continuity import Mark, believed, doubted, mark_of
from supervisor.runtime.marks import SAVE_S, Continuity, MarkFile

NOW = 1000.0
MARK = Mark(begun_at=1.0, epoch=2, beat=3, revision=4)


def test_a_mark_outlives_its_daemon(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "journal.json")
    assert file.load() is None
    assert Continuity(store=file).see(MARK, NOW)
    assert json.loads((tmp_path / "journal.json").read_text()) == {
        "begun_at": 1.0,
        "epoch": 2,
        "beat": 3,
        "revision": 4,
    }
    assert file.load() == MARK
    assert [each.name for each in tmp_path.iterdir()] == ["journal.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"begun_at": "x", "epoch": 1, "beat": 1, "revision": 1}'])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    assert Continuity(store=MarkFile(tmp_path / "journal.json")).newest is None


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    known = Continuity(store=MarkFile(tmp_path / "missing" / "journal.json"))
    assert known.see(MARK, NOW)
    assert known.newest == MARK


@pytest.mark.parametrize(
    "older", [Mark(0.0, 9, 9, 9), Mark(1.0, 1, 9, 9), Mark(1.0, 2, 2, 9), Mark(1.0, 2, 3, 3)], ids=str
)
def test_a_journal_is_older_by_when_it_begun_its_epoch_its_beat_or_its_revision(older: Mark) -> None:
    known = Continuity()
    assert known.see(MARK, NOW)
    assert not known.see(older, NOW + 1)
    assert known.newest == MARK, "that does not make the older one right"
    assert known.see(MARK, NOW + 2)
    known.begin(older)
    assert known.see(older, NOW + 3)


def test_the_disk_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "journal.json")
    known = Continuity(store=file)
    for number in range(5):
        known.see(Mark(1.0, 0, 0, number), NOW + number * SAVE_S / 4)
    assert (file.load(), known.newest) == (Mark(1.0, 0, 0, 4), Mark(1.0, 0, 0, 4))
    known.see(Mark(1.0, 0, 0, 5), NOW + 1.1 * SAVE_S)
    assert file.load() == Mark(1.0, 0, 0, 4), "a second has not passed"
    assert known.see(Mark(1.0, 0, 0, 5), NOW - 100), "a clock that is set back holds nothing up"
    assert file.load() == Mark(1.0, 0, 0, 5)


def test_a_doubt_is_raised_once_and_ended_by_an_operator() -> None:
    record = ClusterRecord(1.0, "me", accounts={"aws": "111", "gcp": "p"}, epoch=1, beat=2)
    after = doubted(record, "why", NOW, seen=MARK)
    assert (after.doubted_at, after.doubt, after.epoch) == (NOW, "why", 3)
    assert mark_of(after, 1) > MARK, "each daemon that has seen the newer journal goes by it"
    over = believed(after, {"aws": "222"})
    assert (over.doubted_at, over.doubt, over.epoch) == (0.0, "", 3)
    assert over.accounts == {"aws": "222", "gcp": "p"}
