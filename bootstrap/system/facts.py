"""The machine itself: what runs on it, and whether it was made for this node alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup
from bootstrap.templates import fill

BORN_FILE = "/etc/spotsup/born"
"""Written as root by our own user data at the first boot, with the node's id: provisioners/userdata.py."""

HEARD_FILE = ".spotsup-heard"
"""In the user's home: what the dead-man switch looks at, and the agent touches."""

SWITCH_TIMER = "spotsup-dead-man.timer"

UPDATE_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "unattended-upgrades.service",
)


@dataclass(frozen=True, slots=True)
class System:
    """What runs here. Only `born` to `vendor` are known where the machine was not made for this node.

    `born`: the node that this machine was made for, "" for none. `os`, `version`: ID and VERSION_ID of os-release.
    `systemd`: the state of the systemd that is PID 1 (running, degraded, starting, ...), "" where there is none.
    `vendor`: by DMI, such as "Amazon EC2". `root`: whether we are root, or become it without a password.
    `cloud_init`: done, running, disabled or absent. `locks`: who holds locks of apt or dpkg, in words.
    `updaters`: units that update packages by themselves and are not masked. `unheld`: kernels, and what names the
    newest of them, that are not held: all others that bring a kernel depend on these. `clock`: synchronized, waiting
    (a time service runs), none (no such service), or unknown. `dead_man`: whether the dead-man switch is armed.
    """

    born: str = ""
    os: str = ""
    version: str = ""
    kernel: str = ""
    systemd: str = ""
    vendor: str = ""
    root: bool = False
    cloud_init: str = "absent"
    locks: tuple[str, ...] = ()
    updaters: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()
    clock: str = "unknown"
    dead_man: bool = False


# Locks of apt are POSIX ones, and /proc/locks tells who holds them. By inode alone: the device numbers there are
# not those of stat on btrfs and overlays.
LOCKS_FUNCTION = r"""
locks() {
    for file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock; do
        inode=$(stat -c %i "$file" 2>/dev/null) || continue
        pid=$(awk -v inode="$inode" '$2 != "->" && $4 == "WRITE" && split($6, at, ":") && at[3] == inode { print $5 }' \
            /proc/locks | head -n 1)
        [ -z "$pid" ] || echo "$(cat "/proc/$pid/comm" 2>/dev/null || echo process) ($pid) holds $file"
    done
}
"""

# cloud-init removes the file at the beginning of each boot and writes it when its last stage has ended.
CLOUD_INIT_FUNCTION = r"""
cloud_init() {
    if [ -e /run/cloud-init/result.json ]; then
        echo done
    elif ! command -v cloud-init >/dev/null 2>&1; then
        echo absent
    elif [ -e /etc/cloud/cloud-init.disabled ] || [ -e /run/cloud-init/disabled ]; then
        echo disabled
    else
        echo running
    fi
}
"""

# NTPSynchronized is the kernel's own word (adjtimex), whichever service sets the clock.
CLOCK_FUNCTION = r"""
clock() {
    said=$(timeout -k 1 5 timedatectl show -p NTPSynchronized --value 2>/dev/null) || said=
    case $said in
    yes) echo synchronized ;;
    no)
        for service in chrony chronyd systemd-timesyncd ntp ntpsec ntpd openntpd; do
            if systemctl -q is-active "$service"; then
                echo waiting
                return
            fi
        done
        echo none
        ;;
    *) echo unknown ;;
    esac
}
"""

# Where the machine is not ours, nothing is asked for that could leave a trace: sudo writes to its log.
_SCRIPT = (
    r"""
text() {
    case $1 in
    *[!A-Za-z0-9\ ._:/+-]*) printf '"%s"' "$(printf %s "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')" ;;
    *) printf '"%s"' "$1" ;;
    esac
}
texts() {
    between=
    while IFS= read -r line; do
        printf '%s' "$between"
        text "$line"
        between=,
    done
}
"""
    + LOCKS_FUNCTION
    + CLOUD_INIT_FUNCTION
    + CLOCK_FUNCTION
    + r"""
updaters() {
    for unit in @units@; do
        if [ -e "/usr/lib/systemd/system/$unit" ] || [ -e "/lib/systemd/system/$unit" ]; then
            [ "$(readlink "/etc/systemd/system/$unit")" = /dev/null ] || echo "$unit"
        fi
    done
}
unheld() {
    command -v dpkg-query >/dev/null 2>&1 || return 0
    dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package}\n' 'linux-image-*' 2>/dev/null |
        sed -n 's/^install installed //p'
}
cd /
system=
if [ -d /run/systemd/system ]; then
    system=$(timeout -k 1 5 systemctl is-system-running 2>/dev/null) || :
    system=${system:-unknown}
fi
born= vendor=
{ read -r born <@born@; read -r vendor </sys/class/dmi/id/sys_vendor; } 2>/dev/null || :
printf '{"born":'
text "$born"
(
    [ ! -r /etc/os-release ] || . /etc/os-release
    printf ',"os":'
    text "${ID-}"
    printf ',"version":'
    text "${VERSION_ID-}"
)
printf ',"kernel":'
text "$(uname -r)"
printf ',"systemd":'
text "$system"
printf ',"vendor":'
text "$vendor"
if [ "$born" = @node@ ]; then
    root=false dead_man=false clock=unknown updaters=
    if [ "$(id -u)" = 0 ] || timeout -k 1 10 sudo -n true >/dev/null 2>&1; then
        root=true
    fi
    if [ -n "$system" ]; then
        clock=$(clock)
        updaters=$(updaters | texts)
        if [ -e "$HOME/@heard@" ] && systemctl -q is-active @timer@; then
            dead_man=true
        fi
    fi
    printf ',"root":%s,"cloud_init":"%s","locks":[%s],"updaters":[%s],"unheld":[%s],"clock":"%s","dead_man":%s' \
        "$root" "$(cloud_init)" "$(locks | texts)" "$updaters" "$(unheld | texts)" "$clock" "$dead_man"
fi
printf '}\n'
"""
)


def system_script(setup: Setup) -> str:
    """Prints one JSON object."""
    values = {
        "born": shlex.quote(BORN_FILE),
        "node": shlex.quote(setup.node),
        "units": " ".join(UPDATE_UNITS),
        "heard": HEARD_FILE,
        "timer": SWITCH_TIMER,
    }
    return fill(_SCRIPT, **values)


def system_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises ValueError, KeyError, TypeError."""
    lists = {name: tuple(map(str, value.get(name, ()))) for name in ("locks", "updaters", "unheld")}
    return {"system": System(**(value | lists))}
