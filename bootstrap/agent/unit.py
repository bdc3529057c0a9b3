"""The agent as a systemd unit. systemd/spotsup-agent.service, for images that bring the trainer, says the same."""

from __future__ import annotations

from bootstrap.model import Paths
from bootstrap.node.facts import AGENT_FOLDER_VARIABLE, AGENT_KEY_VARIABLE

UNIT_FOLDER = "/run/systemd/system"
"""Not /etc: after a reboot it is bootstrap that starts an agent, from new facts."""

CONFINEMENT = """\
Slice=spotsup.slice

# Ended by a signal: again. Ended by itself: the job is done here, or the daemon decides what comes next. SIGKILL is how
# bootstrap ends an agent that does not leave.
Restart=on-abnormal
RestartSec=2
RestartPreventExitStatus=SIGKILL
# The agent alone is told to stop: it has the round left in order, checkpoint first. Whatever of its group then still
# runs is killed, so nothing outlives it. SIGTERM to all (control-group) would end workers before their checkpoint.
KillMode=mixed
# It gives its launcher 30 s to leave, then tells etcd.
TimeoutStopSec=90
# A worker that the kernel kills for memory is for the launcher to judge; systemd would stop the whole unit.
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
# RDMA pins memory.
LimitMEMLOCK=infinity
"""


def unit_name(node: str) -> str:
    """The unit of a node's agent."""
    return f"spotsup-agent-{node}.service"


def agent_unit(paths: Paths, user: str, key: str) -> str:
    """The unit that becomes the agent by `paths.agent_start`, as `user`; from its first moment it says whose it is."""
    return f"""\
[Unit]
Description=spotsup: the agent of node {paths.node}

[Service]
Type=exec
User={user}
Environment={_word(f"{AGENT_FOLDER_VARIABLE}={paths.own}")} {AGENT_KEY_VARIABLE}={key}
ExecStart=/bin/sh {_word(paths.agent_start).replace("$", "$$")}
{CONFINEMENT}"""


def _word(text: str) -> str:
    """One word of a unit: systemd.syntax(7), quoting, and systemd.unit(5), specifiers."""
    for sign, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(sign, escaped)
    return f'"{text}"'
