"""What is left to do on a machine: each step is a pure function of facts. A second run finds nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.agent.step import agent, agent_config, agent_key, stop_timeout_s
from bootstrap.code.step import code, trainer
from bootstrap.container.step import container
from bootstrap.decision import Decision, Step, allowed, changes_system, needs_new_facts
from bootstrap.environment.interpreter import interpreter
from bootstrap.environment.step import environment, prepared_name
from bootstrap.facts import Facts
from bootstrap.gpu.step import gpu, gpu_check
from bootstrap.log_agent.step import log_agent
from bootstrap.model import Run, Setup, Skip, Unfit
from bootstrap.mounts.step import mount_key, mounts
from bootstrap.network.step import network
from bootstrap.reach.step import reach
from bootstrap.store.step import store
from bootstrap.system.step import hygiene

__all__ = [
    "STEPS",
    "Decision",
    "PlannedStep",
    "Step",
    "agent_config",
    "agent_key",
    "changes_system",
    "explain",
    "mount_key",
    "needs_new_facts",
    "plan",
    "prepared_name",
    "stop_timeout_s",
]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step's name and what it decided."""

    name: str
    decision: Decision


STEPS: Sequence[tuple[str, Step]] = (
    ("hygiene", hygiene),
    ("interpreter", interpreter),
    ("gpu", gpu),
    ("network", network),
    ("mounts", mounts),
    ("code", code),
    ("trainer", trainer),
    ("reach", reach),
    ("container", container),
    ("environment", environment),
    ("store", store),
    ("gpu-check", gpu_check),
    ("agent", agent),
    ("log-agent", log_agent),
)


def plan(facts: Facts, setup: Setup, steps: Sequence[tuple[str, Step]] = STEPS) -> tuple[PlannedStep, ...]:
    """Return all steps in order, with the decision of each.

    What follows a step that needs new facts (`Again`, `Reboot`) is a preview: it is planned again from those.
    """
    return tuple(PlannedStep(name, allowed(step(facts, setup), facts, setup)) for name, step in steps)


def explain(planned: Sequence[PlannedStep]) -> str:
    """Return the plan for people, scripts in full: what a dry run shows."""
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
                    as_root = " (as root)" if isinstance(command, Run) and command.as_root else ""
                    lines.append(f"  {command}{as_root}")
                    if isinstance(command, Run):
                        lines.extend(f"    | {line}" for line in command.script.strip().splitlines())
    return "\n".join(lines)
