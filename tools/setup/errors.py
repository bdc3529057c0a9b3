"""The error of setting up a clone, and how programs are run meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class SetupError(Exception):
    """The clone cannot be set up; the message says how to fix it."""


def run(
    arguments: Sequence[str], *, cwd: Path, timeout_s: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, quietly. Raises SetupError where it is not there or does not end."""
    env = {**os.environ, **(environ or {}), "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            list(arguments), cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except FileNotFoundError as error:
        raise SetupError(f"there is no program {arguments[0]!r} here") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"`{' '.join(arguments)}` did not end within {timeout_s:.0f} s") from error


def output_tail(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines of a program's output."""
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
