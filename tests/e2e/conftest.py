"""Whole jobs and whole programs take long: they run in CI. Those marked `main` run in `make test` too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.stack import Stack

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder `long`, unless it is marked `main`. Those run first: at the end all would wait."""
    items.sort(key=lambda item: FOLDER not in item.path.parents)
    for item in items:
        if FOLDER not in item.path.parents:
            continue
        if item.get_closest_marker("main") is None:
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("timeout") is None:
            # Each wait in it is bounded; a busy machine makes all of them long.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def own_environment() -> Iterator[None]:
    """A test cloud takes away what its process knows of accounts; the tests after this one find it again."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A daemon that answers, in a path with a space; at the end no process is left."""
    stack = Stack(tmp_path / "a stack", cluster="test")
    stack.prepare()
    stack.start_daemon()
    yield stack
    assert stack.close().processes == ()
