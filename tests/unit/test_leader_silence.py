"""When a standby holds a leader for dead whose lease somebody else renews."""

from __future__ import annotations

from supervisor.runtime.leader import SILENT_TTLS, Silence

TTL_S = 6.0


def a_silence() -> Silence:
    return Silence(SILENT_TTLS * TTL_S, TTL_S)


def lasted_s(silence: Silence, begun: float, revision: int = 5, max_s: float = 100.0) -> float:
    """How long after `begun` it is too long."""
    for tick in range(int(max_s * 4)):
        if silence.lasts(revision, begun + tick / 4):
            return tick / 4
    return max_s


def test_a_key_that_is_not_written_for_three_times_its_lease_is_taken() -> None:
    assert lasted_s(a_silence(), 1000.0) == SILENT_TTLS * TTL_S + 0.25


def test_each_write_begins_anew_also_where_etcd_counts_revisions_from_below() -> None:
    silence = a_silence()
    for number, revision in enumerate((50, 53, 7, 8)):
        assert not any(silence.lasts(revision, 1000.0 + 15.0 * number + tick) for tick in range(15))


def test_time_without_etcd_does_not_count() -> None:
    silence = a_silence()
    assert not any(silence.lasts(5, 1000.0 + tick) for tick in range(18))
    silence.restart()
    assert lasted_s(silence, 1018.0) == SILENT_TTLS * TTL_S + 0.25


def test_a_standby_that_stood_still_begins_anew() -> None:
    silence = a_silence()
    assert not silence.lasts(5, 1000.0)
    assert not silence.lasts(5, 5000.0)
    assert lasted_s(silence, 5000.25) == SILENT_TTLS * TTL_S
