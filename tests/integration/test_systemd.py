"""The units, read by systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bootstrap.agent.unit import agent_unit
from bootstrap.model import Paths

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir())
# What systemd calls the exposure of a unit: 0 is none, 10 all. The agent's unit runs users' programs: not confined.
MAX_EXPOSURE = 2.0


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this computer")
    for unit in UNITS:
        # It complains about programs that are not installed: here they are not.
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", (FOLDER / unit).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        (tmp_path / unit).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_finds_nothing_wrong_with_the_unit_of_a_node(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this computer")
    path = tmp_path / "spotsup-agent-n1.service"
    path.write_text(agent_unit(Paths("/home/u/.spotsup", "n1"), "root", "k"), encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["spotsupd.service", "spotsup-etcd.service"])
def test_the_units_are_confined(name: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this computer")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", FOLDER / name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd before 250 judges only units that are loaded")
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MAX_EXPOSURE, done.stdout
