"""`make ci` tried on tests that fail once, twice, too many at a time, and where none may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

from tools.stack import ROOT

# Fails until it has been run as often as its name says.
FLAKY = """
    from pathlib import Path
    import pytest

    def fails(times, name):
        runs = Path(__file__).with_name(name)
        runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
        assert len(runs.read_text()) > times
"""


def land(folder: Path, tests: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command of `make ci` on the given test files, with checks that pass."""
    for name, text in tests.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(FLAKY) + dedent(text))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "tools.landing", "--workers", "0", "--checks", "true", *options]
    environ["PYTHONPATH"] = str(ROOT)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_a_test_that_fails_once_does_not_refuse_the_landing_and_is_named_loudly(tmp_path: Path) -> None:
    done = land(tmp_path, {"tests/integration/test_a.py": "def test_a(): fails(1, 'a')\ndef test_b(): fails(0, 'b')"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# FLAKY: failed, and passed when run once more, alone:" in done.stdout
    assert 'test = "tests/integration/test_a.py::test_a"' in done.stdout
    assert (tmp_path / "tests/integration/b").read_text() == "x"
    assert "test_a" in (tmp_path / "build/ci/first.xml").read_text()
    assert 'failures="0"' in (tmp_path / "build/ci/second.xml").read_text()
    stages = json.loads((tmp_path / "build/ci/landing.json").read_text())
    assert [(each["stage"], each["status"]) for each in stages] == [
        ("collection", 0),
        ("tests", 1),
        ("checks", 0),
        ("tests once more", 0),
    ]


@pytest.mark.long
def test_a_test_that_fails_twice_refuses_the_landing(tmp_path: Path) -> None:
    done = land(tmp_path, {"tests/integration/test_a.py": "def test_a(): fails(2, 'a')"})
    assert done.returncode == 1
    assert "# Failed, and failed again when run once more, alone:" in done.stdout
    assert (tmp_path / "tests/integration/a").read_text() == "xx"


@pytest.mark.parametrize(
    ("where", "times", "why"),
    [
        ("tests/integration/test_a.py", 4, "4 tests failed; at most 3 are run once more"),
        ("tests/unit/test_a.py", 1, "whose tests give the same result each time"),
    ],
)
def test_four_failures_and_one_of_a_pure_test_refuse_it_at_once(
    tmp_path: Path, where: str, times: int, why: str
) -> None:
    text = f"@pytest.mark.parametrize('n', range({times}))\ndef test_a(n): fails(1, str(n))"
    done = land(tmp_path, {where: text})
    assert done.returncode == 1
    assert "# Not run once more: " in done.stdout
    assert why in done.stdout
    assert (tmp_path / where).with_name("0").read_text() == "x"


def test_checks_that_fail_refuse_it_and_their_output_is_shown(tmp_path: Path) -> None:
    tests = {"tests/integration/test_a.py": "def test_a(): fails(0, 'a')"}
    done = land(tmp_path, tests, "--checks", "ls /not/there")
    assert done.returncode == 1
    assert "/not/there" in done.stdout


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    tests = {"tests/integration/test_a.py": "def test_a():\n    import time\n    time.sleep(600)"}
    done = land(tmp_path, tests, "--max-minutes", "0.03")
    assert done.returncode == 1
    assert "tests: ended, as it took longer than 2 s" in done.stdout


def test_without_room_for_temporary_files_no_test_begins(tmp_path: Path) -> None:
    done = land(tmp_path, {"tests/integration/test_a.py": "def test_a(): fails(0, 'a')"}, "--min-free-gb", "1e6")
    assert done.returncode == 1
    assert f"make ci: {tempfile.gettempdir()} has " in done.stderr
    assert not (tmp_path / "tests/integration/a").exists()
