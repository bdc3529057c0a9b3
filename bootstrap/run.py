"""Gathers a machine's facts, runs the commands of the steps, and reports what it did. The only part that does I/O.

Every function may run in many threads at a time, one machine each; nothing is shared.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from bootstrap.agent import scripts
from bootstrap.cleaning.step import end, wipe
from bootstrap.connect import Clock, Shell, SshHost, connected
from bootstrap.errors import STDERR_LINES, BootstrapError, BootstrapTimeoutError, UnfitError, UnreachableError
from bootstrap.facts import FACTS_TIMEOUT_S, GPU_FACTS_TIMEOUT_S, Facts, FactsError, facts_script, parse_facts
from bootstrap.model import DEFAULT_ROOT, Again, Command, Paths, Reboot, Run, Setup, Skip, Unfit, Upload, check_place
from bootstrap.mounts.model import Mount
from bootstrap.mounts.step import unmount
from bootstrap.steps import STEPS, Decision, PlannedStep, Step, needs_new_facts, plan, stop_timeout_s
from bootstrap.templates import fill

COLLECT_TIMEOUT_S = 30.0
LOOK_TIMEOUT_S = 10.0
BOOT_ID_TIMEOUT_S = 10.0
REBOOT_TIMEOUT_S = 30.0
LOOK_S = 1.0  # between checks whether a machine has rebooted

MAX_PASSES = 8  # each of the first boot's end, a driver, its reboot and a mount changes what later steps find
MAX_REBOOTS = 3


class StepState(StrEnum):
    """How far a step is."""

    BEGUN = "begun"
    DONE = "done"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What `on_step` is called with."""

    node: str
    step: str
    state: StepState
    detail: str = ""
    """Why the step was skipped, or what it did."""
    took_s: float = 0.0
    """0 at the beginning."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a bootstrap did."""

    node: str
    steps: tuple[StepEvent, ...]
    facts: Facts
    """As of the last pass."""
    connected_s: float
    """Seconds until the first connection."""
    took_s: float

    @property
    def changed(self) -> bool:
        """True if anything was left to do."""
        return any(step.state is StepState.DONE for step in self.steps)


class StopOutcome(StrEnum):
    """How an agent ended: after SIGTERM, by SIGKILL after the grace, or no agent ran."""

    STOPPED = "stopped"
    KILLED = "killed"
    ABSENT = "absent"


def new_nonce() -> str:
    """Return a unique name."""
    return secrets.token_hex(8)


def bootstrap(
    ssh: SshHost,
    setup: Setup,
    *,
    clock: Clock,
    deadline_s: float,
    on_step: Callable[[StepEvent], None] = lambda _: None,
    nonce: Callable[[], str] = new_nonce,
    steps: Sequence[tuple[str, Step]] = STEPS,
) -> Report:
    """Make the machine ready and start its agent, within `deadline_s` seconds from now, its sshd's start included.

    Steps with nothing to do are skipped, so it may be called again after any failure. When a step needs new
    facts, after a reboot for instance, they are gathered and the steps planned again. An exception of `on_step` ends it
    before the next command. Raises BootstrapError; ValueError if a key of `ssh` cannot be read.
    """
    began = clock()
    deadline = began + deadline_s
    connected_s = 0.0
    events: list[StepEvent] = []
    reboots = 0
    for number in range(MAX_PASSES):
        with connected(ssh, setup.node, clock, deadline) as shell:
            connected_s = connected_s or clock() - began
            if number == 0:
                shell.check_login(nonce())
            facts = _gather(shell, setup)
            planned, again = _until_new_facts(plan(facts, setup, steps))
            _refuse_unfit(planned, setup)
            reboots += isinstance(again, Reboot)
            if again and (number == MAX_PASSES - 1 or reboots > MAX_REBOOTS):
                break
            events.extend(_carry_out(shell, step, setup.node, clock, on_step, nonce) for step in planned)
        if again is None:
            return Report(setup.node, tuple(events), facts, connected_s, clock() - began)
        if isinstance(again, Reboot):
            _wait_for_boot(ssh, setup.node, again, facts.boot_id, clock, deadline)
    raise BootstrapError(
        f"not ready after {number} passes; it still has to {again}",
        node=setup.node,
        step=planned[-1].name,
    )


def dry_run(ssh: SshHost, setup: Setup, *, clock: Clock, deadline_s: float) -> tuple[PlannedStep, ...]:
    """Return what `bootstrap` would do now; changes nothing. `steps.explain` formats it. Raises as `bootstrap` does."""
    with connected(ssh, setup.node, clock, clock() + deadline_s) as shell:
        return plan(_gather(shell, setup), setup)


def stop_agent(
    ssh: SshHost,
    node: str,
    *,
    root: str = DEFAULT_ROOT,
    mounts: Sequence[Mount] = (),
    grace_s: float,
    clock: Clock,
    deadline_s: float,
) -> StopOutcome:
    """SIGTERM the node's agent, and SIGKILL it and all that descends from it after `grace_s`. Then unmount `mounts`,
    which only a machine of our own has. Raises BootstrapError.
    """
    check_place(node, root)
    command = Run("stop the agent", scripts.stop_agent(Paths(root, node), grace_s), stop_timeout_s(grace_s))
    with connected(ssh, node, clock, clock() + deadline_s) as shell:
        shell.step = "stop"
        stdout = shell.run(command).stdout
        if mounts:
            shell.run(unmount(mounts))
    outcomes = [line for line in stdout.splitlines() if line.startswith(scripts.STOP_PREFIX)]
    if not outcomes:
        raise BootstrapError(
            f"no outcome in the answer {stdout[-200:]!r}", node=node, step="stop", command=str(command)
        )
    return StopOutcome(outcomes[-1].removeprefix(scripts.STOP_PREFIX))


