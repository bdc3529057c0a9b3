"""What `make dist` builds: the contents of all wheels and sdists, one version, and an installation that starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import spotsup_trainer

from tests.integration.test_entry import REMEDY, other_wheel, refusal_of

pytestmark = pytest.mark.long

REPO = Path(__file__).resolve().parents[2]
VERSION = spotsup_trainer.__version__
ROOMS = {
    "spotsup": ("supervisor", "provisioners", "bootstrap"),
    "spotsup_trainer": ("spotsup_trainer",),
    "spotsup_client": ("spotsup",),
    "spotsup_simulator": ("spotsup_simulator",),
}
MODULES = {
    "spotsup": ("spotsup_entry.py",),
    "spotsup_trainer": (),
    "spotsup_client": ("hydra_plugins",),
    "spotsup_simulator": (),
}
HOMES = {
    "spotsup": REPO,
    "spotsup_trainer": REPO / "trainer",
    "spotsup_client": REPO / "client",
    "spotsup_simulator": REPO / "simulator",
}
SHARED = {"systemd": "systemd", "docs/permissions": "permissions", "monitoring": "monitoring"}
UNITS = {f"share/spotsup/{to}/{path.name}" for at, to in SHARED.items() for path in (REPO / at).iterdir()}


def started(*command: str | Path, cwd: Path = REPO, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, check=False, timeout=120
    )


def run(*command: str | Path, cwd: Path = REPO, **environ: str) -> str:
    done = started(*command, cwd=cwd, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, built as the Makefile does: without isolation, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    for home in HOMES.values():
        run(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=home, PIP_NO_INDEX="1")
    return folder


def wheel(dist: Path, name: str) -> Path:
    return dist / f"{name}-{VERSION}-py3-none-any.whl"


def files_of_wheel(dist: Path, name: str) -> set[str]:
    with zipfile.ZipFile(wheel(dist, name)) as archive:
        return set(archive.namelist())


def files_of_sdist(dist: Path, name: str) -> set[str]:
    with tarfile.open(dist / f"{name}-{VERSION}.tar.gz") as archive:
        assert all(member.isfile() for member in archive.getmembers())
        return {member.name.partition("/")[2] for member in archive.getmembers()}


def product_files(name: str) -> set[str]:
    """All files of a distribution's packages and modules that git knows or would."""
    home = HOMES[name]
    listed = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", *ROOMS[name], *MODULES[name], cwd=home
    ).split("\n")
    return {each for each in listed if each and (home / each).is_file()}


