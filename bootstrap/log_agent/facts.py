"""Whether the cloud's own agent ships the logs that we want, as we configured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

LOG_AGENT_FILE = "/etc/spotsup/log-agent"
"""Says for which configuration our step has set it up. Written as root."""

UNITS = {"cloudwatch": "amazon-cloudwatch-agent", "ops": "google-cloud-ops-agent"}


@dataclass(frozen=True, slots=True)
class LogAgentFact:
    """The state of the cloud's own agent for logs."""

    active: bool = False
    """Whether its unit runs."""
    key: str = ""
    """The content of LOG_AGENT_FILE."""


def log_agent_script(setup: Setup) -> str:
    """Return a script that prints one JSON object; an empty one where no such agent is wanted."""
    if setup.log_agent is None:
        return "echo '{}'\n"
    unit = UNITS[setup.log_agent.kind]
    return fill("log_agent/facts.sh", born=BORN_FILE, node=setup.machine_name, unit=unit, file=LOG_AGENT_FILE)


def log_agent_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises TypeError."""
    return {"log_agent": LogAgentFact(**value)}
