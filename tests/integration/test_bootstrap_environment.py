"""Environments: each is built once, appears complete or not at all, and is found by the next node."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from spotsup.archive import Archive

from bootstrap import lock_of
from bootstrap.blame import OF_JOB
from bootstrap.environment.step import environment_name, python_of
from bootstrap.model import Command, Run, Setup, Skip, Unfit
from bootstrap.steps import Decision, plan
from supervisor.config import NodeConfig
from supervisor.errors import UsageError
from supervisor.nodes.prepare import package_variables
from supervisor.nodes.uv import _pack, pack_uv
from tests.support.agents import TRAINER, packed, wait_for
from tests.support.interpreters import OLDEST_AND_NEWEST_FIRST, interpreter
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.long

# Stands for uv, without a network: a real environment, into which "torch" is written by hand.
UV = r"""
echo "uv $*" >>"$BOX/log"
case "$1 $2" in
"venv --python") for venv; do :; done; exec "$3" -m venv --without-pip "$venv" ;;
"pip install") venv=${4%/bin/python}; for requirements; do :; done ;;
"sync --frozen")
    for python; do :; done
    "$python" -m venv --without-pip "$UV_PROJECT_ENVIRONMENT"
    venv=$UV_PROJECT_ENVIRONMENT requirements=uv.lock
    ;;
esac
[ ! -e "$BOX/state/uv-hangs" ] || { echo waiting >&2; exec sleep 600; }
[ ! -e "$BOX/state/uv-fails" ] || { echo "no such package: nope" >&2; exit 2; }
for packages in "$venv"/lib/python*/site-packages; do
    if [ -e "$BOX/state/old" ]; then
        mkdir "$packages/torch-2.5.1.dist-info"
        printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2.5.1\n' >"$packages/torch-2.5.1.dist-info/METADATA"
    fi
    ! grep -q torch "$requirements" || echo "here = '$UV_CACHE_DIR'" >"$packages/torch.py"
