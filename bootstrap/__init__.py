"""spotsup: turns a machine that answers on port 22 into a node: facts, steps, commands. See docs in each module."""

from bootstrap.archive import Archive, pack_directory
from bootstrap.connect import Clock, Target
from bootstrap.environment.lock import lock_of
from bootstrap.errors import (
    BootstrapError,
    BootstrapTimeoutError,
    CommandError,
    HostKeyMismatchError,
    LoginRefusedError,
    PackError,
    UnfitError,
    UnreachableError,
)
from bootstrap.facts import AgentFact, Facts
from bootstrap.model import Setup
from bootstrap.run import (
    Report,
    StepEvent,
    StepState,
    StopOutcome,
    bootstrap,
    clean,
    collect,
    dry_run,
    look,
    stop_agent,
)
from bootstrap.steps import explain, plan

__all__ = [
    "AgentFact",
    "Archive",
    "BootstrapError",
    "BootstrapTimeoutError",
    "Clock",
    "CommandError",
    "Facts",
    "HostKeyMismatchError",
    "LoginRefusedError",
    "PackError",
    "Report",
    "Setup",
    "StepEvent",
    "StepState",
    "StopOutcome",
    "Target",
    "UnfitError",
    "UnreachableError",
    "bootstrap",
    "clean",
    "collect",
    "dry_run",
    "explain",
    "lock_of",
    "look",
    "pack_directory",
    "plan",
    "stop_agent",
]
