"""Which commits a mirror shows. A daemon waits for its own before it decides again, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.market.journaled import CapacityRecord
from supervisor.model import ClusterRecord
from supervisor.planner.actions import Commit

EMPTY = Commit("job", {})


@pytest.mark.parametrize(
    "written", [{"put_keys": {"key": b""}}, {"cluster": ClusterRecord(0.0, "")}, {"capacity": CapacityRecord(0.0)}]
)
def test_what_writes_a_mirrored_key_shows_in_the_mirror(written: dict[str, Any]) -> None:
    assert replace(EMPTY, **written).shows_in_mirror


@pytest.mark.parametrize("left", [{}, {"delete_keys": ["key"]}, {"delete_nodes": ["job-1"]}, {"delete_events": ["1"]}])
def test_what_may_write_nothing_is_not_waited_for(left: dict[str, Any]) -> None:
    """etcd names the revision of the last write then, which may be a leader's: no mirror ever shows it."""
    assert not replace(EMPTY, **left).shows_in_mirror
