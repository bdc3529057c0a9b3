"""What a program reports by name, for people and for sweeps. Bounded: each report is stored in etcd."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_METRICS = 32
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")


class Metrics:
    """The last value of each name."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def put(self, values: Mapping[str, Any]) -> None:
        """New values: numbers, or tensors of one. Raises ValueError for a name that cannot be one, or too many."""
        for name in values:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"{name[:80]!r} cannot name a metric: write at most 64 letters, digits, `_`, `.`, `/` and `-`"
                )
        if len(self._values.keys() | values.keys()) > MAX_METRICS:
            raise ValueError(f"at most {MAX_METRICS} metrics can be reported: leave out those that nobody compares")
        self._values.update({name: float(value) for name, value in values.items()})

    @property
    def values(self) -> dict[str, float | None]:
        """Return the values by name; None for a value that is not finite."""
        return {name: value if value - value == 0 else None for name, value in self._values.items()}
