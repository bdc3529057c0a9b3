"""What is kept of pools: rows only where something changes, the least of each five minutes, gaps, broken records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.base import Market, Offer
from supervisor.model import NodeRecord, NodeState, move_node
from supervisor.pool_days import (
    DAY_MINUTES,
    MAX_BYTES,
    SLOT_MINUTES,
    PoolDay,
    PoolName,
    Row,
    Seen,
    as_json,
    decode_day,
    encode_day,
    extended,
    fits,
    from_json,
    interrupted,
    is_held,
    pool_of,
    seen_of,
    totals,
    was_refused,
)

OFFER = Offer("aws", "us-west-2", "us-west-2a", "p3.2xlarge", Market.SPOT, 0.918)
POOL = pool_of(OFFER)
NODE = NodeRecord("job-abcde-1", "job", "token", OFFER, 10.0)
DAY = PoolDay(POOL, (Row(0, 2, 2, 0, 0.918), Row(65, 1, 0, 3, 0.918), Row(70, None, 0, 0, None)), 75)


def played(*looks: tuple[int, Seen], held: int = 0) -> PoolDay:
    """The day after being looked at in these minutes."""
    day = PoolDay(POOL)
    for minute, seen in looks:
        day = extended(day, minute, held, seen)
        held = seen.held
    return day


def rows_of(*looks: tuple[int, Seen], held: int = 0) -> list[tuple[int, int | None, int, int]]:
    return [row[:4] for row in played(*looks, held=held).rows]


# -- rows ----------------------------------------------------------------------------------------------------


def test_a_row_is_written_only_where_something_changes_and_has_the_least_of_its_five_minutes() -> None:
    looks = [(60, Seen(1, granted=1)), (61, Seen(2, granted=1)), (62, Seen(2)), (65, Seen(2)), (70, Seen(2))]
    assert rows_of(*looks) == [(60, 0, 2, 0), (65, 2, 0, 0)], "at 60 there were none yet"
    assert played(*looks).until == 70, "up to when it is known to hold"
    lost = [*looks, (71, Seen(1)), (73, Seen(2, granted=1)), (76, Seen(2))]
    assert rows_of(*lost)[2:] == [(70, 1, 1, 0), (75, 2, 0, 0)], "the machine was lost, and replaced, in one row"
    unseen = [*looks, (71, Seen(2, granted=1)), (76, Seen(2))]
    assert rows_of(*unseen)[2:] == rows_of(*lost)[2:], "between two looks"


def test_answers_and_prices_are_changes_too() -> None:
    assert rows_of((0, Seen(0, refused=2)), (4, Seen(0, refused=1)), (9, Seen(0))) == [(0, 0, 0, 3)]
    priced = played((0, Seen(1, usd_per_hour=0.5)), (5, Seen(1)), (10, Seen(1, usd_per_hour=0.6)), held=1)
    assert [(row.minute, row.usd_per_hour) for row in priced.rows] == [(0, 0.5), (10, 0.6)]
    assert totals([priced, played((0, Seen(1, granted=1, refused=2)))]) == (1, 2)


def test_what_is_not_held_is_not_known_to_be_there_for_longer() -> None:
    assert played((0, Seen(0, refused=1)), (600, Seen(0))).until == 0


def test_a_clock_that_went_back_changes_nothing() -> None:
    day = played((600, Seen(2, granted=2)), (610, Seen(2)))
    assert extended(day, 300, 2, Seen(1)) is day
    assert extended(day, 610, 2, Seen(2)) is day, "nothing new is the same object"


@given(st.lists(st.tuples(st.integers(0, 3), st.builds(Seen, *[st.integers(0, 9)] * 3)), max_size=400))
def test_a_day_has_at_most_288_rows_in_order_and_never_more_than_was_held(looks: list[tuple[int, Seen]]) -> None:
    minute, day, before, held = 0, PoolDay(POOL), 0, dict[int, list[int]]()
    for later, seen in looks:
        minute = min(minute + later, DAY_MINUTES - 1)
        day = extended(day, minute, before, seen)
        held.setdefault(minute // SLOT_MINUTES, [before]).append(max(0, seen.held - seen.granted))
        before = seen.held
    minutes = [row.minute for row in day.rows]
    assert minutes == sorted(set(minutes))
    assert len(minutes) <= DAY_MINUTES // SLOT_MINUTES
    for slot, found in held.items():
        last = [row for row in day.rows if row.minute <= slot * SLOT_MINUTES]
        assert not last or last[-1].held == min(found)
    assert totals([day]) == (sum(seen.granted for _, seen in looks), sum(seen.refused for _, seen in looks))
    assert decode_day(encode_day(day)) == day


def test_the_fullest_day_takes_few_kilobytes() -> None:
    rows = tuple(Row(minute, 1000, 1000, 1000, 12.345678) for minute in range(0, DAY_MINUTES, SLOT_MINUTES))
    assert len(encode_day(PoolDay(POOL, rows, DAY_MINUTES))) < 11_000 < MAX_BYTES


# -- gaps ----------------------------------------------------------------------------------------------------


def test_for_what_nobody_watched_nothing_is_known() -> None:
    day = played((600, Seen(2, granted=2)), (607, Seen(2)))
    assert interrupted(day, 609) is day, "within five minutes nothing is missing"
    taken_up = interrupted(day, 660)
    assert [row[:2] for row in taken_up.rows] == [(600, 0), (605, 2), (610, None)]
    assert [row[:2] for row in extended(taken_up, 661, 2, Seen(2)).rows][3:] == [(660, 2)]
    assert interrupted(day, 610).rows[-1] == Row(610, None, 0, 0, None)
    merged = extended(interrupted(day, 612), 613, 2, Seen(2, granted=1))
    assert merged.rows[-1] == Row(610, None, 1, 0, None), "the same five minutes stay unknown"
    assert extended(merged, 615, 2, Seen(2)).rows[-1].held == 2
    nothing_held = played((600, Seen(0, refused=1)))
    assert interrupted(nothing_held, 900) is nothing_held
    assert interrupted(PoolDay(POOL), 900) == PoolDay(POOL)


# -- nodes ---------------------------------------------------------------------------------------------------


def refused(node: NodeRecord, message: str = "no capacity") -> NodeRecord:
    return replace(move_node(node, NodeState.GONE, 11.0, message), error=message, ended_at=11.0)


def test_what_counts_as_held_and_as_refused() -> None:
    runs = replace(NODE, state=NodeState.MEMBER, launched_at=11.0)
    assert is_held(runs)
    assert not is_held(NODE), "its cloud has not answered"
    for state in (NodeState.LOST, NodeState.FAILED, NodeState.TERMINATING, NodeState.GONE):
        assert not is_held(replace(runs, state=state))
    assert not is_held(replace(runs, ended_at=12.0))
    assert was_refused(refused(NODE))
    assert was_refused(refused(NODE, "no\ncapacity " + 600 * "x")), "as the reason was cut"
    withdrawn = replace(move_node(NODE, NodeState.GONE, 11.0, "nothing was launched"), error="throttled")
    assert not was_refused(withdrawn)
    assert not was_refused(replace(refused(NODE), history=()))
    assert not was_refused(replace(refused(NODE), launched_at=11.0)), "it was granted, and ended"


def test_an_answer_counts_once_and_not_those_that_were_there_before() -> None:
    runs = replace(NODE, state=NodeState.MEMBER, launched_at=11.0)
    other = replace(refused(NODE), id="job-abcde-2", offer=replace(OFFER, zone="us-west-2b"))
    after = {runs.id: runs, other.id: other}
    zone_b = POOL._replace(zone="us-west-2b")
    assert seen_of(after, {NODE.id: NODE}) == {
        POOL: Seen(1, 1, 0, 0.918),
        zone_b: Seen(0, 0, 1, 0.918),
    }
    assert seen_of(after, after) == {POOL: Seen(1, 0, 0, 0.918)}
    assert seen_of(after, None) == {POOL: Seen(1, 0, 0, 0.918)}, "a new leader"
    assert Seen(1, 1, 0, 0.5).plus(Seen(2, 0, 3, None)) == Seen(3, 1, 3, 0.5)


# -- records -------------------------------------------------------------------------------------------------


def test_a_record_comes_back_and_a_newer_version_may_have_added_to_it() -> None:
    assert decode_day(encode_day(DAY)) == DAY
    newer = as_json(DAY)
    newer["more"], newer["pool"] = {"nested": [1]}, [*newer["pool"], "new"]
    newer["rows"] = [[*row, 7, "new"] for row in newer["rows"]]
    assert from_json(newer) == DAY


BROKEN: dict[str, Any] = {
    "no object": [],
    "nothing": {},
    "rows of another kind": {"rows": "x"},
    "a row too short": {"rows": [[0, 1, 0, 0]]},
    "a row of another kind": {"rows": [7]},
    "rows out of order": {"rows": [[5, 1, 0, 0, None], [0, 1, 0, 0, None]]},
    "two rows of one minute": {"rows": [[5, 1, 0, 0, None], [5, 1, 0, 0, None]]},
    "a minute beyond the day": {"rows": [[1440, 1, 0, 0, None]]},
    "a minute between rows": {"rows": [[1, 1, 0, 0, None]]},
    "negative": {"rows": [[0, -1, 0, 0, None]]},
    "too many": {"rows": [[0, 10**9, 0, 0, None]]},
    "no number": {"rows": [[0, "4", 0, 0, None]]},
    "true": {"rows": [[0, True, 0, 0, None]]},
    "a price without end": {"rows": [[0, 1, 0, 0, float("inf")]]},
    "a price of another kind": {"rows": [[0, 1, 0, 0, "1"]]},
    "no price": {"rows": [[0, 1, 0, 0, float("nan")]]},
    "until beyond the day": {"until": 1441},
    "until of another kind": {"until": None},
    "a pool of another kind": {"pool": 7},
    "a pool too short": {"pool": ["aws", "r", "z"]},
    "another market": {"pool": ["aws", "r", "z", "t", "futures"]},
    "a name that cannot be printed": {"pool": ["aws", "r", "\x1b[2J", "t", "spot"]},
    "a long name": {"pool": ["aws", "r", "z" * 101, "t", "spot"]},
    "more rows than a day has": {"rows": [[0, 1, 0, 0, None]] * 5000},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_does_not_fit_is_not_used(name: str) -> None:
    value = BROKEN[name]
    whole = {**as_json(DAY), **value} if value and isinstance(value, dict) else value
    assert decode_day(json.dumps(whole).encode()) is None


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[" * 20_000, b"{" * 9, b" " * (MAX_BYTES + 1), b"1e999", b"null"])
def test_what_is_no_json_is_not_used(raw: bytes) -> None:
    assert decode_day(raw) is None


@given(st.binary(max_size=200))
def test_nothing_that_is_read_raises(raw: bytes) -> None:
    decode_day(raw)


def test_the_key_of_a_pool_is_one_path_whatever_its_names() -> None:
    odd = PoolName("aws", "r", "a/b", "../x", "spot")
    assert odd.key == "aws/a%2Fb/..%2Fx/spot"
    assert fits(odd)
    assert not fits(odd._replace(zone="\n"))
