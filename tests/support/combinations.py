"""Tests over every combination: each value is in CI once, all the other combinations are in `make nightly`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def diagonal_first(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return the parameters of all pairs; CI has a diagonal of them, with each value of either list at least once."""
    pairs = list(product(enumerate(first), enumerate(second)))
    longer = max(len(first), len(second))
    diagonal = {(index % len(first), index % len(second)) for index in range(longer)}
    return [_param(one, other, nightly=(i, j) not in diagonal) for (i, one), (j, other) in pairs]


def others_nightly(in_ci: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return the parameters of a list; CI has those of `in_ci`."""
    return [
        each if each in in_ci else _param(*(each if isinstance(each, tuple) else (each,)), nightly=True)
        for each in values
    ]


def sampled(values: Sequence[Any], every: int) -> list[Any]:
    """Return the parameters of a long list; CI has the first, and each `every`th after it."""
    return [_param(value, nightly=index % every != 0) for index, value in enumerate(values)]


def _param(*values: Any, nightly: bool) -> Any:
    return pytest.param(*values, marks=[pytest.mark.nightly if nightly else pytest.mark.long])
