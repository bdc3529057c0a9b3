"""A benchmark, run as `make bench-*` runs it, with a mark by which what it starts is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.e2e.launching import processes_with
from tools.stack import ROOT


def measure(module: str, arguments: list[str], folder: Path, timeout_s: float) -> tuple[list[dict[str, Any]], str]:
    """The rows that it writes, and what it prints. It succeeds, and leaves no process."""
    mark, results = uuid.uuid4().hex, folder / "results.json"
    command = [sys.executable, "-m", module, "--repeat", "1", *arguments]
    command += ["--folder", str(folder / "run"), "--json", str(results)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"SPOTSUP_TEST_BENCH": mark},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert processes_with("SPOTSUP_TEST_BENCH", mark) == []
    rows: list[dict[str, Any]] = json.loads(results.read_text())["rows"]
    return rows, done.stdout
