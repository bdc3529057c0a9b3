"""docs/limits.md has the bounds of the modules that import torch, as tests/unit/test_limits.py holds for all others."""

from __future__ import annotations

import pytest

from tests.unit.test_limits import holds, rows


@pytest.mark.parametrize("row", rows(with_torch=True), ids=lambda row: row[2].rpartition(".")[2])
def test_the_document_has_the_bounds_of_sessions(row: list[str]) -> None:
    holds(row)
