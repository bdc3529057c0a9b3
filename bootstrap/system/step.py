"""Nothing happens on the machine behind our back: its first boot has ended, and nobody updates packages under us."""

from __future__ import annotations

from bootstrap.decision import Decision, not_ours, ours
from bootstrap.facts import Facts
from bootstrap.model import Again, Command, Run, Setup, Skip, Unfit
from bootstrap.system import scripts as system_scripts

CLOUD_INIT_WAIT_S = 300
APT_WAIT_S = 300
CLOCK_WAIT_S = 60
SYSTEMD_TIMEOUT_S = 90.0
GRACE_S = 30.0  # beyond what a script waits, until it has said so


def hygiene(facts: Facts, setup: Setup) -> Decision:
    """First boot over, updates off, kernel held, clock right, and the dead-man switch armed where there is one."""
    system = facts.system
    if not ours(facts, setup):
        return not_ours(facts, setup)
    if system.cloud_init == "running":
        wait = system_scripts.wait_for_cloud_init(CLOUD_INIT_WAIT_S)
        # What it still has to do may be what the rest of this step would do.
        return (Run("wait for cloud-init", wait, CLOUD_INIT_WAIT_S + GRACE_S), Again("the first boot has ended"))
    commands: list[Command] = []
    if system.updaters:
        stop = system_scripts.stop_updates(system.updaters)
        commands.append(Run(f"stop {', '.join(system.updaters)}", stop, SYSTEMD_TIMEOUT_S, as_root=True))
    if system.locks:
        wait = system_scripts.wait_for_apt(APT_WAIT_S)
        commands.append(Run("wait for apt and dpkg", wait, APT_WAIT_S + GRACE_S))
    if system.unheld:
        hold = system_scripts.hold(system.unheld, APT_WAIT_S)
        commands.append(Run(f"hold {', '.join(system.unheld)}", hold, APT_WAIT_S + GRACE_S, as_root=True))
    if system.clock == "waiting":
        commands.append(Run("wait for the clock", system_scripts.wait_for_clock(CLOCK_WAIT_S), CLOCK_WAIT_S + GRACE_S))
    if setup.dead_man and not system.dead_man:
        if not system.systemd:
            return Unfit("the dead-man switch needs systemd: use an image that has it, or set `dead_man_s = 0`")
        arm = system_scripts.arm_dead_man(facts.home, facts.user)
        commands.append(Run("arm the dead-man switch", arm, SYSTEMD_TIMEOUT_S, as_root=True))
    return tuple(commands) or Skip("the first boot is over, nothing updates itself, and the kernel is held")
