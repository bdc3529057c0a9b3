"""Whole jobs and whole programs take long: they run in `make test-long`. Those marked `main` run in `make test` too."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder `long`, unless it is marked `main`."""
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("main") is None:
            item.add_marker(pytest.mark.long)
