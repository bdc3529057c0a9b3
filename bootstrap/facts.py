"""What is so on a machine: small POSIX sh scripts, one per section, print it as JSON in one round trip.

They change nothing. A section that cannot be read fails the whole: half of the facts would make wrong steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bootstrap.container.facts import Containers, containers_facts, containers_script
from bootstrap.environment.facts import Environments, environments_facts, environments_script
from bootstrap.gpu.facts import Gpu, GpuFacts, gpu_facts, gpu_script
from bootstrap.log_agent.facts import LogAgentFact, log_agent_facts, log_agent_script
from bootstrap.model import Setup
from bootstrap.monitoring.facts import Monitoring, monitoring_facts, monitoring_script
from bootstrap.mounts.facts import MountFact, Mounts, mounts_facts, mounts_script
from bootstrap.network.facts import NetworkFacts, network_facts, network_script
from bootstrap.node.facts import AGENT_FOLDER_VARIABLE, AGENT_KEY_VARIABLE, AgentFact, node_facts, node_script
from bootstrap.system.facts import System, system_facts, system_script

__all__ = [
    "AGENT_FOLDER_VARIABLE",
    "AGENT_KEY_VARIABLE",
    "FACTS_TIMEOUT_S",
    "AgentFact",
    "Containers",
    "Environments",
    "Facts",
    "FactsError",
    "Gpu",
    "GpuFacts",
    "LogAgentFact",
    "Monitoring",
    "MountFact",
    "Mounts",
    "NetworkFacts",
    "System",
    "facts_script",
    "parse_facts",
]

# A login shell may print anything before us (sshd has bash read .bashrc), so our lines say that they are ours.
PREFIX = "spotsup-facts "

FACTS_TIMEOUT_S = 120.0  # a cold network disk takes its time, and what hangs is given seconds each


class FactsError(ValueError):
    """The machine's answer is not what the script prints."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A machine as it is. `codes`, `trainers`, `prepared`: names of what is complete below the root.

    `python`: the interpreter's absolute path, "" where there is none, or where it does not run.
    `free_mb`: on the root's file system.
    """

    user: str
    home: str
    boot_id: str
    free_mb: int
    python: str = ""
    python_version: tuple[int, ...] = ()
    torch: bool = False
    codes: frozenset[str] = frozenset()
    trainers: frozenset[str] = frozenset()
    prepared: frozenset[str] = frozenset()
    agent: AgentFact | None = None
    system: System = field(default_factory=System)
    mounts: Mounts = field(default_factory=Mounts)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    network: NetworkFacts = field(default_factory=NetworkFacts)
    monitoring: Monitoring = field(default_factory=Monitoring)
    log_agent: LogAgentFact = field(default_factory=LogAgentFact)
    environments: Environments = field(default_factory=Environments)
    containers: Containers = field(default_factory=Containers)


@dataclass(frozen=True, slots=True)
class Section:
    """Some facts: the script that prints them as one JSON object on one line, and the fields of Facts that it gives.

    `fields` raises ValueError, KeyError or TypeError for what it does not understand.
    """

    name: str
    script: Callable[[Setup], str]
    fields: Callable[[Any], dict[str, Any]]


SECTIONS = (
    Section("node", node_script, node_facts),
    Section("system", system_script, system_facts),
    Section("mounts", mounts_script, mounts_facts),
    Section("gpu", gpu_script, gpu_facts),
    Section("network", network_script, network_facts),
    Section("monitoring", monitoring_script, monitoring_facts),
    Section("log_agent", log_agent_script, log_agent_facts),
    Section("environments", environments_script, environments_facts),
    Section("containers", containers_script, containers_facts),
)


def facts_script(setup: Setup) -> str:
    """The script, for sh. Each section has a shell of its own: no variable, no folder of one reaches another."""
    parts = (f"(\nprintf '\\n%s' '{PREFIX}{section.name} '\n{section.script(setup)})\n" for section in SECTIONS)
    return "".join(parts)


def parse_facts(stdout: str) -> Facts:
    """The facts in what the script printed. Raises FactsError."""
    told: dict[str, str] = {}
    for line in stdout.splitlines():
        if line.startswith(PREFIX):
            name, _, text = line.removeprefix(PREFIX).partition(" ")
            told[name] = text
    if not told:
        raise FactsError(f"no facts in the machine's answer, which begins {stdout[:200]!r}")
    fields: dict[str, Any] = {}
    for section in SECTIONS:
        text = told.get(section.name, "")
        try:
            fields |= section.fields(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise FactsError(
                f"the machine's facts about its {section.name} cannot be read ({error}): {text[:300]!r}"
            ) from error
    return Facts(**fields)
