"""Whether the cloud's own agent ships the logs that we want, as we configured it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

LOG_AGENT_FILE = "/etc/spotsup/log-agent"
"""For which configuration our own step has set it up, written as root."""

UNITS = {"cloudwatch": "amazon-cloudwatch-agent", "ops": "google-cloud-ops-agent"}


@dataclass(frozen=True, slots=True)
class LogAgentFact:
    """`active`: whether its unit runs. `key`: as LOG_AGENT_FILE says."""

    active: bool = False
    key: str = ""


_SCRIPT = r"""
active=false key=
if [ "$(head -n 1 @born@ 2>/dev/null)" = @node@ ] && [ -d /run/systemd/system ]; then
    if timeout -k 1 5 systemctl -q is-active @unit@ 2>/dev/null; then active=true; fi
    key=$(head -n 1 @file@ 2>/dev/null)
fi
printf '{"active":%s,"key":"%s"}\n' "$active" "$(printf %s "$key" | tr -dc 0-9a-f)"
"""


def log_agent_script(setup: Setup) -> str:
    """Prints one JSON object; an empty one where no such agent is wanted."""
    if setup.log_agent is None:
        return "echo '{}'\n"
    values = {
        "born": shlex.quote(BORN_FILE),
        "node": shlex.quote(setup.node),
        "unit": UNITS[setup.log_agent.kind],
        "file": LOG_AGENT_FILE,
    }
    return fill(_SCRIPT, **values)


def log_agent_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises TypeError."""
    return {"log_agent": LogAgentFact(**value)}
