"""Time limits: what must hold between them, and ten minutes without etcd in no time."""

from __future__ import annotations

import itertools

import pytest
from spotsup_trainer.timing import MAX_OUTAGE_S, RETRY_S, LeaseTimes, Patience, retry_s

# from the shortest lease that etcd grants to the longest that the configuration takes
every_lease = pytest.mark.parametrize(
    "times", [LeaseTimes(ttl_s, endpoints) for ttl_s in (2.0, 5.0, 60.0) for endpoints in (1, 2, 3, 5, 7)], ids=str
)


@every_lease
def test_a_silent_etcd_is_known_to_be_away_before_a_lease_that_was_renewed_in_time_ends(times: LeaseTimes) -> None:
    assert times.pulse_s + times.call_s < times.ttl_s - times.renew_s


@every_lease
def test_the_grace_period_outlasts_the_last_reconnection(times: LeaseTimes) -> None:
    """It was in an attempt over all endpoints, paused, and found one endpoint that answered: for lease, and for put."""
    back_after_s = times.endpoints * times.call_s + max(RETRY_S) + 2 * times.call_s
    assert times.grace_s >= back_after_s


def test_ten_minutes_without_etcd_are_few_attempts_and_the_next_one_is_never_far() -> None:
    attempts = sum(1 for at in itertools.accumulate(retry_s(n) for n in range(10_000)) if at <= 600)
    assert 500 < attempts < 620
    assert retry_s(10**9) <= 1.0


def test_who_waits_for_a_round_waits_on_when_etcd_was_away_meanwhile() -> None:
    patience = Patience(600.0, now=0.0)
    assert not patience.is_over(300.0, away=False)
    assert not patience.is_over(300.0 + 1200.0, away=True)
    assert not patience.is_over(1500.0 + 299.0, away=False)
    assert patience.is_over(1500.0 + 300.0, away=False)


def test_the_wait_for_an_etcd_that_stays_away_is_bounded() -> None:
    patience = Patience(600.0, now=0.0)
    ticks = itertools.takewhile(lambda at: not patience.is_over(float(at), away=True), range(0, 10**6, 10))
    assert MAX_OUTAGE_S < max(ticks) + 20 <= MAX_OUTAGE_S + 640
