"""Where spotsup's commands start, under a name of its own: `supervisor`, `provisioners` and `bootstrap` may be somebody
else's, such as PyPI's `supervisor`. Then a command ends with one sentence before anything of either is run.

It lies beside the three in the wheel and in a clone. Older interpreters than ours can read it, and say so.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

# What `supervisor.cli.common.EXIT_CODES` calls wrong usage: its unit is not started again.
EXIT_CODE = 2
MIN_PYTHON = (3, 11)
PACKAGES = ("supervisor", "provisioners", "bootstrap")
# How the __init__.py of each begins; that of another distribution in the same folder replaces it.
FIRST_BYTES = b'"""spotsup: '
ENVIRONMENT_OF_ITS_OWN = (
    "install spotsup into an environment of its own, with `uv tool install spotsup` or `pipx install spotsup`"
)
DAEMON = (
    "comes with the daemon: `uv tool install 'spotsup[daemon]'`, or with its cloud 'spotsup[aws]', 'spotsup[gcp]' or "
    "'spotsup[azure]'"
)
SIMULATOR = (
    "comes with the simulator: `uv tool install 'spotsup[simulator]'`, or beside a cloud, as 'spotsup[aws,simulator]'"
)


def spotsupd() -> None:
    """Run the daemon."""
    _start("spotsupd", "supervisor.cli.daemon")


def spotsupctl() -> None:
    """Run the users' command line."""
    _start("spotsupctl", "supervisor.cli.ctl")


def localcloud() -> None:
    """Run the local cloud."""
    _start("spotsup-localcloud", "provisioners.localcloud.main")


def _start(program: str, module: str) -> None:
    _refuse_what_is_not_ours(program)
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in PACKAGES:
            raise
        _refuse(
            program, f"the module {missing} is missing, which {SIMULATOR if missing == 'spotsup_simulator' else DAEMON}"
        )


def _refuse(program: str, problem: str) -> None:
    sys.stderr.write(f"{program}: {problem}\n")
    sys.exit(EXIT_CODE)


def _refuse_what_is_not_ours(program: str) -> None:
    problem = _old_python() or next(filter(None, map(_foreign, PACKAGES)), "")
    if problem:
        _refuse(program, problem)


def _old_python() -> str:
    if sys.version_info >= MIN_PYTHON:
        return ""
    found, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, MIN_PYTHON))
    return (
        f"spotsup needs Python {needed} or newer, and {sys.executable} is {found}: install it with a newer one, as by "
        "`uv tool install --python 3.13 spotsup`"
    )


def _foreign(name: str) -> str:
    """Why what Python imports as `name` is not ours, and what to do; "" where it is ours. Imports nothing of it."""
    home = Path(__file__).resolve().parent
    spec = PathFinder.find_spec(name)
    if spec is None:
        return f"the package `{name}` is missing in {home}: {ENVIRONMENT_OF_ITS_OWN}"
    folders = list(spec.submodule_search_locations or ())
    place = Path(folders[0] if folders else spec.origin or "")
    is_beside_us = place.resolve().parent == home
    if not spec.origin:  # a folder without __init__.py
        if is_beside_us:
            return f"{place} is incomplete, as after removing another package of that name: {ENVIRONMENT_OF_ITS_OWN}"
    elif is_beside_us and Path(spec.origin).read_bytes().startswith(FIRST_BYTES):
        return ""
    found = f"Python finds another package called `{name}`, {place}{_distribution(name)}, instead of spotsup's"
    if place.resolve().parent in _python_path():
        return f"{found}: remove {place.parent} from PYTHONPATH, or start spotsup without it"
    return f"{found}: {ENVIRONMENT_OF_ITS_OWN}"


def _distribution(name: str) -> str:
    """Whose it is, as far as its distribution says. It reads all of them, and nothing of them may hide the problem."""
    try:
        from importlib.metadata import distributions

        for each in distributions():
            files = {str(path) for path in each.files or ()}
            if each.metadata["Name"] != "spotsup" and {f"{name}/__init__.py", f"{name}.py"} & files:
                return f" (of the distribution {each.metadata['Name']} {each.version})"
    except Exception:  # noqa: BLE001 - whatever is broken in the metadata of others
        return ""
    return ""


def _python_path() -> set[Path]:
    return {Path(each).resolve() for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each}
