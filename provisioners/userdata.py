"""Cloud-init user data for a machine's first boot, the same for all clouds.

The host key makes the first SSH connection verifiable, the user gives the daemon access, the dead-man switch ends a
machine that has lost its cluster. Read access to a machine's user data includes its host key: docs/clouds.md.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.base import HostKey

BORN_FILE = "/etc/spotsup/born"
"""The node's id, written as root at the first boot. It proves that this machine was created for that node alone.
Bootstrap changes the system of no other machine."""

HEARD_FILE = ".spotsup-heard"
"""In the user's home: the node's agent touches it on every contact with its cluster and when its round progresses."""

SWITCH_PATH = "/usr/local/sbin/spotsup-dead-man"
_STATE_PATH = "/run/spotsup-dead-man"
_CHECK_S = 60


@dataclass(frozen=True, slots=True)
class DeadMan:
    """After `after_s` without contact, `end` (shell) ends the machine and its billing."""

    after_s: float
    end: str = "systemctl poweroff"


def user_data(
    node: str,
    user: str,
    authorized_keys: Sequence[str],
    host_key: HostKey,
    dead_man: DeadMan | None = None,
    *,
    before: str = "",
    after: str = "",
) -> str:
    """Return a cloud-config document, as JSON: JSON is YAML, and needs no quoting by hand. `before`: shell that is run
    before the host key is installed, at each boot; `after`: once all is done.
    """
    kind = _kind(host_key.public)
    config: dict[str, object] = {
        # The image may have this user: cloud-init then leaves it unchanged and only adds the key.
        "users": [
            {
                "name": user,
                "shell": "/bin/bash",
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "lock_passwd": True,
                "ssh_authorized_keys": [key.strip() for key in authorized_keys],
            }
        ],
        "disable_root": user != "root",
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {
            f"{kind}_private": host_key.private_openssh.rstrip("\n") + "\n",
            f"{kind}_public": host_key.public.strip(),
        },
        "package_update": False,
        "package_upgrade": False,
    }
    files = [{"path": BORN_FILE, "permissions": "0644", "content": f"{node}\n"}]
    config["write_files"] = files
    last: list[object] = [["sh", "-c", after]] if after else []
    if dead_man is not None:
        files += _switch_files(user, dead_man)
        last += [
            ["su", "-", user, "-c", f"touch ~/{HEARD_FILE}"],
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", "spotsup-dead-man.timer"],
        ]
    if before:
        config["bootcmd"] = [["sh", "-c", before]]
    if last:
        config["runcmd"] = last
    return "#cloud-config\n" + json.dumps(config, indent=1) + "\n"


def switch_script(heard: str, state: str, dead_man: DeadMan) -> str:
    """Return the dead-man switch, which a timer runs. `heard`, `state`: the paths of the two files, quoted for the
    shell.

    It measures silence in uptime, not wall-clock time: setting the clock must not end a machine.
    """
    return f"""#!/bin/sh
# Ends this machine, and its billing, once {dead_man.after_s:.0f} s have passed without contact with its cluster.
set -eu
heard={heard}
state={state}
read -r up _ </proc/uptime
up=${{up%.*}}
now=$(stat -c %y "$heard" 2>/dev/null || echo never)
since=
if [ -f "$state" ]; then
    {{ read -r since && read -r seen; }} <"$state"
fi
if [ -z "$since" ] || [ "$now" != "$seen" ]; then
    printf '%s\\n%s\\n' "$up" "$now" >"$state.new"
    mv "$state.new" "$state"
    exit 0
fi
[ $((up - since)) -ge {dead_man.after_s:.0f} ] || exit 0
echo "spotsup: no contact with the cluster for $((up - since)) s: ending this machine"
{dead_man.end}
"""


def _switch_files(user: str, dead_man: DeadMan) -> list[dict[str, str]]:
    home = f"$(getent passwd {shlex.quote(user)} | cut -d: -f6)"
    script = switch_script(f'"{home}/{HEARD_FILE}"', _STATE_PATH, dead_man)
    service = f"""[Unit]
Description=End this machine when it loses contact with its spotsup cluster

[Service]
Type=oneshot
ExecStart={SWITCH_PATH}
StandardOutput=journal+console
"""
    timer = f"""[Unit]
Description=Check that this machine is in contact with its spotsup cluster

[Timer]
OnBootSec={_CHECK_S}
OnUnitActiveSec={_CHECK_S}

[Install]
WantedBy=timers.target
"""
    unit = "/etc/systemd/system/spotsup-dead-man"
    return [
        {"path": SWITCH_PATH, "permissions": "0755", "content": script},
        {"path": f"{unit}.service", "permissions": "0644", "content": service},
        {"path": f"{unit}.timer", "permissions": "0644", "content": timer},
    ]


def _kind(public: str) -> str:
    """cloud-init's name of a key type: that of the key without ssh-."""
    return public.split(maxsplit=1)[0].removeprefix("ssh-")
