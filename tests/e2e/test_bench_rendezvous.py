"""`make bench-rendezvous`, with two nodes: real handlers in processes of their own, on an etcd of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.e2e.launching import processes_with
from tools.stack import ROOT


def test_two_nodes_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    mark, results = uuid.uuid4().hex, tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.rendezvous", "--sizes", "2", "--repeat", "1"]
    command += ["--subjects", "spotsup", "torchrun-c10d", "--folder", str(tmp_path / "run"), "--json", str(results)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"SPOTSUP_TEST_BENCH": mark},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())["rows"]
    measured = {(row["subject"], row["metric"]): row for row in rows}
    both = {(subject, metric) for subject in ("spotsup", "torchrun-c10d") for metric in ("first round", "re-formation")}
    assert set(measured) == both | {("spotsup", "one replaced")}
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in rows)
    assert {row["case"] for row in rows} == {"2 nodes"}
    assert processes_with("SPOTSUP_TEST_BENCH", mark) == []
