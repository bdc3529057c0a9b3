"""A wall clock that jumps: for a moment, and for good."""

from __future__ import annotations

from pathlib import Path

from tests.integration.test_lost_journal import running
from tests.unit.test_clock import Shifted


def test_a_daemon_whose_clock_went_back_by_a_day_goes_on(tmp_path: Path) -> None:
    clock = Shifted()
    with running(tmp_path, clock) as (_, daemon):
        daemon.submit("job")
        for by_s in (86400.0, 0.0, -3600.0, 0.0):
            clock.by_s = by_s
            daemon.loop.tick()
            listed = daemon.cloud.listed
            daemon.tick_until(lambda listed=listed: daemon.cloud.listed > listed + 2)  # type: ignore[misc]
        daemon.submit("another")
        assert daemon.loop.status.headline == "watching 2 jobs"
