"""`make gpu` on a machine without a GPU: it says so, and its checks run on the CPU, so that none is broken when it
meets one for the first time. The interpreter is as poor as that machine's: it has torch, what torch asks for, and
numpy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launching import eventually, processes_with
from tests.gpu import __main__ as report
from tests.gpu import checks
from tests.gpu.hardware import XID_79
from tests.gpu.place import Place, etcd_program
from tests.gpu.plan import CHECKS
from tests.support.documents import blocks
from tools.stack import ROOT

pytestmark = pytest.mark.long

# What a run without a GPU cannot do.
NEEDS_A_GPU = {"nvml"}
DOCUMENT = ROOT / "docs" / "verification" / "gpus.md"
# These need no torch: a fraction of a second each.
CHEAP = ("nvml", "gpu-check", "xid")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that refuses every import but those of the standard library, torch, what it asks for, and numpy:
    it has no others."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    place = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for name in closure("torch", "numpy"):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files if ".." not in file.parts} - {"__pycache__"}:
            link, target = place / top, importlib.metadata.distribution(name).locate_file(top)
            if not link.exists():
                link.symlink_to(str(target))
    return str(folder / "bin" / "python")


def closure(*names: str) -> set[str]:
    """Distributions with all that they need here, without extras."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name in found:
            continue
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for other systems
        found.add(name)
        queue += [re.split(r"[\s;<>=!~\[(]", each)[0] for each in needed if "extra ==" not in each]
    return found


def make_gpu(*variables: str, **options: Any) -> subprocess.Popen[str]:
    """Start it as people do."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environ |= {"CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        ["make", "-s", "gpu", *variables], env=environ | options, cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    )


def found_in(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


IMPORTS_ALL = """
import tests.gpu.__main__, tests.gpu.train
from tests.gpu import checks, plan
print(all(checks.function_of(name).__doc__ for name in plan.CHECKS))
try:
    import pytest
except ImportError:
    print("pytest is refused")
