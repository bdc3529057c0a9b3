"""What the daemon is compared with: the oracle and the rule that restarts everything, on markets worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_simulator.replay import baselines, oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S
from spotsup_simulator.replay.recording import Recording, Series

COSTS = Costs(checkpoint_s=0.0, spot_usd_per_hour=1.0)
WORTH = 100.0


def market(*rows: tuple[int, ...], prices: tuple[float, ...] = (), interval_s: float = HOUR_S) -> Recording:
    """A row for each interval."""
    seconds = tuple(interval_s * number for number in range(len(rows)))
    zones = tuple("abcdef"[: len(rows[0])])
    drops = tuple(
        tuple(s for s, old, new in zip(seconds[1:], rows, rows[1:], strict=False) if new[zone] < old[zone])
        for zone in range(len(zones))
    )
    priced = Series((0.0,), (prices,)) if prices else None
    return Recording("hand", zones, Series(seconds, rows), priced, interval_s * len(rows), drops)


def test_the_oracle_waits_for_nothing_but_the_first_machines() -> None:
    found = oracle.best(market((2,), (2,)), 1, 2, COSTS, WORTH)
    assert found.useful_node_h == pytest.approx(4 - 2 * 120 / 3600)
    assert (found.paid_node_h, found.pauses, found.moves, found.requests) == (4, 0, 0, 2)


def test_the_oracle_moves_in_time_for_one_pause_and_the_machines_that_arrive_meanwhile() -> None:
    found = oracle.best(market((1, 1), (0, 1)), 1, 1, COSTS, WORTH)
    by_moving = oracle.best(market((1, 0), (0, 1)), 1, 1, COSTS, WORTH)
    assert (found.moves, found.pauses) == (0, 0), "it knows which of the two lasts"
    assert (by_moving.moves, by_moving.pauses) == (1, 1)
    assert by_moving.useful_node_h == pytest.approx(2 - 2 * 120 / 3600 - 5 / 3600)
    early = oracle.best(market((1, 0), (1, 1), (0, 1)), 1, 1, COSTS, WORTH)
    assert early.useful_node_h == pytest.approx(3 - (120 + 5) / 3600), "the second zone had it before: no wait"
    assert early.paid_node_h == pytest.approx(3 + 120 / 3600)


def test_the_oracle_takes_the_cheaper_of_two_zones_and_pays_for_no_useless_machine() -> None:
    cheap = oracle.best(market((1, 1), prices=(0.5, 0.4)), 1, 1, COSTS, WORTH)
    assert cheap.usd == pytest.approx(0.4)
    too_few = oracle.best(market((1, 2), (1, 2)), 3, 4, COSTS, WORTH)
    assert (too_few.useful_node_h, too_few.paid_node_h, too_few.waited_h) == (0, 0, 2)


def test_restarting_all_loses_the_time_since_the_last_checkpoint_and_six_minutes_each_time() -> None:
    found = baselines.restart_all(market((2,), (1,), (2,)), 2, COSTS)
    # From 360 s to 3600 s it writes ten checkpoints and loses 240 s; then it asks each minute for an hour.
    assert found.useful_node_h == pytest.approx(2 * (3000 + 3240) / 3600)
    assert (found.pauses, found.moves) == (1, 0)
    assert found.lost_node_h == pytest.approx(2 * 240 / 3600)
    assert found.requests == 2 * (1 + 60 + 1)
    odd = baselines.restart_all(market((2,), (1,), interval_s=1000.0), 2, COSTS)
    assert odd.useful_node_h == pytest.approx(2 * 600 / 3600)
    assert odd.lost_node_h == pytest.approx(2 * 40 / 3600)


def test_restarting_all_asks_zone_after_zone_the_cheapest_first() -> None:
    found = baselines.restart_all(market((0, 1), prices=(0.1, 0.2)), 1, COSTS)
    assert found.refusals == 1
    assert found.waited_h == pytest.approx((60 + 360) / 3600)
    assert found.usd == pytest.approx(0.2 * (3600 - 60) / 3600)


def test_both_end_with_the_work() -> None:
    for found in (
        baselines.restart_all(market((2,), (2,)), 2, COSTS, 2.0),
        oracle.best(market((2,), (2,)), 1, 2, COSTS, WORTH, 1.5),
    ):
        assert found.finished
        assert found.hours < 1.2


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12), st.integers(1, 3))
def test_nobody_does_better_than_the_oracle(rows: list[tuple[int, ...]], least: int) -> None:
    recording = market(*rows, interval_s=600.0)
    found = oracle.best(recording, least, 4, COSTS, WORTH)
    other = baselines.restart_all(recording, 4, COSTS)
    assert other.useful_node_h <= found.useful_node_h + 1e-9 <= found.offered_node_h + 2e-9
    assert found.paid_node_h >= found.useful_node_h - 1e-9
