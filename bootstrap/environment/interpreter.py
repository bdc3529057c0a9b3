"""Which interpreter a node starts from: the machine's own, or one that uv brings. Checked before anything takes time.

A driver takes minutes to install and an image minutes to pull: a machine that lacks an interpreter says so first.
"""

from __future__ import annotations

from collections.abc import Sequence

from packaging.specifiers import SpecifierSet

from bootstrap.decision import Decision
from bootstrap.facts import Facts
from bootstrap.model import Setup, Skip, Unfit, expand

# The agent's and the launcher's own code: trainer/pyproject.toml says the same.
PYTHON_MIN = (3, 9)

# What uv brings where the machine has none that fits: a version for which every supported torch has wheels.
MANAGED = "3.12"


def interpreter(facts: Facts, setup: Setup) -> Decision:
    """Refuse a machine without an interpreter that its job can start from."""
    fault = unfit(facts, setup)
    if not fault:
        return Skip(f"{facts.python} is Python {dotted(facts.python_version)}")
    if setup.lock is not None:
        return Skip(f"{fault}; uv brings Python {managed(setup)}")
    python = expand(setup.python, facts.home)
    for mount in setup.mounts:
        if python.startswith(f"{mount.mountpoint}/") and not facts.python:
            return Skip(f"{python} is looked for once {mount.mountpoint} is mounted")
    remedy = f"use a newer machine image, or name another interpreter in `node.python`{_remedy(setup)}"
    return Unfit(f"{fault}; {remedy}", of_job=True)


def unfit(facts: Facts, setup: Setup) -> str:
    """Return why the machine's interpreter cannot be used, as a sentence without its end; "" where it can."""
    wants = f"{dotted(PYTHON_MIN)} or newer"
    if not facts.python:
        return f"{setup.python!r} is no interpreter that runs on this machine, and the job needs Python {wants}"
    if facts.python_version < PYTHON_MIN:
        return f"{facts.python} is Python {dotted(facts.python_version)}, and the job needs {wants}"
    wanted = setup.lock.requires_python if setup.lock is not None else ""
    if not SpecifierSet(wanted).contains(dotted(facts.python_version)):
        return f"{facts.python} is Python {dotted(facts.python_version)}, and the lock needs {wanted}"
    return ""


def managed(setup: Setup) -> str:
    """Return the version that uv brings: `MANAGED`, or what the lock asks for if that is another one."""
    wanted = setup.lock.requires_python if setup.lock is not None else ""
    return MANAGED if SpecifierSet(wanted).contains(f"{MANAGED}.0") else wanted


def dotted(version: Sequence[int]) -> str:
    """Return a version for people."""
    return ".".join(str(part) for part in version)


def _remedy(setup: Setup) -> str:
    return "" if setup.image is not None else ", or let uv bring one by `environment: requirements.txt`"
