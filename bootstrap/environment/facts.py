"""Environments that are complete in the cache, and what could build one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup, shell_path
from bootstrap.templates import fill


@dataclass(frozen=True, slots=True)
class Environments:
    """Empty where the job brings no lock."""

    complete: frozenset[str] = frozenset()
    """Names in the cache folder."""
    uv: str = ""
    """The absolute path of the machine's own uv, "" for none."""
    shipped: frozenset[str] = frozenset()
    """Names of the copies of uv in the cache folder that earlier bootstraps brought."""
    machine: str = ""
    """The processor's architecture, such as x86_64."""


def environments_script(setup: Setup) -> str:
    """Return a script that prints one JSON object; an empty one where no environment is to be built."""
    if setup.lock is None:
        return "echo '{}'\n"
    return fill("environment/facts.sh", cache=shell_path(setup.cache_folder))


def environments_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    complete, shipped = (frozenset(map(str, value.get(name, ()))) for name in ("complete", "shipped"))
    return {"environments": Environments(complete, str(value.get("uv", "")), shipped, str(value.get("machine", "")))}
