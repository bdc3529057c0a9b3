"""What is left to do on a machine: each step is a pure function of its facts. Done again, nothing is left to do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from bootstrap import scripts
from bootstrap.facts import Facts
from bootstrap.model import Archive, Command, Paths, Run, Setup, Skip, Unfit, Upload, expand

PYTHON_MIN = (3, 11)
FREE_MB_MIN = 64

# An unpacked archive takes several times its own size; source code shrinks by 3 to 5.
UNPACKED_FACTOR = 5

UNPACK_TIMEOUT_S = 300.0
CHECK_TIMEOUT_S = 60.0
START_TIMEOUT_S = 60.0
LOCK_WAIT_S = 30

Decision: TypeAlias = tuple[Command, ...] | Skip | Unfit
Step: TypeAlias = Callable[[Facts, Setup], Decision]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step's name and what it decided."""

    name: str
    decision: Decision


def code(facts: Facts, setup: Setup) -> Decision:
    """The job's code, in a folder named by its content."""
    paths = paths_on(facts, setup)
    if setup.code.name in facts.codes:
        return Skip(f"code {setup.code.name} is there")
    return _ship("code", setup.code, paths.code(setup.code), facts, paths)


def trainer(facts: Facts, setup: Setup) -> Decision:
    """The daemon's own version of spotsup_trainer, in a folder named by its content: no pip, nothing to disagree."""
    paths = paths_on(facts, setup)
    if setup.trainer.name in facts.trainers:
        return Skip(f"trainer {setup.trainer.name} is there")
    return _ship("trainer", setup.trainer, paths.trainer(setup.trainer), facts, paths)


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


def agent(facts: Facts, setup: Setup) -> Decision:
    """The agent, with this configuration, detached; one with another configuration is stopped first."""
    paths = paths_on(facts, setup)
    config = agent_config(facts, setup)
    key = agent_key(facts, setup)
    if facts.agent and facts.agent.key == key:
        return Skip(f"the agent runs with this configuration, pid {facts.agent.pid}")
    commands: list[Command] = []
    if facts.agent:
        stop = scripts.stop_agent(paths, setup.stop_grace_s)
        commands.append(Run("stop the agent with another configuration", stop, stop_timeout_s(setup.stop_grace_s)))
    start = scripts.start_agent(paths, facts.python, setup.trainer, key, LOCK_WAIT_S)
    return (
        *commands,
        Upload("the agent's configuration", paths.agent_config, 0o600, config),
        Upload("the environment", paths.env, 0o600, env_script(setup)),
        Run("start the agent", start, START_TIMEOUT_S),
    )


STEPS: Sequence[tuple[str, Step]] = (
    ("code", code),
    ("trainer", trainer),
    ("environment", environment),
    ("agent", agent),
)


def plan(facts: Facts, setup: Setup) -> tuple[PlannedStep, ...]:
    """All steps in order, with what each decided."""
    return tuple(PlannedStep(name, step(facts, setup)) for name, step in STEPS)


def explain(planned: Sequence[PlannedStep]) -> str:
    """The plan for people, scripts in full: what a dry run shows."""
    lines: list[str] = []
    for step in planned:
        match step.decision:
            case Skip(reason):
                lines.append(f"{step.name}: nothing to do: {reason}")
            case Unfit(reason):
                lines.append(f"{step.name}: impossible: {reason}")
            case commands:
                lines.append(f"{step.name}:")
                for command in commands:
                    lines.append(f"  {command}")
                    if isinstance(command, Run):
                        lines.extend(f"    | {line}" for line in command.script.strip().splitlines())
    return "\n".join(lines)


def paths_on(facts: Facts, setup: Setup) -> Paths:
    """Where things lie on this machine, absolute."""
    return Paths(expand(setup.root, facts.home), setup.node)


def agent_config(facts: Facts, setup: Setup) -> bytes:
    """The configuration as this machine's agent reads it: the template with its paths filled in."""
    paths = paths_on(facts, setup)
    config = json.loads(setup.agent_config)
    config |= {
        "python": facts.python,
        "code_dir": paths.code(setup.code),
        "run_dir": paths.run,
        "log_dir": paths.log,
        "checkpoint_dir": expand(config.get("checkpoint_dir", ""), facts.home),
    }
    return json.dumps(config, separators=(",", ":"), sort_keys=True).encode()


def agent_key(facts: Facts, setup: Setup) -> str:
    """What must be the same for a running agent to be the right one: configuration, trainer and environment."""
    parts = (agent_config(facts, setup), setup.trainer.sha256.encode(), env_script(setup))
    return sha256(b"\0".join(parts)).hexdigest()[:32]


def prepared_name(setup: Setup) -> str:
    """The marker of a `setup` that succeeded: for this code, this line, this interpreter."""
    parts = (setup.code.sha256, setup.setup or "", setup.python)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def env_script(setup: Setup) -> bytes:
    """`Setup.env` for sh."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(setup.env.items())).encode()


def stop_timeout_s(grace_s: float) -> float:
    """How long the stop script may take."""
    return grace_s + scripts.KILL_WAIT_S + CHECK_TIMEOUT_S


def _ship(what: str, archive: Archive, folder: str, facts: Facts, paths: Paths) -> Decision:
    needed_mb = FREE_MB_MIN + UNPACKED_FACTOR * len(archive.data) // 1_000_000
    if facts.free_mb < needed_mb:
        return Unfit(f"{facts.free_mb} MB are free below {paths.root}; unpacking the {what} needs {needed_mb}")
    packed = f"{paths.own}/{what}.tar.gz"
    return (
        Upload(f"the {what}", packed, 0o600, archive.data),
        Run(f"unpack the {what}", scripts.unpack(packed, folder), UNPACK_TIMEOUT_S),
    )


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
