"""A job's variables as sh exports them. Only the machine's search paths may be named in their own values."""

from __future__ import annotations

import re
import shlex

SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")
_REFERENCE = re.compile(r"\$\{\w+[^}]*\}|\$\(.*?\)|\$[A-Z][A-Z0-9_]+\b")


def unexpanded(name: str, value: str) -> str:
    """Return the first reference in a value that a shell would expand and that stays as it is here, "" if none."""
    own = {f"${name}", f"${{{name}}}"} if name in SEARCH_PATHS else set()
    return next((each for each in _REFERENCE.findall(value) if each not in own), "")


def quoted(name: str, value: str) -> str:
    """Return a value as sh reads it. A PATH without the machine's own ends with it: spotsup needs its programs."""
    if name not in SEARCH_PATHS:
        return shlex.quote(value)
    parts = re.split(rf"\$\{{{name}\}}|\${name}\b", value)
    if name == "PATH" and len(parts) == 1:
        parts = [f"{value}:", ""]
    return f'"${{{name}-}}"'.join(shlex.quote(part) if part else "" for part in parts)
