"""spotsup: turns a machine that answers on port 22 into a node: facts, steps, commands. See docs in each module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotsup.archive import Archive, pack_directory
    from spotsup.errors import PackError

    from bootstrap.connect import Clock, SshHost
    from bootstrap.environment.lock import lock_of
    from bootstrap.errors import (
        BootstrapError,
        BootstrapTimeoutError,
        CommandError,
        HostKeyMismatchError,
        LoginRefusedError,
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
    "SshHost",
    "StepEvent",
    "StepState",
    "StopOutcome",
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

# Loaded when it is used: packing a folder of code needs a tenth of it, and `spotsupctl submit` waits for that.
_MODULES = {
    "bootstrap.connect": ("Clock", "SshHost"),
    "bootstrap.environment.lock": ("lock_of",),
    "bootstrap.errors": (
        "BootstrapError",
        "BootstrapTimeoutError",
        "CommandError",
        "HostKeyMismatchError",
        "LoginRefusedError",
        "UnfitError",
        "UnreachableError",
    ),
    "bootstrap.facts": ("AgentFact", "Facts"),
    "bootstrap.model": ("Setup",),
    "bootstrap.run": (
        "Report",
        "StepEvent",
        "StepState",
        "StopOutcome",
        "bootstrap",
        "clean",
        "collect",
        "dry_run",
        "look",
        "stop_agent",
    ),
    "bootstrap.steps": ("explain", "plan"),
    "spotsup.archive": ("Archive", "pack_directory"),
    "spotsup.errors": ("PackError",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
