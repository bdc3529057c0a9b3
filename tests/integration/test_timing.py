"""Time limits: what must hold between them, and ten minutes without etcd in no time."""

from __future__ import annotations

from spotsup_trainer.timing import LeaseTimes

from tests.unit.test_timing import every_lease


@every_lease
def test_a_lease_is_renewed_in_time_although_as_many_endpoints_hang_as_etcd_can_do_without(times: LeaseTimes) -> None:
    gone = (times.endpoints - 1) // 2
    renewed_after_s = times.renew_s + gone * times.call_s
    assert renewed_after_s <= times.ttl_s * 5 / 6
