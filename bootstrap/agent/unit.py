"""The agent as a systemd unit, with the options of systemd/spotsup-agent.service."""

from __future__ import annotations

from bootstrap.agent.facts import AGENT_FOLDER_VARIABLE, AGENT_KEY_VARIABLE
from bootstrap.model import Paths

UNIT_FOLDER = "/run/systemd/system"
"""Not /etc: after a reboot bootstrap starts the agent, from new facts."""

CONFINEMENT = """\
Slice=spotsup.slice

# Restarted after a signal. When it exits by itself, the job is done here, or the daemon decides what comes next.
# SIGKILL is how bootstrap ends an agent that does not leave.
Restart=on-abnormal
RestartSec=2
RestartPreventExitStatus=SIGKILL
# Only the agent gets SIGTERM: it leaves the round in order, checkpoint first. What then still runs in its group is
# killed, so nothing outlives it. SIGTERM to all (control-group) would end workers before their checkpoint.
KillMode=mixed
# It gives its launcher 30 s to leave, then reports to etcd.
TimeoutStopSec=90
# The launcher handles a worker that the kernel kills for memory; systemd would stop the whole unit.
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
# RDMA pins memory.
LimitMEMLOCK=infinity
"""


def unit_name(node: str) -> str:
    """Return the unit of a node's agent."""
    return f"spotsup-agent-{node}.service"


def agent_unit(paths: Paths, user: str, key: str) -> str:
    """Return the unit that runs `paths.agent_start` as `user`, marked as ours from its first moment."""
    return f"""\
[Unit]
Description=spotsup: the agent of node {paths.node}

[Service]
Type=exec
User={user}
Environment={_quoted(f"{AGENT_FOLDER_VARIABLE}={paths.own}")} {AGENT_KEY_VARIABLE}={key}
ExecStart=/bin/sh {_quoted(paths.agent_start).replace("$", "$$")}
{CONFINEMENT}"""


def _quoted(text: str) -> str:
    """Return one word of a unit: systemd.syntax(7), quoting, and systemd.unit(5), specifiers."""
    for sign, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(sign, escaped)
    return f'"{text}"'
