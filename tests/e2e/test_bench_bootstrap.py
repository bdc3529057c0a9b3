"""`make bench-bootstrap`, with one machine: with an etcd that has neither TLS nor users, and with one that has both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.benches import measure

pytestmark = pytest.mark.nightly


def test_one_machine_is_measured_both_ways_and_nothing_is_left(tmp_path: Path) -> None:
    rows, printed = measure("benchmarks.bootstrap", ["--most", "1"], tmp_path, 180)
    each = {"a node's agent", "all agents", "all workers"}
    environments = {("spotsup", f"environment, {how}", "environment") for how in ("cached", "nothing cached")}
    assert {(row["subject"], row["case"], row["metric"]) for row in rows} == {
        *((subject, "1 node", metric) for subject in ("spotsup", "spotsup-secured") for metric in each),
        ("floor", "1 node", "commands alone"),
        *environments,
    }
    assert all(row["median"] > 0 for row in rows)
    assert "TLS and users, 1 node: " in printed
