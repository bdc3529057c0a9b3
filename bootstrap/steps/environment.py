"""The interpreter that trains, after the user's `setup` line ran for this code."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from bootstrap import scripts
from bootstrap.facts import Facts
from bootstrap.model import Command, Run, Setup, Skip, Unfit, Upload
from bootstrap.steps.base import CHECK_TIMEOUT_S, Decision, env_script, paths_on

PYTHON_MIN = (3, 11)


def environment(facts: Facts, setup: Setup) -> Decision:
    """An interpreter that is new enough and has torch, after the user's `setup` line ran for this code."""
    if not facts.python:
        return Unfit(f"no interpreter {setup.python!r}; name one that runs and is {_dotted(PYTHON_MIN)} or newer")
    if facts.python_version < PYTHON_MIN:
        return Unfit(f"{facts.python} is Python {_dotted(facts.python_version)}; {_dotted(PYTHON_MIN)} is needed")
    marker = prepared_name(setup)
    if setup.setup and marker not in facts.prepared:
        return _prepare(setup.setup, marker, facts, setup)
    if not facts.torch:
        after = ", not even after `setup`" if setup.setup else "; install it in the image, or by `setup`"
        return Unfit(f"{facts.python} cannot import torch{after}")
    return Skip(f"{facts.python} is Python {_dotted(facts.python_version)} and has torch")


def prepared_name(setup: Setup) -> str:
    """The marker of a `setup` that succeeded: for this code, this line, this interpreter."""
    parts = (setup.code.sha256, setup.setup or "", setup.python)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def _prepare(line: str, marker: str, facts: Facts, setup: Setup) -> tuple[Command, ...]:
    paths = paths_on(facts, setup)
    limit_s = setup.setup_timeout_s
    # Who waits for the lock finds the work done: an earlier daemon's command may still be at it.
    script = scripts.prepare(line, paths, setup.code, facts.python, marker, timeout_s=limit_s, wait_s=limit_s)
    return (
        Upload("the environment", paths.env, 0o600, env_script(setup)),
        Run(line, script, 2 * limit_s + CHECK_TIMEOUT_S),
        Run("check that torch can be imported", scripts.check_torch(facts.python), CHECK_TIMEOUT_S),
    )


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)
