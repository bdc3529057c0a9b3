"""`make bench-bootstrap`, with one machine: with an etcd that has neither TLS nor users, and with one that has both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.e2e.launching import processes_with
from tools.stack import ROOT


def test_one_machine_is_measured_both_ways_and_nothing_is_left(tmp_path: Path) -> None:
    mark, results = uuid.uuid4().hex, tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.bootstrap", "--most", "1", "--repeat", "1"]
    command += ["--folder", str(tmp_path / "run"), "--json", str(results)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"SPOTSUP_TEST_BENCH": mark},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())["rows"]
    each = {"a node's agent", "all agents", "all workers"}
    environments = {("spotsup", f"environment, {how}", "environment") for how in ("cached", "nothing cached")}
    assert {(row["subject"], row["case"], row["metric"]) for row in rows} == {
        *((subject, "1 node", metric) for subject in ("spotsup", "spotsup-secured") for metric in each),
        ("floor", "1 node", "commands alone"),
        *environments,
    }
    assert all(row["median"] > 0 for row in rows)
    assert "TLS and users, 1 node: " in done.stdout
    assert processes_with("SPOTSUP_TEST_BENCH", mark) == []
