"""The agent that runs for this node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.templates import fill

# In the environment of the agent and of all that descends from it. A pid is used again by other processes, so these say
# that a pid is ours, and find what an agent left behind. The scripts have the same names.
AGENT_FOLDER_VARIABLE = "SPOTSUP_AGENT_FOLDER"
AGENT_KEY_VARIABLE = "SPOTSUP_AGENT_KEY"


@dataclass(frozen=True, slots=True)
class AgentFact:
    """An agent that runs for this node."""

    pid: int
    key: str
    """Which configuration it was started with: `agent_key`."""


def agent_script(setup: Setup) -> str:
    """Return a script that prints one JSON object, or null where no agent runs."""
    return fill("agent/facts.sh", own=shell_path(Paths(setup.root, setup.node).own))


def agent_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    return {"agent": AgentFact(int(value["pid"]), str(value["key"])) if value else None}
