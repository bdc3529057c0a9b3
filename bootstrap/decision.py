"""The type of a step, a pure function of facts and setup; and what several steps share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bootstrap.facts import Facts
from bootstrap.model import Again, Command, Paths, Reboot, Run, Setup, Skip, Unfit, expand
from bootstrap.network.env import network_env
from bootstrap.variables import quoted

CHECK_TIMEOUT_S = 60.0

Decision: TypeAlias = tuple[Command, ...] | Skip | Unfit
Step: TypeAlias = Callable[[Facts, Setup], Decision]


def ours(facts: Facts, setup: Setup) -> bool:
    """True if this machine was made for this node alone, so that its system may be changed for it."""
    return facts.system.born == setup.machine_name


def not_ours(facts: Facts, setup: Setup) -> Skip:
    """Return why a machine is left as it is."""
    made = f"was made for {facts.system.born}, not" if facts.system.born else "was not made"
    return Skip(f"this machine {made} for {setup.node}: its system is left as it is")


def changes_system(decision: Decision) -> bool:
    """True if a command in it changes the machine itself, not only what is below the root folder."""
    return isinstance(decision, tuple) and any(
        isinstance(command, Reboot) or (isinstance(command, Run) and command.as_root) for command in decision
    )


def allowed(decision: Decision, facts: Facts, setup: Setup) -> Decision:
    """Return the decision, or why it is not carried out: on a machine that is not ours, only our own folder is
    changed."""
    if not changes_system(decision):
        return decision
    if not ours(facts, setup):
        return not_ours(facts, setup)
    if not facts.system.root:
        return Unfit(
            f"{facts.user} cannot become root by `sudo -n`; the user data gives ssh_user that right: check `ssh_user`"
        )
    if facts.agent and needs_reboot(decision):
        return Skip(f"it needs a reboot, and an agent runs here, pid {facts.agent.pid}: not now")
    return decision


def needs_reboot(decision: Decision) -> bool:
    """True if it reboots the machine."""
    return isinstance(decision, tuple) and any(isinstance(command, Reboot) for command in decision)


def needs_new_facts(decision: Decision) -> bool:
    """True if the steps after it have to be planned from new facts."""
    return isinstance(decision, tuple) and any(isinstance(command, Reboot | Again) for command in decision)


def paths_on(facts: Facts, setup: Setup) -> Paths:
    """Return the absolute paths on this machine."""
    return Paths(expand(setup.root, facts.home), setup.node)


def env_script(facts: Facts, setup: Setup) -> bytes:
    """Exports for sh: the variables of the network's libraries, overridden by `Setup.env`."""
    env = {**network_env(facts.network, setup.host), **setup.env}
    return "".join(f"export {name}={quoted(name, value)}\n" for name, value in sorted(env.items())).encode()