"""


def test_every_module_of_the_checks_is_imported_with_torch_alone_and_each_check_has_a_function(bare: str) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}"}
    command = [bare, "-c", IMPORTS_ALL]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("True\npytest is refused\n", "")


def test_without_a_gpu_one_sentence_says_so_and_nothing_counts_as_checked(bare: str, tmp_path: Path) -> None:
    process = make_gpu(f"GPU_PYTHON={bare}", f"OUT={tmp_path / 'out'}")
    printed, errors = process.communicate(timeout=150)
    assert printed == "nothing was checked: torch finds no NVIDIA GPU on this machine\n"
    assert "Error 3" in errors
    assert process.returncode == 2  # make's own
    assert not (tmp_path / "out").exists()


def test_without_torch_it_says_how_to_name_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    count, why = report.gpus(lambda: False)
    assert count == 0
    assert "make gpu GPU_PYTHON=" in why


def test_a_check_that_nobody_knows_is_refused_with_the_names_of_all(bare: str) -> None:
    _, errors = make_gpu(f"GPU_PYTHON={bare}", "DRY=1", "ONLY=nonsense").communicate(timeout=60)
    assert f"no check is named nonsense; there are {', '.join(CHECKS)}" in errors


def test_an_xid_of_the_document_of_nvidia_is_what_the_check_imitates() -> None:
    assert "NVRM: Xid (PCI:" in XID_79


def test_what_does_not_fit_into_the_time_is_not_run_and_the_report_says_so(bare: str, tmp_path: Path) -> None:
    process = make_gpu(f"GPU_PYTHON={bare}", "DRY=1", "ONLY=xid,examples", "SECONDS=20", f"OUT={tmp_path}")
    printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert [(row["check"], row["outcome"]) for row in found_in(tmp_path)["checks"]] == [
        ("xid", "seen"),
        ("examples", "not run"),
    ]
    assert "examples: not run (0.0 s) no time left\n" in printed
    assert "All of it: 1 seen, 1 not run." in (tmp_path / "report.md").read_text()


def test_cut_off_in_its_fourth_check_it_has_reported_three_and_leaves_no_process(bare: str, tmp_path: Path) -> None:
    only, mark = f"ONLY={','.join(CHEAP)},examples", str(tmp_path)
    process = make_gpu(f"GPU_PYTHON={bare}", "DRY=1", only, f"OUT={tmp_path}", SPOTSUP_TEST_GPU=mark)
    written = (tmp_path / "report.json").exists
    try:
        eventually("three checks are reported", lambda: written() and len(found_in(tmp_path)["checks"]) == 3)
        assert found_in(tmp_path)["state"] == "3 of 4 checks are done; examples is next."
        eventually("the fourth runs", (tmp_path / "examples" / "output").exists)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "cut off in examples; wrote " in printed
    assert processes_with("SPOTSUP_TEST_GPU", mark) == []
    found = found_in(tmp_path)
    assert [row["check"] for row in found["checks"]] == list(CHEAP)
    assert found["state"] == "Cut off by SIGTERM in examples. Not run: none."
    assert found["unfinished"]["why"] == "it was cut off"


ESCAPES = """
import sys, time
from pathlib import Path
from tests.gpu.ending import adopt_orphans, run
adopt_orphans()
program = "setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 & wait' & sleep 0.3; " + sys.argv[1]
environ = dict(SPOTSUP_TEST_GPU=sys.argv[2], PATH="/usr/bin:/bin")
ended = run(["sh", "-c", program], environ, Path(sys.argv[2]) / "output", 2.0, lambda: False)
print(ended.status, ended.left)
"""


@pytest.mark.parametrize(("last", "printed"), [("exit 7", "7 ()\n"), ("sleep 1000", "None ()\n")])
def test_what_a_check_starts_in_sessions_of_its_own_ends_with_it_however_it_ends(
    tmp_path: Path, last: str, printed: str
) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}"}
    command = [sys.executable, "-c", ESCAPES, last, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (printed, "")
    assert processes_with("SPOTSUP_TEST_GPU", str(tmp_path)) == []


TOO_LONG = """
import json, sys
from pathlib import Path
from tests.gpu.__main__ import Signals, adopt_orphans, check
adopt_orphans()
print(json.dumps(check("loss", 0, Path(sys.argv[1]), 0.1, Signals())))
"""


def test_a_check_that_takes_longer_than_its_share_has_failed(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}"}
    command = [sys.executable, "-c", TOO_LONG, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    row = json.loads(done.stdout)
    assert (row["outcome"], row["why"]) == ("failed", "it took longer than 0.1 s")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_dry_run_does_all_that_a_cpu_can(bare: str, tmp_path: Path) -> None:
    etcd_program()
    began = time.monotonic()
    process = make_gpu(f"GPU_PYTHON={bare}", "DRY=1", "SECONDS=1700", f"OUT={tmp_path}")
    _, errors = process.communicate()
    outcomes = {row["check"]: row["outcome"] for row in found_in(tmp_path)["checks"]}
    expected = {name: "not seen" if name in NEEDS_A_GPU else "seen" for name in CHECKS}
    assert outcomes == expected, (tmp_path / "report.md").read_text()
    assert process.returncode == 0, errors
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# A dry run on the CPU: no GPU was used")
    assert all(f"## {name}" in text for name in CHECKS)
    assert time.monotonic() < began + 1700


def test_what_a_check_raises_is_in_its_row_with_what_it_had_found(tmp_path: Path) -> None:
    def broken(place: Place) -> dict[str, object]:
        """Break."""
        place.note("so far", 1)
        raise AssertionError("the sum is wrong")

    row = checks.checked("machine", broken, Place("cpu", 0, tmp_path))
    assert (row["outcome"], row["why"]) == ("failed", "AssertionError: the sum is wrong")
    assert row["facts"] == {"so far": 1}
    assert "broken" in row["traceback"]


def test_the_document_names_every_check_and_each_way_to_call_it() -> None:
    text = DOCUMENT.read_text()
    assert all(f"| `{name}` |" in text for name in CHECKS)
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == list(CHECKS)
    commands = [each for block in blocks(DOCUMENT, "sh") for each in block.commands()]
    assert all(each.startswith("make gpu") for each in commands)
    named = {each.partition("=")[0].split()[-1] for each in commands if "=" in each}
    assert named == {"ONLY", "SECONDS", "GPU_PYTHON", "OUT", "DRY"}
