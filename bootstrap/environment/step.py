"""The interpreter that trains: the machine's own or an environment's, after the user's `setup` line, if any."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from bootstrap.container.step import interpreter_of
from bootstrap.decision import CHECK_TIMEOUT_S, Decision, env_script, paths_on
from bootstrap.environment.lock import Lock
from bootstrap.errors import STDERR_LINES
from bootstrap.facts import Facts
from bootstrap.model import Command, Run, Setup, Skip, Unfit, Upload, expand, folder_of
from bootstrap.templates import fill

PYTHON_MIN = (3, 11)


def environment(facts: Facts, setup: Setup) -> Decision:
    """Make sure that the interpreter is new enough and has torch, once the `setup` line has run for this code."""
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
        check = Run(
            "check that torch can be imported", fill("environment/check_torch.sh", python=facts.python), CHECK_TIMEOUT_S
        )
        return (*_prepare(to_prepare, marker, facts, setup), *([check] if setup.torch else []))
    if setup.torch and not facts.torch:
        after = (
            ", although `setup` has run" if setup.setup else "; install it in the image, by `setup` or `environment`"
        )
        return Unfit(f"{facts.python} cannot import torch{after}")
    return Skip(f"{facts.python} is Python {_dotted(facts.python_version)}{' and has torch' if setup.torch else ''}")


def prepared_name(setup: Setup) -> str:
    """The marker of a `setup` that has succeeded for this code, line, interpreter and environment."""
    parts = [setup.code.sha256, setup.setup or "", setup.python]
    if setup.lock is not None:
        parts += [setup.lock.kind, setup.lock.file, setup.lock.sha256]
    if setup.image is not None:
        parts.append(str(setup.image))
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def environment_name(facts: Facts, lock: Lock, *, torch: bool = True) -> str:
    """An environment is shared by all nodes with the same lock, interpreter and system.

    One that was not checked for torch has another name.
    """
    system = (facts.system.os, facts.system.version, facts.environments.machine)
    more = () if torch else ("without torch",)
    parts = (lock.kind, lock.file, lock.sha256, facts.python, _dotted(facts.python_version), *system, *more)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def python_of(facts: Facts, setup: Setup) -> str:
    """The interpreter that trains, once this step is done; for a container image, the script that runs its python3."""
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
        script = _build(lock, name, facts, setup)
        commands.append(Upload("the environment", paths.env, 0o600, env_script(facts, setup)))
        commands.append(Run(f"build an environment from {lock.file}", script, 2 * limit_s + CHECK_TIMEOUT_S))
    if to_prepare:
        commands += _prepare(to_prepare, marker, facts, setup)
    return tuple(commands) or Skip(f"the environment of {lock.file} is there: {python_of(facts, setup)}")


def _build(lock: Lock, name: str, facts: Facts, setup: Setup) -> str:
    """Build what `lock` describes into the cache, where it appears as `name`, complete or not at all."""
    paths, found = paths_on(facts, setup), facts.environments
    uv = (facts.python, "-m", "uv") if found.uv == "module" else (found.uv,) if found.uv else ()
    builder = "sync_uv" if lock.kind == "uv" else "build_uv" if uv else "build_pip"
    return fill(
        "environment/build.sh",
        own=paths.own,
        cache=expand(setup.cache_folder, facts.home),
        name=name,
        python=facts.python,
        file=lock.file,
        torch=setup.torch,
        build=fill(f"environment/{builder}.sh"),
        uv=uv,
        code=paths.code(setup.code),
        wait_s=setup.setup_timeout_s,
        timeout_s=setup.setup_timeout_s,
        lines=STDERR_LINES,
    )


def _prepare(line: str, marker: str, facts: Facts, setup: Setup) -> tuple[Command, ...]:
    paths = paths_on(facts, setup)
    limit_s = setup.setup_timeout_s
    # An earlier daemon's command may still hold the lock; once it ends, the work is done.
    script = fill(
        "environment/prepare.sh",
        own=paths.own,
        prepared=paths.prepared,
        marker=marker,
        wait_s=limit_s,
        timeout_s=limit_s,
        bin=folder_of(python_of(facts, setup)),
        code=paths.code(setup.code),
        line=line,
        lines=STDERR_LINES,
    )
    return (
        Upload("the environment", paths.env, 0o600, env_script(facts, setup)),
        Run(line, script, 2 * limit_s + CHECK_TIMEOUT_S),
    )


def _dotted(version: Sequence[int]) -> str:
    return ".".join(str(part) for part in version)
