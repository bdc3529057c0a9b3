"""The interpreters that nodes may bring, as far as this computer has them: on the PATH, or pyenv's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

INTERPRETERS = ("3.9", "3.10", "3.11", "3.12", "3.13")
# For tests that take a second each: those between are for `make test-long`.
OLDEST_AND_NEWEST_FIRST = [
    pytest.param(version, marks=[] if version in {INTERPRETERS[0], INTERPRETERS[-1]} else [pytest.mark.long])
    for version in INTERPRETERS
]


# What nodes' programs run with, and what they need of the environment: `make test-torch` sets another one than ours.
NODE_PYTHON = os.environ.get("SPOTSUP_TEST_NODE_PYTHON", sys.executable)
NODE_ENVIRON = (
    {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "trainer")} if sys.executable != NODE_PYTHON else {}
)


def interpreter(version: str) -> Path:
    """The newest of a version such as "3.9"; skips the test where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"))
    if found:
        return found[-1]
    on_path = shutil.which(f"python{version}")
    if on_path is None or _is_shim(on_path):
        pytest.skip(f"there is no python{version} on this computer")
    return Path(on_path)


def _is_shim(path: str) -> bool:
    """pyenv has one for every version that any of its interpreters has, and it may not run."""
    return "shims" in Path(path).parts
