"""Tests over every combination: each value is in `make test-long` once, all the others are in `make test-sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def sweep(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """The parameters of all pairs; a diagonal of them, with each value of either list at least once, is no sweep."""
    pairs = list(product(enumerate(first), enumerate(second)))
    longer = max(len(first), len(second))
    diagonal = {(index % len(first), index % len(second)) for index in range(longer)}
    return [_param(one, other, sweep=(i, j) not in diagonal) for (i, one), (j, other) in pairs]


def sampled(values: Sequence[Any], every: int) -> list[Any]:
    """The parameters of a long list; in `make test-long` are the first, and each `every`th after it."""
    return [_param(value, sweep=index % every != 0) for index, value in enumerate(values)]


def _param(*values: Any, sweep: bool) -> Any:
    return pytest.param(*values, marks=[pytest.mark.long, *([pytest.mark.sweep] if sweep else [])])
