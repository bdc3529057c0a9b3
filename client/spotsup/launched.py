"""What Hydra's launcher asks for, as a job file's keys. Pure: Hydra is needed in `hydra_plugins` alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NO_NAME = re.compile(r"[^a-z0-9-]+")
MAX_NAME = 40
# Overrides of Hydra that are about where jobs run, and about the computer that begins them.
_OF_THE_LAUNCHER = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweep", "hydra.mode", "hydra.run.dir")


def name_of(text: str, suffix: str) -> str:
    """Return a job's name: what a user called it, as far as a name may, and what makes it unique."""
    name = _NO_NAME.sub("-", text.lower()).strip("-").lstrip("0123456789-")[: MAX_NAME - len(suffix) - 1].strip("-")
    return f"{name or 'job'}-{suffix}"


def overrides_of_job(overrides: Sequence[str]) -> list[str]:
    """Return what a job of a Hydra multirun gets of its overrides."""
    return [each for each in overrides if not each.lstrip("+~").startswith(_OF_THE_LAUNCHER)]
