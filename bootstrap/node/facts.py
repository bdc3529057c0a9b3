"""The user, the disk, the machine's interpreter, and what earlier bootstraps have left complete."""

from __future__ import annotations

from typing import Any

from bootstrap.model import Setup, shell_path
from bootstrap.templates import fill


def node_script(setup: Setup) -> str:
    """Return a script that prints one JSON object."""
    return fill("node/facts.sh", root=shell_path(setup.root), python=shell_path(setup.python))


def node_facts(value: Any) -> dict[str, Any]:
    """Return the fields of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    return {
        "user": str(value["user"]),
        "home": str(value["home"]),
        "boot_id": str(value["boot_id"]),
        "free_mb": int(value["free_mb"]),
        "python": str(value["python"]),
        "python_version": tuple(int(part) for part in value["python_version"]),
        "torch": str(value["torch"]) != "none",
        "torch_version": "" if value["torch"] in ("none", "unknown") else str(value["torch"]),
        "codes": frozenset(value["codes"]),
        "trainers": frozenset(value["trainers"]),
        "prepared": frozenset(value["prepared"]),
    }
