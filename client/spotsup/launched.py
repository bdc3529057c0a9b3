"""What other launchers ask for, as a job file's keys. Pure; the launchers themselves are needed in torchx.py alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from spotsup.errors import UsageError

# Options of torchrun that `dist.ddp` writes, each with one value: the daemon's launcher decides all of them.
_TORCHRUN = frozenset(
    ("--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--nnodes", "--nproc_per_node", "--node_rank", "--tee", "--role")
)
_NO_NAME = re.compile(r"[^a-z0-9-]+")
MAX_NAME = 40
# Overrides of Hydra that are about where jobs run, and about the computer that begins them.
_OF_THE_LAUNCHER = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweep", "hydra.mode", "hydra.run.dir")


def name_of(text: str, suffix: str) -> str:
    """A job's name: what a user called it, as far as a name may, and what makes it unique."""
    name = _NO_NAME.sub("-", text.lower()).strip("-").lstrip("0123456789-")[: MAX_NAME - len(suffix) - 1].strip("-")
    return f"{name or 'job'}-{suffix}"


def run_of(entrypoint: str, args: Sequence[str]) -> tuple[str, int]:
    """`run` of a job file, and the processes on each node (0: not said), for a role of TorchX. Raises UsageError.

    Understood are Python, and torchrun as `dist.ddp` writes it: the daemon starts the workers itself, over all nodes.
    """
    shell = entrypoint in {"bash", "sh", "/bin/bash", "/bin/sh"} and len(args) == 2 and args[0] == "-c"
    try:
        parts = shlex.split(args[1]) if shell else [entrypoint, *args]
    except ValueError as error:
        raise UsageError(f"{args[1]!r} cannot be read: {error}") from error
    program, rest = (parts[0].rpartition("/")[2], parts[1:]) if parts else ("", [])
    processes = 0
    while program == "torchrun" and len(rest) > 1 and rest[0] in _TORCHRUN:
        if rest[0] == "--nproc_per_node":
            processes = int(rest[1]) if rest[1].isdecimal() else 0
        rest = rest[2:]
    is_python = program == "torchrun" or re.fullmatch(r"python(3(\.\d+)?)?", program)
    if not is_python or not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        raise UsageError(
            f"spotsup runs Python programs, as of dist.ddp or utils.python: it cannot run {shlex.join(parts)[:200]!r}"
        )
    return shlex.join(rest), processes


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """{"limits.hours": 2} as {"limits": {"hours": 2}}; without those that are None."""
    made: dict[str, Any] = {}
    for path, value in keys.items():
        if value is None:
            continue
        *above, last = path.split(".")
        inner = made
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return made


def overrides_of_job(overrides: Sequence[str]) -> list[str]:
    """What a job of a Hydra multirun gets of its overrides."""
    return [each for each in overrides if not each.lstrip("+~").startswith(_OF_THE_LAUNCHER)]
