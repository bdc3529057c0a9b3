"""Hygiene: the first boot has ended, nothing updates packages, the clock is right, the dead-man switch is armed."""

from __future__ import annotations

from bootstrap.decision import Decision, not_ours, ours
from bootstrap.errors import STDERR_LINES
from bootstrap.facts import Facts
from bootstrap.model import Again, Command, Run, Setup, Skip, Unfit
from bootstrap.system.facts import HEARD_FILE, SWITCH_TIMER
from bootstrap.templates import fill

CLOUD_INIT_WAIT_S = 300
APT_WAIT_S = 300
CLOCK_WAIT_S = 60
SYSTEMD_TIMEOUT_S = 90.0
GRACE_S = 30.0  # beyond what a script waits, for its error


def hygiene(facts: Facts, setup: Setup) -> Decision:
    """First boot over, updates off, kernel held, clock right, and the dead-man switch armed if the machine has one."""
    system = facts.system
    if not ours(facts, setup):
        return not_ours(facts, setup)
    if system.cloud_init == "running":
        wait = fill("system/wait_for_cloud_init.sh", limit_s=CLOUD_INIT_WAIT_S, lines=STDERR_LINES)
        # cloud-init may still do what the rest of this step would do.
        return (Run("wait for cloud-init", wait, CLOUD_INIT_WAIT_S + GRACE_S), Again("the first boot has ended"))
    commands: list[Command] = []
    if system.updaters:
        stop = fill("system/stop_updates.sh", units=system.updaters)
        commands.append(Run(f"stop {', '.join(system.updaters)}", stop, SYSTEMD_TIMEOUT_S, as_root=True))
    if system.locks:
        wait = fill("system/wait_for_apt.sh", limit_s=APT_WAIT_S)
        commands.append(Run("wait for apt and dpkg", wait, APT_WAIT_S + GRACE_S))
    if system.unheld:
        hold = fill("system/hold.sh", packages=system.unheld, limit_s=APT_WAIT_S)
        commands.append(Run(f"hold {', '.join(system.unheld)}", hold, APT_WAIT_S + GRACE_S, as_root=True))
    if system.clock == "waiting":
        wait = fill("system/wait_for_clock.sh", limit_s=CLOCK_WAIT_S)
        commands.append(Run("wait for the clock", wait, CLOCK_WAIT_S + GRACE_S))
    if not system.lingers:
        linger = fill("system/linger.sh", user=facts.user)
        commands.append(Run("let shared memory outlive SSH sessions", linger, SYSTEMD_TIMEOUT_S, as_root=True))
    if setup.dead_man and not system.dead_man:
        if not system.systemd:
            return Unfit("the dead-man switch needs systemd: use an image that has it, or set `dead_man_s = 0`")
        file = f"{facts.home}/{HEARD_FILE}"
        arm = fill("system/arm_dead_man.sh", timer=SWITCH_TIMER, file=file, user=facts.user)
        commands.append(Run("arm the dead-man switch", arm, SYSTEMD_TIMEOUT_S, as_root=True))
    return tuple(commands) or Skip("the first boot is over, nothing updates itself, and the kernel is held")
