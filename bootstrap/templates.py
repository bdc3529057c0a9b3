"""Scripts with holes."""

from __future__ import annotations

import re

_HOLE = re.compile(r"@(\w+)@")


def fill(script: str, /, **values: str) -> str:
    """`script` with each `@name@` replaced; every value is one word of sh already. Raises KeyError."""
    return _HOLE.sub(lambda found: values[found[1]], script)
