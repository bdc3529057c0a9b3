"""The scripts of the hygiene step: waiting for the first boot and for apt, and what must not happen meanwhile."""

from __future__ import annotations

import shlex

from bootstrap.errors import STDERR_LINES
from bootstrap.system.facts import CLOCK_FUNCTION, CLOUD_INIT_FUNCTION, HEARD_FILE, LOCKS_FUNCTION, SWITCH_TIMER
from bootstrap.templates import fill

_WAIT_FOR_CLOUD_INIT = (
    CLOUD_INIT_FUNCTION
    + r"""
left=@limit_s@
while [ "$(cloud_init)" = running ]; do
    if [ "$left" -le 0 ]; then
        tail -n @lines@ /var/log/cloud-init-output.log >&2 2>/dev/null
        stage=$(sed -n 's/^ *"stage": *\(.*[^,]\),*$/\1/p' /run/cloud-init/status.json 2>/dev/null)
        echo "cloud-init has not ended after @limit_s@ s; its stage is ${stage:-unknown}" >&2
        exit 1
    fi
    sleep 1
    left=$((left - 1))
done
"""
)

# Only timers are stopped: dpkg that is ended in the middle leaves broken packages. What already runs is waited for.
_STOP_UPDATES = r"""
set -eu
for unit in @units@; do
    case $unit in *.timer) systemctl stop "$unit" ;; esac
done
systemctl mask @units@
"""

_WAIT_FOR_APT = (
    LOCKS_FUNCTION
    + r"""
left=@limit_s@
while held=$(locks) && [ -n "$held" ]; do
    if [ "$left" -le 0 ]; then
        echo "apt or dpkg is still at work after @limit_s@ s: $held" >&2
        exit 1
    fi
    sleep 1
    left=$((left - 1))
done
"""
)

_HOLD = r"""
set -eu
apt-mark hold @packages@ >/dev/null
"""

_WAIT_FOR_CLOCK = (
    CLOCK_FUNCTION
    + r"""
left=@limit_s@
while [ "$(clock)" = waiting ]; do
    if [ "$left" -le 0 ]; then
        echo "the clock is not synchronized after @limit_s@ s: does the time service reach a server (UDP port 123)?" >&2
        exit 1
    fi
    sleep 1
    left=$((left - 1))
done
"""
)

_ARM_DEAD_MAN = r"""
set -eu
timer=@timer@ heard=@heard@ user=@user@
if [ ! -e "/etc/systemd/system/$timer" ]; then
    echo "its user data did not bring $timer; nobody would end this machine if its cluster forgot it" >&2
    exit 1
fi
if [ ! -e "$heard" ]; then
    : >"$heard"
    chown "$user:" "$heard"
fi
systemctl daemon-reload
systemctl enable --now "$timer"
systemctl is-active "$timer" >/dev/null || { echo "$timer does not run" >&2; exit 1; }
"""


def wait_for_cloud_init(limit_s: int) -> str:
    """Until the first boot has ended; on expiry its last words, and where it is."""
    return fill(_WAIT_FOR_CLOUD_INIT, limit_s=str(limit_s), lines=str(STDERR_LINES))


def stop_updates(units: tuple[str, ...]) -> str:
    """Nothing updates packages by itself any more. As root."""
    return fill(_STOP_UPDATES, units=shlex.join(units))


def wait_for_apt(limit_s: int) -> str:
    """Until nobody holds a lock of apt or dpkg; on expiry who does."""
    return fill(_WAIT_FOR_APT, limit_s=str(limit_s))


def hold(packages: tuple[str, ...], limit_s: int) -> str:
    """These packages stay as they are; apt is waited for. As root."""
    return wait_for_apt(limit_s) + fill(_HOLD, packages=shlex.join(packages))


def wait_for_clock(limit_s: int) -> str:
    """Until the time service has set the clock."""
    return fill(_WAIT_FOR_CLOCK, limit_s=str(limit_s))


def arm_dead_man(home: str, user: str) -> str:
    """The dead-man switch that user data brought is armed. As root."""
    return fill(
        _ARM_DEAD_MAN,
        timer=shlex.quote(SWITCH_TIMER),
        heard=shlex.quote(f"{home}/{HEARD_FILE}"),
        user=shlex.quote(user),
    )
