"""When what was printed: the sections that an agent writes, and what the daemon makes of whatever a node writes."""

from __future__ import annotations

import datetime as dt
import json
from itertools import pairwise

import pytest
from spotsup_trainer.agent import log_times
from spotsup_trainer.agent.log_times import MAX_SECTIONS, SECTION_S, LogTimes
from spotsup_trainer.etcd import KeyValue

from supervisor.cli.durations import next_time, time_of
from supervisor.errors import UsageError
from supervisor.journal import output
from supervisor.journal.output import begins_at


def test_a_section_is_written_when_the_one_before_is_over() -> None:
    times = LogTimes()
    written = [times.add(float(at), at // 50, at, range(100)) for at in range(100)]
    assert [at for at, raw in enumerate(written) if raw] == [0, 30, 60, 90]
    assert json.loads(written[90] or b"") == [[0, 29, 0, 0], [30, 59, 0, 30], [60, 89, 1, 60], [90, 90, 1, 90]]
    again = LogTimes(written[90] or b"")
    assert again.add(95.0, 1, 95, range(100)) is None
    assert json.loads(again.add(200.0, 2, 0, {2}) or b"") == [[200, 200, 2, 0]], "chunks that are gone are forgotten"


def test_there_is_a_bound_and_the_oldest_sections_become_longer() -> None:
    times = LogTimes()
    found = [times.add(n * SECTION_S, n, 0, range(2000)) for n in range(1000)]
    sections = json.loads(found[-1] or b"")
    assert len(sections) <= MAX_SECTIONS
    assert sections[0][0] == 0
    assert all(before[1] <= after[0] for before, after in pairwise(sections))


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"{}", b"[1]", b"[[1]]", b'[["a", 1, 2, 3]]', b"[[1, 1, 1e999, 0]]", b"[" * 9999]
)
def test_times_that_are_none_leave_all_output(raw: bytes) -> None:
    found = [("n/times", KeyValue("", raw, 1, 1)), ("n/00000000", KeyValue("", b"text\n", 1, 1))]
    assert begins_at(found, 5.0) == {}
    assert LogTimes(raw).add(1.0, 0, 0, {0}) == b"[[1.0, 1.0, 0, 0]]"


def test_output_begins_with_a_whole_line() -> None:
    raw = json.dumps([[0, 10, 0, 0], [100, 110, 0, 8], [200, 200, 1, 2]]).encode()
    found = [("n/times", raw), ("n/00000000", "aé\nopen line".encode()), ("n/00000001", b"x\nyz\nz")]
    keys = [(key, KeyValue("", data, 1, 1)) for key, data in found]
    assert begins_at(keys, 5.0) == {"n": ("00000000", 0)}
    assert begins_at(keys, 50.0) == {"n": ("00000000", 3)}
    assert begins_at(keys, 229.0) == {"n": ("00000001", 2)}
    assert begins_at(keys, 231.0) == {"n": ("00000001", 5)}, "the line that is open is shown once it ends"


def test_both_sides_mean_the_same_length() -> None:
    assert output.SECTION_S == log_times.SECTION_S


def test_times_are_read_as_people_write_them() -> None:
    assert time_of("1h30m", 10_000.0) == 4600.0
    assert time_of("1970-01-01T00:01Z", 0.0) == 60.0
    for wrong in ("yesterday", "10", "10x", "2026-13-01"):
        with pytest.raises(UsageError):
            time_of(wrong, 0.0)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("8h", "2026-12-24 20:00"),
        ("18:00", "2026-12-24 18:00"),
        ("11:30", "2026-12-25 11:30"),
        ("12:00", "2026-12-25 12:00"),
        ("2026-12-31T08:00", "2026-12-31 08:00"),
    ],
)
def test_a_time_to_come_is_the_next_one(text: str, then: str) -> None:
    now = dt.datetime(2026, 12, 24, 12).timestamp()  # noqa: DTZ001 - the clock on the wall
    assert next_time(text, now) == dt.datetime.fromisoformat(then).timestamp()


@pytest.mark.parametrize("text", ["soon", "25:00", "2026-12-24T11:00", "-1h"])
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="time"):
        next_time(text, dt.datetime(2026, 12, 24, 12).timestamp())  # noqa: DTZ001 - as above
