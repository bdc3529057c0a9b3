"""A short `make soak-training`: eight membership changes of eight kinds in a row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import plan
from tests.soak.plan import Kind
from tests.support.programs import program_env
from tools.stack import ROOT

pytestmark = pytest.mark.e2e

# Draws these kinds, and few machines that have to be started: other seeds take longer.
SEED = 12726
KINDS = {
    *(Kind.FENCED, Kind.WORKER, Kind.JOINS, Kind.UNHINTED),
    *(Kind.GROWS, Kind.FROZEN, Kind.TWO, Kind.LEAVES),
}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_survives_eight_changes_with_exact_data(tmp_path: Path) -> None:
    assert {change.kind for change in plan.draw(SEED, 8)} == KINDS
    file, folder = tmp_path / "soak.json", tmp_path / "a soak"
    command = [sys.executable, "-m", "tests.soak", "--changes", "8", "--steady", "0", "--seed", str(SEED)]
    done = subprocess.run(
        [*command, "--folder", str(folder), "--json", str(file)],
        env=program_env(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert (result["ok"], result["broken"], result["seed"]) == (True, [], SEED)
    job = result["jobs"]["random"]
    assert (job["changes_done"], job["samples_repeated"], job["samples_missed"]) == (8, 0, 0)
    assert job["weights_differ_by"] <= 1e-9
    assert not any(job["leftovers"][what] for what in ("processes", "ports", "temporary", "unexpected_keys"))
    assert set(job["pauses_s"]) == KINDS
    assert not folder.exists()
