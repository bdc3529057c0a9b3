"""A short `make chaos`: faults are injected, and everything recovers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_module

pytestmark = [pytest.mark.timeout(1000), pytest.mark.nightly]


def chaos(tmp_path: Path, only: str, etcds: int, faults: int = 3) -> dict[str, Any]:
    """Run it shortly; returns the result, which must be good."""
    result = tmp_path / "chaos.json"
    arguments = ["--seed", "5", "--only", only, "--etcds", str(etcds), "--faults", str(faults)]
    arguments += ["--folder", str(tmp_path / "a folder"), "--json", str(result)]
    done = run_module("tests.chaos", *arguments, timeout_s=900.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken promises" in done.stdout.splitlines()[-1]
    found: dict[str, Any] = json.loads(result.read_text())
    assert found["ok"]
    (testbed,) = found["testbeds"]
    assert testbed["steps"] > 0
    assert (testbed["samples_repeated"], testbed["samples_missed"]) == (0, 0)
    assert len(testbed["faults"]) == faults
    return found


def test_leaders_are_killed_and_frozen_under_a_job_that_trains(tmp_path: Path) -> None:
    faults = chaos(tmp_path, "leader", 1)["testbeds"][0]["faults"]
    assert all(fault["recovered_s"] is not None for fault in faults)


def test_members_of_etcd_are_killed_and_frozen_under_a_job_that_trains(tmp_path: Path) -> None:
    kinds = {fault["planned"]["kind"] for fault in chaos(tmp_path, "member", 3)["testbeds"][0]["faults"]}
    assert kinds >= {"etcd member killed", "etcd member frozen"}


def test_nodes_that_only_etcd_cannot_hear_train_on_and_none_is_ended(tmp_path: Path) -> None:
    for fault in chaos(tmp_path, "without etcd for 30 s", 1, faults=2)["testbeds"][0]["faults"]:
        assert "2 of 2 nodes are silent: network?" in fault["remark"]
