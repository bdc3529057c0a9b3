"""`make bench-cli` in little: etcd, a daemon, processes of spotsupctl. Every case is measured, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.benches import measure

pytestmark = pytest.mark.nightly


def test_every_command_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    rows, said = measure("benchmarks.cli", ["--small"], tmp_path, 150)
    assert {(row["case"], row["subject"]) for row in rows} == {
        ("python -c pass", "floor"),
        ("--help", "spotsup"),
        ("list, 2 jobs × 4 nodes", "spotsup"),
        ("status, 4 nodes", "spotsup"),
        ("submit of 0.1 MB", "spotsup"),
        ("3 submits", "spotsup"),
        ("3 cancels, one command", "spotsup"),
    }
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in rows)
    assert "goal" not in said, "so little says nothing about goals"
