"""Writes the bounds of docs/limits.md from the constants that its rows name: `make docs`.

What a bound is of, and which test reaches it, is written in the document; how large it is, only in the code.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from supervisor.config import HousekeepingConfig

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "limits.md"
# What it is of, its bound, its name in the code, and the test that reaches it.
ROW = re.compile(r"^(\| .+ \| )[^|]*( \| `([\w.]+)` \| `([\w/.]+)::(\w+)` \|)$", re.MULTILINE)


def updated(text: str) -> str:
    """Return the document with each bound as the code has it. Raises ValueError for a name that the code lacks."""
    return ROW.sub(lambda row: f"{row[1]}{bound(row[3])}{row[2]}", text)


def bound(name: str) -> str:
    """Return a constant's value, or a rule's default; those of several tries in a row. Raises ValueError."""
    try:
        value = _value(name)
    except (ImportError, AttributeError, KeyError) as error:
        raise ValueError(f"docs/limits.md names {name}, which is not there: {error}") from error
    return " ".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)


def _value(name: str) -> Any:
    home, _, last = name.rpartition(".")
    if home.endswith(("Rules", "supervision.Limits")):
        module, _, rules = home.rpartition(".")
        return getattr(getattr(import_module(module), rules)(), last)
    if home.endswith("Config"):
        return HousekeepingConfig.model_fields[last].default
    return getattr(import_module(home), last)


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
