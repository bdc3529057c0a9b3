"""What a node's cost is booked for: the sum is the cost, months are in UTC, and what turns out otherwise is moved."""

from __future__ import annotations

import calendar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.billing import (
    EARLIER,
    MAX_MONTHS,
    Booking,
    NodeBilling,
    Purpose,
    RoundTimes,
    booked,
    by_purpose,
    merged,
    month_of,
    month_start,
    moved,
    priced,
)

P = Purpose
DECEMBER = float(calendar.timegm((2026, 12, 1, 0, 0, 0)))
NONE = RoundTimes()


def idle(since: float) -> NodeBilling:
    return NodeBilling(P.IDLE, booked_to=since)


def test_what_a_node_cost_is_booked_by_its_purpose() -> None:
    billing = booked(idle(DECEMBER), 2.0, DECEMBER + 3600, NONE)
    assert billing.bookings == (Booking("2026-12", P.IDLE, 3600.0, 2.0),)
    assert billing.booked_to == DECEMBER + 3600


def test_a_month_ends_at_midnight_utc() -> None:
    assert (month_of(DECEMBER - 1), month_of(DECEMBER)) == ("2026-11", "2026-12")
    assert month_start(DECEMBER - 1) == calendar.timegm((2026, 11, 1, 0, 0, 0))
    found = booked(idle(DECEMBER - 900), 4.0, DECEMBER + 2700, NONE).bookings
    assert found == (Booking("2026-11", P.IDLE, 900.0, 1.0), Booking("2026-12", P.IDLE, 2700.0, 3.0))


def test_a_member_of_a_round_has_the_rounds_purposes() -> None:
    times = RoundTimes(useful_s=90.0, pause_s=10.0, phase=P.USEFUL, since=DECEMBER + 100)
    billing = booked(NodeBilling(P.UNKNOWN, in_round=True, booked_to=DECEMBER), 4.0, DECEMBER + 200, times)
    assert by_purpose(billing.bookings) == {**dict.fromkeys(P, 0.0), P.USEFUL: 3.8, P.PAUSE: pytest.approx(0.2)}
    more = booked(billing, 5.0, DECEMBER + 250, times)
    assert by_purpose(more.bookings)[P.USEFUL] == pytest.approx(4.8), "only what is new since then"


def test_useful_time_that_turns_out_to_be_lost_is_moved() -> None:
    times = RoundTimes(useful_s=0.0, phase=P.USEFUL, since=DECEMBER)
    billing = booked(NodeBilling(P.UNKNOWN, in_round=True, booked_to=DECEMBER), 1.0, DECEMBER + 100, times)
    lost = RoundTimes(useful_s=70.0, lost_s=30.0, pause_s=10.0, phase=P.USEFUL, since=DECEMBER + 110)
    found = by_purpose(booked(billing, 1.1, DECEMBER + 110, lost).bookings)
    assert found == {
        **dict.fromkeys(P, 0.0),
        P.USEFUL: pytest.approx(0.7),
        P.LOST: pytest.approx(0.3),
        P.PAUSE: pytest.approx(0.1),
    }


def test_no_more_is_moved_than_was_useful() -> None:
    billing = NodeBilling(bookings=(Booking("2026-11", P.USEFUL, 10.0, 1.0), Booking("2026-12", P.USEFUL, 10.0, 1.0)))
    found = moved(billing, 15.0, P.LOST).bookings
    assert found == (
        Booking("2026-11", P.LOST, 5.0, 0.5),
        Booking("2026-11", P.USEFUL, 5.0, 0.5),
        Booking("2026-12", P.LOST, 10.0, 1.0),
    )
    assert by_purpose(moved(billing, 99.0, P.LOST).bookings)[P.LOST] == 2.0


def test_a_price_that_comes_late_is_that_of_the_whole_time() -> None:
    billing = booked(NodeBilling(P.BOOT, booked_to=DECEMBER), 0.0, DECEMBER + 1800, NONE)
    assert priced(billing, 3.0).bookings == (Booking("2026-12", P.BOOT, 1800.0, 1.5),)


def test_a_cost_that_shrinks_with_the_clock_leaves_no_purpose_with_more() -> None:
    billing = booked(idle(DECEMBER), 2.0, DECEMBER + 3600, NONE)
    assert by_purpose(booked(billing, 0.5, DECEMBER + 900, NONE).bookings)[P.IDLE] == pytest.approx(0.5)


def test_the_oldest_months_are_one() -> None:
    months = [f"{2000 + n // 12}-{n % 12 + 1:02d}" for n in range(MAX_MONTHS + 2)]
    found = merged(Booking(month, P.IDLE, 1.0, 1.0) for month in months)
    assert (len(found), found[0]) == (MAX_MONTHS + 1, Booking(EARLIER, P.IDLE, 2.0, 2.0))
    assert merged(found) == found, "it stays so"


ROUND = st.builds(
    RoundTimes,
    *[st.floats(0, 1e7)] * 4,
    phase=st.sampled_from([P.USEFUL, P.PAUSE, P.UNKNOWN]),
    since=st.floats(1, 2e8),
)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(P), st.floats(0, 1e8), st.floats(0, 1e4), ROUND), max_size=8)


@given(STEPS)
def test_the_sum_is_the_cost_and_no_purpose_has_less_than_nothing(
    steps: list[tuple[bool, Purpose, float, float, RoundTimes]],
) -> None:
    billing, at = idle(1.0), 1.0
    for inside, purpose, more_s, usd, times in steps:
        at += more_s
        billing = booked(billing, usd, at, times)
        assert billing.usd == pytest.approx(usd if billing.bookings else 0.0, abs=1e-6)
        assert all(each.usd >= -1e-9 and each.seconds >= -1e-6 for each in billing.bookings)
        billing = moved(billing, more_s / 3, P.LOST)
        billing = NodeBilling(
            purpose, inside, at, times.useful_s, times.pause_s, times.lost_s, times.unknown_s, 0, 0.0, billing.bookings
        )
