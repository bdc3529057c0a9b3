"""A job's variables as sh exports them. Only the machine's search paths may be named in their own values."""

from __future__ import annotations

import re
import shlex

SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")
_REFERENCE = re.compile(r"\$\{\w+[^}]*\}|\$\(.*?\)|\$[A-Z][A-Z0-9_]+\b")


def unexpanded(name: str, value: str) -> str:
    """Return the first reference in a value that a shell would expand and that stays as it is here, "" if none."""
    return next((each for each in _REFERENCE.findall(value) if name not in SEARCH_PATHS or not _own(name, each)), "")


def _own(name: str, reference: str) -> bool:
    return reference in {f"${name}", f"${{{name}}}"}


def quoted(name: str, value: str) -> str:
    """Return a value as sh reads it. A PATH without the machine's own ends with it: spotsup needs its programs."""
    if name not in SEARCH_PATHS:
        return shlex.quote(value)
    if name == "PATH" and not any(_own(name, each) for each in _REFERENCE.findall(value)):
        value += ":$PATH"
    parts = re.split(rf"\$\{{{name}\}}|\${name}\b", value)
    return f'"${{{name}-}}"'.join(shlex.quote(part) if part else "" for part in parts)