done
"""


def code_of(**files: str) -> Archive:
    return packed({name.replace("__", "/").replace("_", "."): text.encode() for name, text in files.items()})


CODE = code_of(requirements_txt="torch==2.13\n")


@pytest.fixture
def machine(tmp_path: Path) -> Sandbox:
    box = Sandbox(tmp_path / "box")
    box.program("uv", UV)
    return box


def a_setup(code: Archive = CODE, wanted: str = "requirements.txt", **changes: object) -> Setup:
    whole: dict[str, object] = {
        "node": "n1",
        "agent_config": b"{}",
        "code": code,
        "trainer": TRAINER,
        "python": sys.executable,
        "lock": lock_of(code, wanted),
    }
    return Setup(**(whole | changes))  # type: ignore[arg-type] # the test names its own fields


def decision(machine: Sandbox, setup: Setup) -> Decision:
    return next(step.decision for step in plan(machine.facts(setup), setup) if step.name == "environment")


def build(machine: Sandbox, setup: Setup) -> Run:
    """The command that builds, with everything before it done."""
    machine.bootstrap(setup, "code", "trainer")
    found = decision(machine, setup)
    assert isinstance(found, tuple)
    machine.apply(found[0])
    assert isinstance(found[1], Run)
    return found[1]


def complete(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_symlink()]


def test_an_environment_is_built_once_and_found_by_the_next_node(machine: Sandbox, tmp_path: Path) -> None:
    cache = tmp_path / "shared file system"
    setup = a_setup(cache=str(cache), setup="command -v python >where")
    machine.bootstrap(setup, "code", "trainer", "environment")
    name = environment_name(machine.facts(setup), setup)
    assert complete(cache) == [name]
    python = python_of(machine.facts(setup), setup)
    done = subprocess.run([python, "-c", "import torch; print(torch.here)"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{cache}/downloads/uv\n"
    assert (machine.home / ".spotsup/code" / CODE.name / "where").read_text() == f"{Path(python).parent}/python\n"
    assert isinstance(decision(machine, setup), Skip)
    other = Sandbox(tmp_path / "other", born="n2")
    found = decision(other, a_setup(cache=str(cache), node="n2"))
    assert isinstance(found, Skip)
    assert found.reason == f"the environment of requirements.txt is there: {python}"


def test_nodes_that_build_at_the_same_time_share_one_environment(machine: Sandbox) -> None:
    command = build(machine, a_setup())
    with ThreadPoolExecutor(3) as pool:
        assert [done.returncode for done in pool.map(machine.run, [command] * 3)] == [0, 0, 0]
    assert sum(line.startswith("uv venv") for line in machine.log) == 1
    (name,) = complete(machine.home / ".spotsup/environments")
    assert len(list((machine.home / ".spotsup/environments").glob(f"{name}-*"))) == 1


def test_a_failed_build_leaves_nothing_and_gives_the_reason(machine: Sandbox) -> None:
    command = build(machine, a_setup())
    machine.write("state/uv-fails", "")
    done = machine.run(command)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "no such package: nope"
    assert [path.suffix for path in (machine.home / ".spotsup/environments").iterdir()] == [".lock"]
    (machine.box / "state/uv-fails").unlink()
    assert machine.run(command).returncode == 0
    assert isinstance(decision(machine, a_setup()), Skip)


def test_a_build_that_does_not_end_is_ended(machine: Sandbox) -> None:
    machine.write("state/uv-hangs", "")
    done = machine.run(build(machine, a_setup(setup_timeout_s=1.0)))
    assert done.returncode == 124
    assert done.stderr.splitlines()[-1] == "building the environment did not end within 1 s"


def test_a_builder_that_dies_leaves_no_half_environment(machine: Sandbox) -> None:
    command = build(machine, a_setup())
    machine.write("state/uv-hangs", "")
    environ = {"HOME": str(machine.home), "BOX": str(machine.box), "PATH": f"{machine.box}/bin:{os.environ['PATH']}"}
    builder = subprocess.Popen(["/bin/sh", "-c", machine.moved(command.script)], env=environ, start_new_session=True)
    wait_for(lambda: any(line.startswith("uv pip") for line in machine.log))
    # What `timeout` runs has a process group of its own.
    for group in (*Path(f"/proc/{builder.pid}/task/{builder.pid}/children").read_text().split(), str(builder.pid)):
        os.killpg(int(group), signal.SIGKILL)
    builder.wait()
    (machine.box / "state/uv-hangs").unlink()
    assert not isinstance(decision(machine, a_setup()), Skip)
    cache = machine.home / ".spotsup/environments"
    (left,) = [path for path in cache.iterdir() if path.is_dir() and path.name != "downloads"]
    two_days_ago = time.time() - 2 * 86400
    os.utime(left, (two_days_ago, two_days_ago))
    assert machine.run(command).returncode == 0
    assert isinstance(decision(machine, a_setup()), Skip)
    assert not left.exists()


def test_an_environment_without_its_interpreter_is_built_again(machine: Sandbox) -> None:
    machine.bootstrap(a_setup(), "code", "trainer", "environment")
    python = Path(python_of(machine.facts(a_setup()), a_setup()))
    python.unlink()
    assert not isinstance(decision(machine, a_setup()), Skip)
    machine.bootstrap(a_setup(), "environment")
    assert python.exists()


def test_requirements_without_torch_are_refused_in_one_sentence(machine: Sandbox) -> None:
    done = machine.run(build(machine, a_setup(code_of(requirements_txt="numpy\n"))))
    assert done.returncode == OF_JOB
    assert done.stderr == "requirements.txt does not bring torch: name it there\n"


def test_uv_builds_from_its_lock(machine: Sandbox) -> None:
    code = code_of(uv_lock='[[package]]\nname = "torch"\n', pyproject_toml="")
    machine.bootstrap(a_setup(code, "uv"), "code", "trainer", "environment")
    assert isinstance(decision(machine, a_setup(code, "uv")), Skip)
    (machine.box / "bin/uv").unlink()
    if not any(Path(folder, "uv").exists() for folder in os.environ["PATH"].split(":")):
        found = decision(machine, a_setup(code_of(uv_lock="version = 1", pyproject_toml=""), "uv"))
        assert isinstance(found, Unfit)
        assert found.reason == (
            "the daemon's uv, which builds environments, is not installed, and this machine has none: "
            "put uv into its image"
        )


def test_a_torch_that_is_too_old_is_refused_in_one_sentence(machine: Sandbox) -> None:
    machine.write("state/old", "")
    done = machine.run(build(machine, a_setup(code_of(requirements_txt="torch>=2\n"))))
    assert done.stderr == "torch 2.5.1 is not supported: spotsup needs 2.6 or newer\n"
    assert done.returncode == OF_JOB


def a_wheel() -> bytes:
    buffer = io.BytesIO()
    info = "torch-2.13.dist-info"
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("torch.py", "here = 'installed by uv'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST_FIRST)
def test_the_daemons_own_uv_builds_offline_with_the_machines_interpreter(
    version: str, machine: Sandbox, tmp_path: Path
) -> None:
    """No uv, no pip and no index on the machine: a wheelhouse, as on shared storage."""
    (machine.box / "bin/uv").unlink()
    wheelhouse = tmp_path / "wheels"
    wheelhouse.mkdir()
    (wheelhouse / "torch-2.13-py3-none-any.whl").write_bytes(a_wheel())
    node = NodeConfig(wheelhouse=str(wheelhouse))
    link = tmp_path / "bin/python3"  # in a prefix that is not the interpreter's
    link.parent.mkdir()
    link.symlink_to(interpreter(version))
    setup = a_setup(python=str(link), uv=pack_uv(), env=package_variables(node))
    machine.bootstrap(setup, "code", "trainer", "environment")
    python = python_of(machine.facts(setup), setup)
    home = Path(python).parent.parent.joinpath("pyvenv.cfg").read_text()
    assert f"home = {interpreter(version).resolve().parent}\n" in home
    code = "import platform, torch; print(platform.python_version(), torch.here)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{version}.")
    assert done.stdout.endswith(" installed by uv\n")
    found = decision(machine, setup)
    assert isinstance(found, Skip), found
    later = plan(
        machine.facts(setup), replace(setup, lock=lock_of(code_of(requirements_txt="torch"), "requirements.txt"))
    )
    assert not [str(command) for step in later for command in as_commands(step.decision) if "unpack uv" in str(command)]


def as_commands(decision: Decision) -> Sequence[Command]:
    return decision if isinstance(decision, tuple) else ()


def test_a_uv_that_is_not_what_its_wheel_brought_is_not_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        _installed_uv(tmp_path, monkeypatch, b"another program", sha256(b"").digest()),
        pytest.raises(UsageError, match=r"uv is not the file that its wheel brought, so no node gets it"),
    ):
        pack_uv()


def test_nodes_that_are_prepared_at_once_pack_the_uv_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random.Random(1).randbytes(4 << 20)  # it takes long enough for all to ask meanwhile
    with _installed_uv(tmp_path, monkeypatch, program, sha256(program).digest()), ThreadPoolExecutor(8) as pool:
        packed = [each.result() for each in [pool.submit(pack_uv) for _ in range(8)]]
    assert packed[0] is not None
    assert all(each is packed[0] for each in packed)


@contextmanager
def _installed_uv(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: bytes, recorded_sha256: bytes
) -> Iterator[None]:
    info = folder / "uv-1.0.dist-info"
    info.mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/uv").write_bytes(program)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: uv\nVersion: 1.0\n")
    digest = urlsafe_b64encode(recorded_sha256).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"bin/uv,sha256={digest},{len(program)}\n")
    monkeypatch.syspath_prepend(str(folder))
    _pack.cache_clear()
    try:
        yield
    finally:
        _pack.cache_clear()
