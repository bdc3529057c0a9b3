"""The edge: gathers a machine's facts, carries out what the steps ask for, and says what it did.

Every function may run in many threads at a time, one machine each; nothing is shared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bootstrap import scripts
from bootstrap.connect import Clock, Shell, Target, connected
from bootstrap.errors import STDERR_LINES, BootstrapError, UnfitError
from bootstrap.facts import FACTS_TIMEOUT_S, Facts, FactsError, facts_script, parse_facts
from bootstrap.model import DEFAULT_ROOT, Paths, Run, Setup, Skip, Unfit, Upload, check_place
from bootstrap.steps import Decision, PlannedStep, plan, stop_timeout_s

COLLECT_TIMEOUT_S = 30.0


class StepState(StrEnum):
    """How far a step is."""

    BEGUN = "begun"
    DONE = "done"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What `on_step` hears. `detail`: why it was skipped, or what it did. `took_s` is 0 at the beginning."""

    node: str
    step: str
    state: StepState
    detail: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a bootstrap did: one event per step, the facts it found, the seconds until it could connect and in all."""

    node: str
    steps: tuple[StepEvent, ...]
    facts: Facts
    connected_s: float
    took_s: float

    @property
    def changed(self) -> bool:
        """Whether anything was left to do."""
        return any(step.state is StepState.DONE for step in self.steps)


class StopOutcome(StrEnum):
    """How an agent ended: by itself after SIGTERM, by SIGKILL after the grace, or there was none."""

    STOPPED = "stopped"
    KILLED = "killed"
    ABSENT = "absent"


def new_nonce() -> str:
    """A name nobody else uses."""
    return secrets.token_hex(8)


def bootstrap(
    target: Target,
    setup: Setup,
    *,
    clock: Clock,
    deadline_s: float,
    on_step: Callable[[StepEvent], None] = lambda _: None,
    nonce: Callable[[], str] = new_nonce,
) -> Report:
    """Make the machine ready and start its agent, within `deadline_s` seconds from now, its sshd's start included.

    What is already so is skipped, so it may be called again after any failure. An exception of `on_step` ends it
    before the next command. Raises BootstrapError; ValueError where a key of `target` cannot be read.
    """
    began = clock()
    with connected(target, setup.node, clock, began + deadline_s) as shell:
        connected_s = clock() - began
        facts = _gather(shell, setup)
        planned = plan(facts, setup)
        _refuse_unfit(planned, setup)
        events = tuple(_carry_out(shell, step, setup.node, clock, on_step, nonce) for step in planned)
    return Report(setup.node, events, facts, connected_s, clock() - began)


def dry_run(target: Target, setup: Setup, *, clock: Clock, deadline_s: float) -> tuple[PlannedStep, ...]:
    """What `bootstrap` would do now; changes nothing. `steps.explain` prints it. Raises as `bootstrap` does."""
    with connected(target, setup.node, clock, clock() + deadline_s) as shell:
        return plan(_gather(shell, setup), setup)


def stop_agent(
    target: Target, node: str, *, root: str = DEFAULT_ROOT, grace_s: float, clock: Clock, deadline_s: float
) -> StopOutcome:
    """SIGTERM the node's agent, and SIGKILL it and all that descends from it after `grace_s`. Raises BootstrapError."""
    check_place(node, root)
    command = Run("stop the agent", scripts.stop_agent(Paths(root, node), grace_s), stop_timeout_s(grace_s))
    with connected(target, node, clock, clock() + deadline_s) as shell:
        shell.step = "stop"
        stdout = shell.run(command).stdout
    said = [line for line in stdout.splitlines() if line.startswith(scripts.STOP_PREFIX)]
    if not said:
        raise BootstrapError(
            f"no outcome in the answer {stdout[-200:]!r}", node=node, step="stop", command=str(command)
        )
    return StopOutcome(said[-1].removeprefix(scripts.STOP_PREFIX))


def collect(
    target: Target,
    node: str,
    *,
    root: str = DEFAULT_ROOT,
    clock: Clock,
    deadline_s: float,
    lines: int = STDERR_LINES,
) -> str:
    """The last lines of the agent's log, "" where there is none. Raises BootstrapError."""
    check_place(node, root)
    command = Run("read the agent's log", scripts.collect(Paths(root, node), lines), COLLECT_TIMEOUT_S)
    with connected(target, node, clock, clock() + deadline_s) as shell:
        shell.step = "collect"
        return shell.run(command).stdout


def _gather(shell: Shell, setup: Setup) -> Facts:
    shell.step = "facts"
    stdout = shell.run(Run("gather facts", facts_script(setup), FACTS_TIMEOUT_S)).stdout
    try:
        return parse_facts(stdout)
    except FactsError as error:
        raise BootstrapError(str(error), node=setup.node, step="facts", command="gather facts") from error


def _refuse_unfit(planned: tuple[PlannedStep, ...], setup: Setup) -> None:
    for step in planned:
        if isinstance(step.decision, Unfit):
            raise UnfitError(step.decision.reason, node=setup.node, step=step.name)


def _carry_out(
    shell: Shell,
    step: PlannedStep,
    node: str,
    clock: Clock,
    on_step: Callable[[StepEvent], None],
    nonce: Callable[[], str],
) -> StepEvent:
    began = clock()
    shell.step = step.name
    on_step(StepEvent(node, step.name, StepState.BEGUN))
    state, detail = _apply(shell, step.decision, nonce)
    event = StepEvent(node, step.name, state, detail, clock() - began)
    on_step(event)
    return event


def _apply(shell: Shell, decision: Decision, nonce: Callable[[], str]) -> tuple[StepState, str]:
    assert not isinstance(decision, Unfit), "refused before anything was done"
    if isinstance(decision, Skip):
        return StepState.SKIPPED, decision.reason
    for command in decision:
        if isinstance(command, Upload):
            shell.upload(command, nonce())
        else:
            shell.run(command)
    return StepState.DONE, "; ".join(str(command) for command in decision)