def clean(
    ssh: SshHost,
    node: str,
    *,
    root: str = DEFAULT_ROOT,
    cache: str = "",
    mounts: Sequence[Mount] = (),
    whole: bool,
    clock: Clock,
    deadline_s: float,
) -> None:
    """Remove all that the node's job left on its machine; `whole`: the machine is our own, and root removes what is
    outside `root`. It may be called again after any failure. Raises BootstrapError where something is left.
    """
    check_place(node, root)
    paths = Paths(root, node)
    with connected(ssh, node, clock, clock() + deadline_s) as shell:
        shell.step = "clean"
        shell.run(end(paths))
        if whole:
            shell.run(wipe(paths, cache or f"{root}/environments", mounts))


def collect(
    ssh: SshHost,
    node: str,
    *,
    root: str = DEFAULT_ROOT,
    clock: Clock,
    deadline_s: float,
    lines: int = STDERR_LINES,
) -> str:
    """Return the last lines of the agent's log, and of its launcher's; "" where there are none. Raises
    BootstrapError."""
    check_place(node, root)
    command = Run("read the agent's log", scripts.collect(Paths(root, node), lines), COLLECT_TIMEOUT_S)
    with connected(ssh, node, clock, clock() + deadline_s) as shell:
        shell.step = "collect"
        return shell.run(command).stdout


def look(ssh: SshHost, node: str, *, root: str = DEFAULT_ROOT, clock: Clock, deadline_s: float) -> tuple[bool, float]:
    """Return whether the node's agent runs, and how many seconds ago its workers wrote anything, by the node's clock.
    Changes nothing. Raises BootstrapError."""
    check_place(node, root)
    command = Run("look whether its steps advance", scripts.advance(Paths(root, node)), LOOK_TIMEOUT_S)
    with connected(ssh, node, clock, clock() + deadline_s) as shell:
        shell.step = "look"
        stdout = shell.run(command).stdout
    for line in stdout.splitlines():
        state, _, age_s = line.removeprefix(scripts.ADVANCE_PREFIX).partition(" ")
        if line.startswith(scripts.ADVANCE_PREFIX) and re.fullmatch(r"-?[0-9]{1,15}", age_s):
            return state == "running", float(age_s)
    raise BootstrapError(f"no answer in {stdout[-200:]!r}", node=node, step="look", command=str(command))


def _gather(shell: Shell, setup: Setup) -> Facts:
    shell.step = "facts"
    limit_s = FACTS_TIMEOUT_S + (GPU_FACTS_TIMEOUT_S if setup.host.gpus else 0.0)
    stdout = shell.run(Run("gather facts", facts_script(setup), limit_s)).stdout
    try:
        return parse_facts(stdout)
    except FactsError as error:
        raise BootstrapError(str(error), node=setup.node, step="facts", command="gather facts") from error


def _until_new_facts(planned: tuple[PlannedStep, ...]) -> tuple[tuple[PlannedStep, ...], Reboot | Again | None]:
    """Return the steps that these facts are valid for, and what needs new ones: the last command of the last step."""
    for position, step in enumerate(planned):
        if needs_new_facts(step.decision):
            assert isinstance(step.decision, tuple)
            last = step.decision[-1]
            assert isinstance(last, Reboot | Again), "nothing follows it in its step"
            return planned[: position + 1], last
    return planned, None


def _wait_for_boot(ssh: SshHost, node: str, reboot: Reboot, before: str, clock: Clock, deadline: float) -> None:
    limit = min(deadline, clock() + reboot.timeout_s)
    look = Run("read the boot's id", "cat /proc/sys/kernel/random/boot_id", BOOT_ID_TIMEOUT_S)
    while clock() < limit:
        with suppress(UnreachableError, BootstrapTimeoutError), connected(ssh, node, clock, limit) as shell:
            shell.step = "reboot"
            if before not in shell.run(look).stdout:
                return
        time.sleep(LOOK_S)
    raise BootstrapTimeoutError(
        f"the machine did not come back within {reboot.timeout_s:g} s", node=node, step="reboot", command=str(reboot)
    )


def _refuse_unfit(planned: tuple[PlannedStep, ...], setup: Setup) -> None:
    for step in planned:
        if isinstance(step.decision, Unfit):
            reason, of_job = step.decision.reason, step.decision.of_job
            raise UnfitError(reason, node=setup.node, step=step.name, tried=of_job)


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
    for are_uploads, group in groupby(decision, lambda command: isinstance(command, Upload)):
        if are_uploads:
            shell.upload([command for command in group if isinstance(command, Upload)], nonce())
        else:
            for command in group:
                _do(shell, command)
    return StepState.DONE, "; ".join(str(command) for command in decision)


def _do(shell: Shell, command: Command) -> None:
    match command:
        case Run():
            shell.run(command)
        case Reboot():
            with suppress(UnreachableError):  # the machine may go down before it answers
                shell.run(Run(str(command), fill("shell/reboot.sh"), REBOOT_TIMEOUT_S, as_root=True))
        case Upload() | Again():
            pass  # uploads go together with their neighbours; the caller gathers facts
