"""The state of a machine, as the steps see it: one POSIX sh script per section prints JSON, all in one round trip.

The scripts change nothing. A section that cannot be read fails the whole: half of the facts would make wrong steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bootstrap.agent.facts import AgentFact, agent_facts, agent_script
from bootstrap.container.facts import Containers, containers_facts, containers_script
from bootstrap.environment.facts import Environments, environments_facts, environments_script
from bootstrap.gpu.facts import SMI_TRIES_S, Gpu, GpuFacts, gpu_facts, gpu_script
from bootstrap.log_agent.facts import LogAgentFact, log_agent_facts, log_agent_script
from bootstrap.model import Setup
from bootstrap.mounts.facts import MountFact, Mounts, mounts_facts, mounts_script
from bootstrap.network.facts import NetworkFacts, network_facts, network_script
from bootstrap.node.facts import node_facts, node_script
from bootstrap.system.facts import System, system_facts, system_script

__all__ = [
    "FACTS_TIMEOUT_S",
    "GPU_FACTS_TIMEOUT_S",
    "AgentFact",
    "Containers",
    "Environments",
    "Facts",
    "FactsError",
    "Gpu",
    "GpuFacts",
    "LogAgentFact",
    "MountFact",
    "Mounts",
    "NetworkFacts",
    "System",
    "facts_script",
    "parse_facts",
]

# Marks our lines: a login shell may print anything before them (sshd has bash read .bashrc).
PREFIX = "spotsup-facts "

FACTS_TIMEOUT_S = 120.0  # a cold network disk is slow, and each thing that hangs costs seconds
# Besides, on a machine with GPUs: one try of nvidia-smi, persistence mode, and a second try.
GPU_FACTS_TIMEOUT_S = SMI_TRIES_S[0] + 2 * SMI_TRIES_S[1] + 10.0


class FactsError(ValueError):
    """The machine's answer is not what the scripts print."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of a machine."""

    user: str
    home: str
    boot_id: str
    free_mb: int
    """On the file system of the root folder."""
    python: str = ""
    """The interpreter's absolute path, "" where there is none, or where it does not run."""
    python_version: tuple[int, ...] = ()
    torch: bool = False
    torch_version: str = ""
    """"" where it does not say, or is not there."""
    codes: frozenset[str] = frozenset()
    """Names of what is unpacked below the root folder."""
    trainers: frozenset[str] = frozenset()
    """Names of what is unpacked below the root folder."""
    prepared: frozenset[str] = frozenset()
    """Markers of the `setup` lines that have succeeded."""
    agent: AgentFact | None = None
    system: System = field(default_factory=System)
    mounts: Mounts = field(default_factory=Mounts)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    network: NetworkFacts = field(default_factory=NetworkFacts)
    log_agent: LogAgentFact = field(default_factory=LogAgentFact)
    environments: Environments = field(default_factory=Environments)
    containers: Containers = field(default_factory=Containers)


@dataclass(frozen=True, slots=True)
class Section:
    """The facts of one topic."""

    name: str
    script: Callable[[Setup], str]
    """Prints them as one JSON value on one line."""
    fields: Callable[[Any], dict[str, Any]]
    """The fields of Facts in that value. Raises ValueError, KeyError or TypeError for what it cannot read."""


SECTIONS = (
    Section("node", node_script, node_facts),
    Section("agent", agent_script, agent_facts),
    Section("system", system_script, system_facts),
    Section("mounts", mounts_script, mounts_facts),
    Section("gpu", gpu_script, gpu_facts),
    Section("network", network_script, network_facts),
    Section("log_agent", log_agent_script, log_agent_facts),
    Section("environments", environments_script, environments_facts),
    Section("containers", containers_script, containers_facts),
)


def facts_script(setup: Setup) -> str:
    """Return all scripts as one. Each section runs in a subshell: no variable and no folder of one reaches another."""
    parts = (f"(\nprintf '\\n%s' '{PREFIX}{section.name} '\n{section.script(setup)})\n" for section in SECTIONS)
    return "".join(parts)


def parse_facts(stdout: str) -> Facts:
    """Return the facts in what the scripts printed. Raises FactsError."""
    texts: dict[str, str] = {}
    for line in stdout.splitlines():
        if line.startswith(PREFIX):
            name, _, text = line.removeprefix(PREFIX).partition(" ")
            texts[name] = text
    if not texts:
        raise FactsError(f"no facts in the machine's answer, which begins {stdout[:200]!r}")
    fields: dict[str, Any] = {}
    for section in SECTIONS:
        text = texts.get(section.name, "")
        try:
            fields |= section.fields(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise FactsError(
                f"the machine's facts of section {section.name} cannot be read ({error}): {text[:300]!r}"
            ) from error
    return Facts(**fields)
