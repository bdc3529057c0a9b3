"""`make bench-rendezvous`, with two nodes: real handlers in processes of their own, on an etcd of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.benches import measure

pytestmark = pytest.mark.nightly


def test_two_nodes_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    arguments = ["--sizes", "2", "--subjects", "spotsup", "torchrun-c10d"]
    rows, _ = measure("benchmarks.rendezvous", arguments, tmp_path, 120)
    measured = {(row["subject"], row["metric"]): row for row in rows}
    both = {(subject, metric) for subject in ("spotsup", "torchrun-c10d") for metric in ("first round", "re-formation")}
    assert set(measured) == both | {("spotsup", "one replaced")}
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in rows)
    assert {row["case"] for row in rows} == {"2 nodes"}
