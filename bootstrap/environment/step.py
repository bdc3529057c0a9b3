"""The interpreter that trains: the machine's own, or one of an environment; after the user's `setup` line, if any."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from bootstrap import scripts
from bootstrap.container.step import interpreter_of
from bootstrap.decision import CHECK_TIMEOUT_S, Decision, env_script, paths_on
from bootstrap.environment.lock import Lock
from bootstrap.facts import Facts
from bootstrap.model import Command, Run, Setup, Skip, Unfit, Upload, expand

PYTHON_MIN = (3, 11)


def environment(facts: Facts, setup: Setup) -> Decision:
    """An interpreter that is new enough and has torch, after the user's `setup` line ran for this code."""
    if not facts.python:
        return Unfit(f"no interpreter {setup.python!r}; name one that runs and is {_dotted(PYTHON_MIN)} or newer")
    if facts.python_version < PYTHON_MIN:
        return Unfit(f"{facts.python} is Python {_dotted(facts.python_version)}; {_dotted(PYTHON_MIN)} is needed")
    if setup.image is not None:
        return Skip(f"{setup.image} brings it; {facts.python} is the agent's")
    marker = prepared_name(setup)
    to_prepare = setup.setup if setup.setup and marker not in facts.prepared else None
    if setup.lock is not None:
        return _from_lock(setup.lock, to_prepare, marker, facts, setup)
    if to_prepare:
        check = Run("check that torch can be imported", scripts.check_torch(facts.python), CHECK_TIMEOUT_S)
        return (*_prepare(to_prepare, marker, facts, setup), *([check] if setup.torch else []))
    if setup.torch and not facts.torch:
        after = ", not even after `setup`" if setup.setup else "; install it in the image, by `setup` or `environment`"
        return Unfit(f"{facts.python} cannot import torch{after}")
    return Skip(f"{facts.python} is Python {_dotted(facts.python_version)}{' and has torch' if setup.torch else ''}")


def prepared_name(setup: Setup) -> str:
    """The marker of a `setup` that succeeded: for this code, this line, this interpreter, this environment."""
    parts = [setup.code.sha256, setup.setup or "", setup.python]
    if setup.lock is not None:
        parts += [setup.lock.kind, setup.lock.file, setup.lock.sha256]
    if setup.image is not None:
        parts.append(str(setup.image))
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def environment_name(facts: Facts, lock: Lock, *, torch: bool = True) -> str:
    """An environment is good for the same lock, interpreter and system: where these are the same, it is shared.

    One in which nobody looked for torch is another one.
    """
    system = (facts.system.os, facts.system.version, facts.environments.machine)
    more = () if torch else ("without torch",)
    parts = (lock.kind, lock.file, lock.sha256, facts.python, _dotted(facts.python_version), *system, *more)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def python_of(facts: Facts, setup: Setup) -> str:
    """The interpreter that trains, once this step is done; of a container image, what stands for it."""
    if setup.image is not None:
        return interpreter_of(facts, setup).path
    if setup.lock is None:
        return facts.python
    return (
        f"{expand(setup.cache_folder, facts.home)}/{environment_name(facts, setup.lock, torch=setup.torch)}/bin/python"
    )


def _from_lock(lock: Lock, to_prepare: str | None, marker: str, facts: Facts, setup: Setup) -> Decision:
    name = environment_name(facts, lock, torch=setup.torch)
    commands: list[Command] = []
    if name not in facts.environments.complete:
        if lock.kind == "uv" and not facts.environments.uv:
            return Unfit("`environment: uv` needs uv on the node, on the PATH or in its Python; put it in the image")
        limit_s = setup.setup_timeout_s
        paths = paths_on(facts, setup)
        cache = expand(setup.cache_folder, facts.home)
        uv = facts.environments.uv
        script = scripts.build_environment(lock, name, cache, uv, facts.python, paths, setup)
        commands.append(Upload("the environment", paths.env, 0o600, env_script(facts, setup)))
        commands.append(Run(f"build an environment from {lock.file}", script, 2 * limit_s + CHECK_TIMEOUT_S))
    if to_prepare:
        commands += _prepare(to_prepare, marker, facts, setup)
    return tuple(commands) or Skip(f"the environment of {lock.file} is there: {python_of(facts, setup)}")


def _prepare(line: str, marker: str, facts: Facts, setup: Setup) -> tuple[Command, ...]:
    paths = paths_on(facts, setup)
    limit_s = setup.setup_timeout_s
    # Who waits for the lock finds the work done: an earlier daemon's command may still be at it.
    script = scripts.prepare(
        line, paths, setup.code, python_of(facts, setup), marker, timeout_s=limit_s, wait_s=limit_s
    )
    return (
        Upload("the environment", paths.env, 0o600, env_script(facts, setup)),
        Run(line, script, 2 * limit_s + CHECK_TIMEOUT_S),
    )


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)
