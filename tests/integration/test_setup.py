"""Setting up a clone: its quick ways and its refusals. The slow way is what `make test` has just done."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tools.setup.apt import Apt
from tools.setup.clone import _locked
from tools.setup.environment import SOURCES, _fingerprint, _fits, _install_ahead, ensure_environment
from tools.setup.errors import SetupError

REPO = Path(__file__).resolve().parents[2]
SETUP = REPO / "tools" / "setup" / "setup"


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def run_setup(setup: Path = SETUP, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHON"} | environ
    return subprocess.run([setup], env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_python_that_does_not_do_is_refused(tmp_path: Path) -> None:
    write_program(tmp_path / "old python", "exit 1")
    for python in (str(tmp_path / "old python"), "/nowhere/python"):
        done = run_setup(PYTHON=python)
        assert done.returncode == 1
        assert done.stderr == f"PYTHON is {python}; name an interpreter that runs and is 3.11 or newer\n"


def test_no_python_at_all_says_what_brings_one(tmp_path: Path) -> None:
    for name in ("dirname", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    setup = tmp_path / "clone" / "tools" / "setup" / "setup"
    write_program(setup, SETUP.read_text().replace("/usr/bin/python3", "/nowhere/python3"))
    done = run_setup(setup, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "sudo apt-get install python3" in done.stderr


def a_clone(folder: Path) -> Path:
    for name in SOURCES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, folder / name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return folder


def test_a_stamp_that_fits_leaves_nothing_to_do(tmp_path: Path) -> None:
    clone = a_clone(tmp_path / "a b")
    stamp = clone / ".venv" / "setup.stamp"
    stamp.write_text(_fingerprint(clone))
    before = sorted(clone.rglob("*"))
    ensure_environment(clone)
    assert sorted(clone.rglob("*")) == before


def test_an_environment_of_another_python_fits_unless_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    clone = a_clone(tmp_path)
    assert _fits(clone / ".venv")
    monkeypatch.setenv("PYTHON", sys.executable)
    assert _fits(clone / ".venv")
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))  # as if the set-up were run by this one
    assert not _fits(clone / ".venv")
    monkeypatch.delenv("PYTHON")
    assert _fits(clone / ".venv")


def test_a_person_at_a_terminal_sees_pips_progress_and_a_log_stays_short(tmp_path: Path) -> None:
    write_program(tmp_path / ".venv" / "bin" / "python", 'echo "$@"')
    install = "from tools.setup.environment import _pip; _pip(Path(sys.argv[1]), Path())"
    command = [sys.executable, "-c", f"import sys; from pathlib import Path; {install}", str(tmp_path / ".venv")]
    log = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True, timeout=60).stdout
    ours, terminal = os.openpty()
    try:
        subprocess.run(command, cwd=REPO, stdout=terminal, check=True, timeout=60)
        shown = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(terminal)
    assert ("--quiet" in log, "--quiet" in shown) == (True, False)
    assert "pip install" in shown


def test_all_that_is_pinned_is_installed_at_once_and_a_failure_is_left_to_the_resolver(tmp_path: Path) -> None:
    write_program(
        tmp_path / ".venv" / "bin" / "python",
        f'echo "$@" >>"{tmp_path}/log"; case "$@" in *torch==*) ;; *) exit 1; esac',
    )
    shutil.copy(REPO / "constraints.txt", tmp_path)
    _install_ahead(tmp_path / ".venv", tmp_path)
    calls = (tmp_path / "log").read_text().splitlines()
    assert all("pip install" in call and "--no-deps" in call for call in calls)
    installed = sorted(word for call in calls for word in call.split() if "==" in word)
    assert installed == sorted((REPO / "constraints.txt").read_text().split())
    assert [call.count("==") for call in calls if " torch==" in call] == [1]  # by itself: it has the progress


def test_what_is_installed_and_where_decides_about_the_stamp(tmp_path: Path) -> None:
    clone, other = a_clone(tmp_path / "a b"), a_clone(tmp_path / "other")
    first = _fingerprint(clone)
    assert first == _fingerprint(clone)
    assert first != _fingerprint(other)
    (clone / "constraints.txt").write_text("torch==1.0\n")
    assert first != _fingerprint(clone)


def test_the_second_setup_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    released: list[float] = []
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def release() -> None:
            released.append(time.monotonic())
            fcntl.flock(file, fcntl.LOCK_UN)

        timer = threading.Timer(0.3, release)
        timer.start()
        with _locked(tmp_path / "lock"):
            assert time.monotonic() >= released[0]
        timer.join()
    assert capsys.readouterr().err == "setup: another one is at work in this clone; waiting for it\n"


# A stand-in for apt-get and dpkg-deb, so that no network is needed: a package is a file that says its name.
APT_GET = """
case "$*" in
*" update") echo updated >>"$LOG" ;;
*Dir::State::Lists=*" download "* | *"$HAS_LISTS"*) for package; do :; done; echo "$package" >"$package.deb" ;;
*) echo "E: Unable to locate package" >&2; exit 100 ;;
esac
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_program(tmp_path / "bin" / "apt-get", APT_GET)
    write_program(tmp_path / "bin" / "dpkg-deb", 'mkdir -p "$3/usr" && cp "$2" "$3/usr/"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("HAS_LISTS", "no such argument")
    return tmp_path


def test_packages_are_unpacked_into_the_clone(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAS_LISTS", "download")
    Apt(stand_in / "a b").unpack(["etcd-server"], stand_in / "a b" / "root")
    assert [path.name for path in (stand_in / "a b" / "root" / "usr").iterdir()] == ["etcd-server.deb"]
    assert not (stand_in / "log").exists()
    assert [path.name for path in (stand_in / "a b").iterdir()] == ["root"]


def test_without_package_lists_own_ones_are_fetched_into_the_clone(stand_in: Path) -> None:
    Apt(stand_in / "a b").unpack(["etcd-server"], stand_in / "a b" / "root")
    assert (stand_in / "log").read_text() == "updated\n"
    assert [path.name for path in (stand_in / "a b" / "root" / "usr").iterdir()] == ["etcd-server.deb"]


def test_a_package_that_cannot_be_had_says_so(stand_in: Path) -> None:
    write_program(stand_in / "bin" / "apt-get", "echo 'E: no network' >&2; exit 100")
    with pytest.raises(SetupError, match="etcd-server cannot be downloaded: E: no network"):
        Apt(stand_in / "a b").unpack(["etcd-server"], stand_in / "root")


def test_a_computer_without_apt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="there is no program 'apt-get' here"):
        Apt(tmp_path / "tools").unpack(["etcd-server"], tmp_path / "root")
