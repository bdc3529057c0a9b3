""".venv, with everything in constraints.txt that pyproject.toml asks for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.setup.apt import Apt
from tools.setup.errors import SetupError, output_tail, run

SOURCES = (
    "pyproject.toml",
    "trainer/pyproject.toml",
    "trainer/spotsup_trainer/__init__.py",  # the version
    "client/pyproject.toml",
    "simulator/pyproject.toml",
    "constraints.txt",
    "tools/setup/environment.py",
)
# What builds our own distributions: pinned too, so it is installed here rather than by pip in a place of its own.
BUILD_TOOLS = ("hatchling", "editables")
# A process of pip uses one core: there are several at once, with few packages each, so that all are busy to the end.
PACKAGES_AT_A_TIME = 24
CREATE_TIMEOUT_S = 300.0
INSTALL_TIMEOUT_S = 3600.0


def ensure_environment(clone: Path) -> bool:
    """Create or update .venv, unless the stamp says that it is what the sources ask for; then False. Raises
    SetupError."""
    venv = clone / ".venv"
    stamp, unfinished = venv / "setup.stamp", venv / "setup.unfinished"
    wanted = _fingerprint(clone)
    fits = _fits(venv)
    if _read(stamp) == wanted and fits:
        return False
    moved = stamp.exists() and _read(stamp).partition("\n")[0] != wanted.partition("\n")[0]
    fresh = moved or not fits or unfinished.exists() or not _runs(venv, "import pip")
    if fresh:
        print("setup: creating .venv", flush=True)
        _create(venv, clone)
    unfinished.touch()
    stamp.unlink(missing_ok=True)
    print("setup: installing what constraints.txt names; the first time it takes minutes, torch is large", flush=True)
    if fresh:
        _install_ahead(venv, clone)
    _pip(venv, clone, *BUILD_TOOLS, shown=not fresh)
    # The simulator last: it needs spotsup, which pip takes from here only once it was named.
    ours = [argument for home in ("trainer", "client", ".[dev]", "simulator") for argument in ("--editable", home)]
    _pip(venv, clone, "--no-build-isolation", *ours, shown=not fresh)
    scratch = stamp.with_suffix(".new")
    scratch.write_text(wanted, encoding="utf-8")
    scratch.replace(stamp)
    unfinished.unlink()
    return True


def _fingerprint(clone: Path) -> str:
    """Return the clone's place on the first line: scripts in .venv name it. Then what is installed."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((clone / name).read_bytes() + b"\0")
    return f"{clone}\n{digest.hexdigest()}\n"


def _fits(venv: Path) -> bool:
    """True if its Python runs, and is of the version that PYTHON names, if it names one. Otherwise any one is kept."""
    version = tuple(sys.version_info[:3])
    named = bool(os.environ.get("PYTHON"))
    return _runs(venv, f"import sys; sys.exit(sys.version_info[:3] != {version})" if named else "pass")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _runs(venv: Path, code: str) -> bool:
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    return run([str(python), "-c", code], cwd=venv, timeout_s=60.0).returncode == 0


def _create(venv: Path, clone: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir()
    (venv / "setup.unfinished").touch()
    # Debian keeps ensurepip in python3-venv, which a fresh machine lacks.
    own_pip = (
        run([sys.executable, "-c", "import ensurepip; ensurepip.version()"], cwd=clone, timeout_s=60.0).returncode == 0
    )
    options = [] if own_pip else ["--without-pip"]
    done = run([sys.executable, "-m", "venv", *options, ".venv"], cwd=clone, timeout_s=CREATE_TIMEOUT_S)
    if done.returncode != 0:
        raise SetupError(f"{sys.executable} cannot create .venv: {output_tail(done)}")
    if not own_pip:
        _unpack_pip(venv, clone)


def _unpack_pip(venv: Path, clone: Path) -> None:
    """pip from Debian's package of its wheel, which needs no root; a wheel can run itself."""
    found = clone / ".tools" / "pip"
    shutil.rmtree(found, ignore_errors=True)
    try:
        Apt(clone / ".tools").unpack(["python3-pip-whl"], found)
        wheel = next(found.glob("usr/share/python-wheels/pip-*.whl"))
    except (SetupError, StopIteration) as error:
        raise SetupError(
            f"{sys.executable} comes without ensurepip, and Debian's python3-pip-whl cannot be unpacked ({error}); "
            "this brings it: sudo apt-get install python3-venv"
        ) from error
    python = venv / "bin" / "python"
    done = run(
        [str(python), f"{wheel}/pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)],
        cwd=clone,
        timeout_s=CREATE_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise SetupError(f"pip cannot install itself from {wheel.name}: {output_tail(done)}")


def _install_ahead(venv: Path, clone: Path) -> None:
    """Install what is pinned on all cores, without resolving: torch by itself, with its progress, the rest beside it.
    What cannot be had so is left to the resolver that comes after, which says why."""
    pins = (clone / "constraints.txt").read_text(encoding="utf-8").split()
    (torch,) = (pin for pin in pins if pin.startswith("torch=="))
    pins.remove(torch)
    several = ["xargs", "-n", str(PACKAGES_AT_A_TIME), "-P", str(os.cpu_count() or 1)]
    command = [*several, str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    with subprocess.Popen(command, cwd=clone, env=_pip_environ(), stdin=subprocess.PIPE, text=True) as rest:
        assert rest.stdin is not None
        rest.stdin.write("\n".join(pins))
        rest.stdin.close()
        _pip(venv, clone, "--no-deps", torch)


def _pip(venv: Path, clone: Path, *arguments: str, shown: bool = True) -> None:
    """Install with pip's own output and its own settings but one: never into the user's site-packages.

    A person at a terminal sees its progress; a log gets warnings and errors. Not `shown`: everywhere, as of packages
    that are there already, each with a line.
    """
    python = venv / "bin" / "python"
    quiet = [] if shown and sys.stdout.isatty() else ["--quiet"]
    command = [str(python), "-m", "pip", "install", *quiet, "--constraint", "constraints.txt", *arguments]
    try:
        status = subprocess.run(
            command, cwd=clone, env=_pip_environ(), check=False, timeout=INSTALL_TIMEOUT_S
        ).returncode
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"pip did not end within {INSTALL_TIMEOUT_S:.0f} s; try again") from error
    if status != 0:
        raise SetupError(f"pip ended with status {status}, see above; fix the cause and try again")


def _pip_environ() -> dict[str, str]:
    return {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