def test_two_files_of_each_and_one_version_are_built(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == {
        name.format(VERSION) for each in ROOMS for name in (f"{each}-{{}}.tar.gz", f"{each}-{{}}-py3-none-any.whl")
    }


@pytest.mark.parametrize("name", ROOMS)
def test_a_wheel_has_all_of_its_packages_and_nothing_else(dist: Path, name: str) -> None:
    files = files_of_wheel(dist, name)
    data, info = f"{name}-{VERSION}.data/data/", f"{name}-{VERSION}.dist-info/"
    assert {each for each in files if not each.startswith((data, info))} == product_files(name)
    assert {f"{room}/py.typed" for room in ROOMS[name]} <= files
    assert f"{info}licenses/LICENSE" in files
    units = {each.removeprefix(data) for each in files if each.startswith(data)}
    assert units == (UNITS if name == "spotsup" else set())


@pytest.mark.parametrize("name", ROOMS)
def test_an_sdist_has_what_its_wheel_is_built_from_and_no_tests(dist: Path, name: str) -> None:
    files = files_of_sdist(dist, name)
    assert files >= product_files(name) | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    assert not {each for each in files if each.partition("/")[0] in ("tests", "benchmarks", "tools")}
    assert name != "spotsup" or files >= {f"{at}/{path.name}" for at in SHARED for path in (REPO / at).iterdir()}


def test_a_wheel_can_be_built_from_the_sdist(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / f"spotsup-{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path)  # noqa: S202 - our own; Debian 12's Python knows no filter
    unpacked = tmp_path / f"spotsup-{VERSION}"
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path, cwd=unpacked)
    assert files_of_wheel(tmp_path, "spotsup") == files_of_wheel(dist, "spotsup")


@pytest.mark.parametrize("name", ROOMS)
def test_the_metadata_names_licence_readme_and_our_others_of_the_same_version(dist: Path, name: str) -> None:
    with zipfile.ZipFile(wheel(dist, name)) as archive:
        metadata = Parser().parsestr(archive.read(f"{name}-{VERSION}.dist-info/METADATA").decode())
    assert (metadata["Version"], metadata["License-Expression"]) == (VERSION, "Apache-2.0")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (HOMES[name] / "README.md").read_text(encoding="utf-8")
    if name == "spotsup":
        ours = {each for each in metadata.get_all("Requires-Dist", []) if each.startswith("spotsup-")}
        assert ours >= {
            f"spotsup-client=={VERSION}",
            f"spotsup-trainer=={VERSION}; extra == 'daemon'",
            f"spotsup-simulator=={VERSION}; extra == 'simulator'",
        }
    elif name == "spotsup_simulator":
        assert metadata.get_all("Requires-Dist") == [f"spotsup[daemon]=={VERSION}"]
    else:
        assert all("extra ==" in each for each in metadata.get_all("Requires-Dist", []))


def test_the_licence_is_one() -> None:
    assert len({(home / "LICENSE").read_bytes() for home in HOMES.values()}) == 1


# They come from this environment; ours is editable there, and PYTHONPATH reads no .pth files.
DEPENDENCIES = {"PYTHONPATH": sysconfig.get_path("purelib")}


def installed(dist: Path, folder: Path) -> Path:
    """The interpreter of an environment with what `spotsup[daemon]` brings of ours."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    install(python, *(wheel(dist, name) for name in ROOMS if name != "spotsup_simulator"))
    return python


def install(python: Path, *wheels: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", *wheels)


@pytest.mark.long
def test_the_wheels_installed_give_commands_that_start(dist: Path, tmp_path: Path) -> None:
    python = installed(dist, tmp_path)
    environ = DEPENDENCIES
    place = run(python, "-c", "import supervisor; print(supervisor.__file__)", cwd=tmp_path, **environ)
    assert place.startswith(str(tmp_path))
    assert run(python.parent / "spotsupd", "--version", cwd=tmp_path, **environ) == f"spotsupd, version {VERSION}\n"
    for command in ("spotsupctl", "spotsupd", "spotsup-localcloud"):
        assert run(python.parent / command, "--help", cwd=tmp_path, **environ).startswith("Usage: ")
    assert (tmp_path / "venv" / "share" / "spotsup" / "systemd" / "spotsupd.service").is_file()


MARKET = "seconds,a,b\n0,2,0\n1800,0,2\n"
JOB = "name: bert\nnodes: {min: 1, desired: 2, max: 2}\nrun: train.py\n"
NO_SIMULATOR = (
    "the module spotsup_simulator is missing, which comes with the simulator: `uv tool install 'spotsup[simulator]'`, "
    "or beside a cloud, as 'spotsup[aws,simulator]'"
)


def test_a_recording_is_played_once_the_simulator_is_installed_and_until_then_it_says_what_to_install(
    dist: Path, tmp_path: Path
) -> None:
    """The simulator's files are in no other wheel."""
    python = installed(dist, tmp_path)
    (tmp_path / "market.csv").write_text(MARKET)
    (tmp_path / "job.yaml").write_text(JOB)
    play = (python.parent / "spotsupd", "simulate", tmp_path / "market.csv", "--job", tmp_path / "job.yaml")
    assert refusal_of(*play, **DEPENDENCIES) == f"spotsupd: {NO_SIMULATOR}"
    plan = (python.parent / "spotsupctl", "plan", tmp_path / "job.yaml", "--simulate")
    assert refusal_of(*plan, **DEPENDENCIES) == f"spotsupctl: {NO_SIMULATOR}"
    listed = run(python.parent / "spotsupd", "--help", cwd=tmp_path, **DEPENDENCIES)
    assert re.search(r"^  simulate +Play a job on a RECORDING", listed, re.MULTILINE)
    install(python, wheel(dist, "spotsup_simulator"))
    assert "useful node-hours" in run(*play, cwd=tmp_path, **DEPENDENCIES)


@pytest.mark.long
def test_another_distribution_with_a_package_of_our_name_in_the_same_environment_is_refused(
    dist: Path, tmp_path: Path
) -> None:
    """Its files and ours then share a folder, and removing either one breaks the other."""
    python = installed(dist, tmp_path)
    install(python, other_wheel(tmp_path, "supervisor"))
    folder = Path(run(python, "-c", "import supervisor; print(supervisor.__path__[0])", cwd=tmp_path).strip())
    other = f"Python finds another package called `supervisor`, {folder} (of the distribution supervisor 4.3.0)"
    assert (
        refusal_of(python.parent / "spotsupd", **DEPENDENCIES) == f"spotsupd: {other}, instead of spotsup's: {REMEDY}"
    )
    run(sys.executable, "-m", "pip", "--python", python, "uninstall", "--quiet", "--yes", "supervisor")
    incomplete = f"{folder} is incomplete, as after removing another package of that name"
    assert refusal_of(python.parent / "spotsupctl", **DEPENDENCIES) == f"spotsupctl: {incomplete}: {REMEDY}"


# What `spotsup` depends on without an extra, and what these bring along.
LIGHT = ("click", "markdown_it", "mdurl", "packaging", "pygments", "rich", "yaml", "_yaml")


def test_without_the_daemons_packages_there_are_the_command_line_and_the_client(dist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    commands = tmp_path / "venv" / "bin"
    install(commands / "python", wheel(dist, "spotsup"), wheel(dist, "spotsup_client"))
    (tmp_path / "light").mkdir()
    for name in LIGHT:
        (tmp_path / "light" / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    environ = {"PYTHONPATH": str(tmp_path / "light"), "SPOTSUP_SOCKET": str(tmp_path / "no-socket")}
    assert run(commands / "spotsupctl", "--help", cwd=tmp_path, **environ).startswith("Usage: ")
    assert run(commands / "python", "-c", "from spotsup import Client; Client()", cwd=tmp_path, **environ) == ""
    (code := tmp_path / "code").mkdir()
    (code / "train.py").touch()
    (code / "requirements.txt").write_text("torch>=2.6\n")
    job = ("--name", "job", "--environment", "requirements.txt", "--", "train.py")
    for command in (["list"], ["submit", *job], ["plan", *job], ["top"], ["ssh", "node"]):
        done = started(commands / "spotsupctl", *command, cwd=code, **environ)
        assert (done.returncode, "no spotsupd answers at" in done.stderr) == (3, True), done.stderr
    packed = "from supervisor.cli.submission import prepare; prepare(['train.py'], {'environment': 'requirements.txt'})"
    assert run(commands / "python", "-c", f"{packed}.describe()", cwd=code, **environ) == ""
    remedy = (
        "which comes with the daemon: `uv tool install 'spotsup[daemon]'`, or with its cloud 'spotsup[aws]', "
        "'spotsup[gcp]' or 'spotsup[azure]'"
    )
    for program, command in (
        ("spotsupd", ["run"]),
        ("spotsupd", ["--help"]),
    ):
        done = started(commands / program, *command, cwd=code, **environ)
        (line,) = done.stderr.splitlines()
        assert (
            done.returncode,
            line.startswith(f"{program}: the module "),
            line.endswith(f" is missing, {remedy}"),
        ) == (
            2,
            True,
            True,
        ), line
