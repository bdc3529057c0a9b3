"""`make bench-restore` with a state of 50 MiB: all ways, with memory of its own for each survivor and with less."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.benches import measure

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
def test_each_way_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    arguments = ["--sizes", "0.05x2", "0.15x3-lean", "999999x2", "--storages", "1.25 GB/s"]
    rows, printed = measure("benchmarks.restore", arguments, tmp_path, 540)
    cases = [f"{size}, 1.25 GB/s" for size in ("0.05 GiB, 2 nodes", "0.15 GiB, 3 nodes, lean")]
    found = {(row["case"], row["subject"], row["metric"]): row["median"] for row in rows}
    ways, metrics = ("survivors", "once", "every"), ("restore", "storage", "network")
    assert set(found) == {(case, way, metric) for case in cases for way in ways for metric in metrics}
    for case in cases:
        nodes, tensors = (3, 2) if "lean" in case else (2, 1)
        state = found[case, "once", "storage"]
        assert 0.05 < state / tensors < 0.08, "tensors of 64 MiB"
        assert found[case, "survivors", "storage"] < 0.01 * state
        assert found[case, "survivors", "network"] == pytest.approx(state, rel=0.05), "to the newcomer alone"
        assert found[case, "once", "network"] == pytest.approx((nodes - 1) * state, rel=0.05)
        assert found[case, "every", "storage"] == pytest.approx(nodes * state, rel=0.05)
        assert all(found[case, way, "restore"] > 0 for way in ways)
    assert "999999 GiB, 2 nodes: not measured: it needs " in printed
    assert not (tmp_path / "run").exists()
