"""The interpreter that trains: the machine's own or an environment's, after the user's `setup` line, if any."""

from __future__ import annotations

from hashlib import sha256

from bootstrap.code.step import SHIP_TIMEOUT_S, unpack
from bootstrap.container.step import interpreter_of
from bootstrap.decision import CHECK_TIMEOUT_S, Decision, env_script, paths_on
from bootstrap.environment.interpreter import dotted, managed, unfit
from bootstrap.environment.lock import Lock
from bootstrap.environment.torch import OLDEST, is_supported
from bootstrap.errors import STDERR_LINES
from bootstrap.facts import Facts
from bootstrap.model import Command, Run, Setup, Skip, Unfit, Upload, expand, folder_of
from bootstrap.templates import fill


def environment(facts: Facts, setup: Setup) -> Decision:
    """Make sure that there is an interpreter with torch, and that the `setup` line has run for this code.

    An environment is built by uv, the daemon's own copy where that fits the machine: no stock image brings pip, the
    venv module, or the interpreter that every lock asks for.
    """
    if setup.lock is None and (fault := unfit(facts, setup)):
        return Unfit(fault, of_job=True)
    if setup.image is not None:
        return Skip(f"{setup.image} brings it; {facts.python} is the agent's")
    marker = prepared_name(setup)
    to_prepare = setup.setup if setup.setup and marker not in facts.prepared else None
    if setup.lock is not None:
        return _from_lock(setup.lock, to_prepare, marker, facts, setup)
    if to_prepare:
        check = Run(
            "check that torch can be imported",
            fill("environment/check_torch.sh", python=facts.python),
            CHECK_TIMEOUT_S,
            of_job=True,
        )
        return (*_prepare(to_prepare, marker, facts, setup), *([check] if setup.torch else []))
    if setup.torch and not facts.torch:
        after = (
            ", although `setup` has run" if setup.setup else "; install it in the image, by `setup` or `environment`"
        )
        return Unfit(f"{facts.python} cannot import torch{after}", of_job=True)
    if setup.torch and not is_supported(facts.torch_version):
        return Unfit(
            f"{facts.python} has torch {facts.torch_version}, and spotsup needs {OLDEST} or newer; "
            "install that in the image, or by `environment`",
            of_job=True,
        )
    return Skip(f"{facts.python} is Python {dotted(facts.python_version)}{' and has torch' if setup.torch else ''}")


def prepared_name(setup: Setup) -> str:
    """Return the marker of a `setup` that has succeeded for this code, line, interpreter and environment."""
    parts = [setup.code.sha256, setup.setup or "", setup.python]
    if setup.lock is not None:
        parts += [setup.lock.kind, setup.lock.file, setup.lock.sha256]
    if setup.image is not None:
        parts.append(str(setup.image))
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def environment_name(facts: Facts, setup: Setup) -> str:
    """Return an environment's name. An environment is shared by all nodes with the same lock, interpreter and system.

    One that was not checked for torch has another name.
    """
    lock, torch = setup.lock, setup.torch
    assert lock is not None
    own = (facts.python, dotted(facts.python_version))
    base = ("uv", managed(setup)) if unfit(facts, setup) else own
    system = (facts.system.os, facts.system.version, facts.environments.machine)
    more = () if torch else ("without torch",)
    parts = (lock.kind, lock.file, lock.sha256, *base, *system, *more)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def python_of(facts: Facts, setup: Setup) -> str:
    """Return the interpreter that trains, once this step is done; for a container image, the script that runs its
    python3."""
    if setup.image is not None:
        return interpreter_of(facts, setup).path
    if setup.lock is None:
        return facts.python
    return f"{expand(setup.cache_folder, facts.home)}/{environment_name(facts, setup)}/bin/python"


def _from_lock(lock: Lock, to_prepare: str | None, marker: str, facts: Facts, setup: Setup) -> Decision:
    name = environment_name(facts, setup)
    commands: list[Command] = []
    if name not in facts.environments.complete:
        if no_uv := without_uv(facts, setup):
            return Unfit(no_uv, of_job=True)
        limit_s = setup.setup_timeout_s
        paths = paths_on(facts, setup)
        script = _build(lock, name, facts, setup)
        commands += _ship_uv(facts, setup)
        commands.append(Upload("the environment", paths.env, 0o600, env_script(facts, setup)))
        what = f"build an environment from {lock.file}"
        commands.append(Run(what, script, 2 * limit_s + CHECK_TIMEOUT_S, of_job=True))
    if to_prepare:
        commands += _prepare(to_prepare, marker, facts, setup)
    return tuple(commands) or Skip(f"the environment of {lock.file} is there: {python_of(facts, setup)}")


def _build(lock: Lock, name: str, facts: Facts, setup: Setup) -> str:
    """Build what `lock` describes into the cache, where it appears as `name`, complete or not at all."""
    paths = paths_on(facts, setup)
    builder = "sync_uv" if lock.kind == "uv" else "build_uv"
    by_uv = bool(unfit(facts, setup))
    return fill(
        "environment/build.sh",
        own=paths.own,
        cache=expand(setup.cache_folder, facts.home),
        name=name,
        python=managed(setup) if by_uv else facts.python,
        managed=by_uv,
        file=lock.file,
        torch=setup.torch,
        build=fill(f"environment/{builder}.sh"),
        uv=_uv_path(facts, setup) or facts.environments.uv,
        code=paths.code(setup.code),
        wait_s=setup.setup_timeout_s,
        timeout_s=setup.setup_timeout_s,
        lines=STDERR_LINES,
    )


def without_uv(facts: Facts, setup: Setup) -> str:
    """Return why nothing can build the environment, "" where something can."""
    if facts.environments.uv or _uv_path(facts, setup):
        return ""
    other = f"is for {setup.uv.machine}, not for {facts.environments.machine}" if setup.uv else "is not installed"
    return f"the daemon's uv, which builds environments, {other}, and this machine has none: put uv into its image"


def _uv_path(facts: Facts, setup: Setup) -> str:
    """Return where the daemon's uv lies on this machine once it is shipped; "" where it does not run there."""
    if setup.uv is None or setup.uv.machine != facts.environments.machine:
        return ""
    return f"{expand(setup.cache_folder, facts.home)}/uv/{setup.uv.archive.name}/uv"


def _ship_uv(facts: Facts, setup: Setup) -> list[Command]:
    path = _uv_path(facts, setup)
    if setup.uv is None or not path or setup.uv.archive.name in facts.environments.shipped:
        return []
    archive = setup.uv.archive
    script = unpack(archive, folder_of(path))
    return [Run(f"unpack uv ({len(archive.data)} bytes)", script, SHIP_TIMEOUT_S, stdin=archive.data)]


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
        Run(line, script, 2 * limit_s + CHECK_TIMEOUT_S, of_job=True),
    )
