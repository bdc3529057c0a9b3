"""`make bench-api`, with few readers: a real daemon's API over HTTPS, on an etcd of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.benches import measure

pytestmark = pytest.mark.nightly


def test_reads_are_measured_while_others_follow_and_nothing_is_left(tmp_path: Path) -> None:
    arguments = ["--jobs", "2", "--nodes", "2", "--watchers", "4", "--seconds", "2"]
    rows, printed = measure("benchmarks.api", arguments, tmp_path, 240)
    found = {(row["case"], row["metric"]): row["median"] for row in rows}
    assert 0 < found["reads alone", "read p50"] <= found["reads alone", "read p99"]
    assert found["all at once", "readers that follow"] == 4
    assert found["all at once", "step to reader p99"] > 0, "the readers have had steps that were written meanwhile"
    assert found["all at once", "page p99"] > 0
    assert "read p99, all at once" in printed
