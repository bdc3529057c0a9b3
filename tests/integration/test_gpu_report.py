"""`make gpu` on a machine without a GPU: it says so, and its checks run on the CPU, so that none is broken when it
meets one for the first time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import __main__ as report
from tests.gpu.checks import CHECKS
from tests.gpu.hardware import XID_79
from tests.gpu.place import Place, etcd_program
from tests.support.documents import blocks
from tools.stack import ROOT

# What a run without a GPU cannot do.
NEEDS_A_GPU = {"nvml"}
DOCUMENT = ROOT / "docs" / "gpus.md"


def make_gpu(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """As the Makefile runs it."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}", "CUDA_VISIBLE_DEVICES": ""}
    command = [python, "-m", "tests.gpu", *arguments]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def test_without_a_gpu_one_sentence_says_so_and_nothing_counts_as_checked(tmp_path: Path) -> None:
    done = make_gpu("--out", str(tmp_path / "out"))
    assert done.stdout == "nothing was checked: torch finds no NVIDIA GPU on this machine\n"
    assert done.returncode == 3
    assert not (tmp_path / "out").exists()


def test_without_torch_it_says_how_to_name_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    count, why = report.gpus()
    assert count == 0
    assert "make gpu GPU_PYTHON=" in why


def test_names_and_checks_are_the_same() -> None:
    assert list(report.NAMES) == list(CHECKS)
    assert set(report.LIMITS_S) <= set(CHECKS)
    assert make_gpu("--only", "nonsense").returncode == 2


def test_an_xid_of_the_document_of_nvidia_is_what_the_check_imitates() -> None:
    assert "NVRM: Xid (PCI:" in XID_79


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_dry_run_does_all_that_a_cpu_can(tmp_path: Path) -> None:
    etcd_program()
    done = make_gpu("--dry", "--out", str(tmp_path))
    found = json.loads((tmp_path / "report.json").read_text())
    outcomes = {row["check"]: row["outcome"] for row in found["checks"]}
    expected = {name: "not seen" if name in NEEDS_A_GPU else "seen" for name in CHECKS}
    assert outcomes == expected, (tmp_path / "report.md").read_text()
    assert done.returncode == 0
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# A dry run on the CPU: no GPU was used")
    assert all(f"## {name}" in text for name in CHECKS)


@pytest.mark.timeout(120)
def test_a_check_that_fails_crashes_or_hangs_is_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LIMIT_S", 0.05)
    row = report.check("machine", 0, tmp_path)
    assert (row["outcome"], row["why"]) == ("failed", "it took longer than 0.05 s")
    text = report.markdown([row], dry=True, at="now")
    assert "failed: it took longer than 0.05 s" in text


def test_what_a_check_raises_is_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.gpu import checks

    def broken(_: Place) -> dict[str, object]:
        """Breaks."""
        raise AssertionError("the sum is wrong")

    monkeypatch.setattr(checks, "CHECKS", {"machine": broken})
    row = checks.checked("machine", Place("cpu", 0, tmp_path))
    assert row["outcome"] == "failed"
    assert row["why"] == "AssertionError: the sum is wrong"
    assert "broken" in row["traceback"]


def test_the_document_names_every_check_and_each_way_to_call_it() -> None:
    text = DOCUMENT.read_text()
    assert all(f"| `{name}` |" in text for name in CHECKS)
    commands = [each for block in blocks(DOCUMENT, "sh") for each in block.commands()]
    assert all(each.startswith("make gpu") for each in commands)
    assert {each.partition("=")[0].split()[-1] for each in commands if "=" in each} == {"ONLY", "GPU_PYTHON", "DRY"}
