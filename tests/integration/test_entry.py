"""Commands that find another package under a name of ours, or an old interpreter: one sentence, with the remedy."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import spotsup_entry
from tests.support.interpreters import interpreter
from tests.support.programs import program_env
from tools.stack import ROOT

COMMANDS = ("spotsupd", "spotsupctl", "spotsup-localcloud")
REMEDY = "install spotsup into an environment of its own, with `uv tool install spotsup` or `pipx install spotsup`"


def other_wheel(folder: Path, name: str, text: str = "# this is a package\n") -> Path:
    """The wheel of another distribution with a package of this name, as PyPI's `supervisor` is one."""
    info = f"{name}-4.3.0.dist-info"
    files = {
        f"{name}/__init__.py": text,
        f"{name}/options.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.3.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-4.3.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, content in files.items():
            archive.writestr(inner, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{inner},,\n" for inner in (*files, f"{info}/RECORD")))
    return path


def refusal_of(*command: str | Path, **environ: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, cwd="/", env={**program_env(), **environ}
    )
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", spotsup_entry.PACKAGES)
def test_a_package_that_pythonpath_puts_before_ours_is_refused_and_not_run(
    tmp_path: Path, command: str, name: str
) -> None:
    with zipfile.ZipFile(other_wheel(tmp_path, name, f"open({str(tmp_path / 'ran')!r}, 'w')\n")) as archive:
        archive.extractall(tmp_path / "other")
    line = refusal_of(Path(sys.executable).parent / command, PYTHONPATH=str(tmp_path / "other"))
    found = f"{tmp_path}/other/{name} (of the distribution {name} 4.3.0), instead of spotsup's"
    remedy = f"remove {tmp_path}/other from PYTHONPATH, or start spotsup without it"
    assert line == f"{command}: Python finds another package called `{name}`, {found}: {remedy}"
    assert not (tmp_path / "ran").exists()


def test_a_module_or_a_bare_folder_of_that_name_is_named_too(tmp_path: Path) -> None:
    """A folder without __init__.py counts only where nothing else has the name, so it hides none of ours."""
    for name in ("module", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "module" / "supervisor.py").touch()
    (tmp_path / "folder" / "supervisor").mkdir()
    spotsupctl = Path(sys.executable).parent / "spotsupctl"
    line = refusal_of(spotsupctl, PYTHONPATH=str(tmp_path / "module"))
    assert f"called `supervisor`, {tmp_path}/module/supervisor.py, instead of spotsup's: remove " in line
    environ = {**program_env(), "PYTHONPATH": str(tmp_path / "folder")}
    done = subprocess.run([spotsupctl, "--version"], capture_output=True, check=False, timeout=60, env=environ)
    assert done.returncode == 0


def test_an_old_interpreter_is_named() -> None:
    python = interpreter("3.9")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spotsup_entry; spotsup_entry.spotsupd()"
    needs = f"spotsup needs Python 3.11 or newer, and {python} is 3.9"
    remedy = "install it with a newer one, as by `uv tool install --python 3.13 spotsup`"
    assert refusal_of(python, "-c", code) == f"spotsupd: {needs}: {remedy}"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("spotsupd", ["simulate", "market.csv"]), ("spotsupctl", ["plan", "--simulate", "job.yaml"])],
)
def test_without_the_simulator_its_commands_say_what_brings_it(command: str, arguments: list[str]) -> None:
    words = [command, *arguments]
    code = f"import sys; sys.argv, sys.modules['spotsup_simulator'] = {words}, None; import spotsup_entry"
    line = refusal_of(sys.executable, "-c", f"{code}; spotsup_entry.{command}()")
    assert line == f"{command}: the module spotsup_simulator is missing, which {spotsup_entry.SIMULATOR}"


@pytest.mark.parametrize("name", spotsup_entry.PACKAGES)
def test_our_packages_begin_as_the_entry_expects(name: str) -> None:
    assert (ROOT / name / "__init__.py").read_bytes().startswith(spotsup_entry.FIRST_BYTES)
