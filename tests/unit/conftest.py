"""Holds what tests/unit says: pure tests. Nothing is started, no address is bound or called, torch is not loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_FORBIDDEN = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "socket.bind",
    "socket.connect",
}
_running: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _running and (event in _FORBIDDEN or (event == "import" and arguments[0] == "torch")):
        raise AssertionError(f"a test of tests/unit does {event} {arguments[0]!r}: it belongs to tests/integration")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def nothing_is_started(request: pytest.FixtureRequest) -> Iterator[None]:
    """While a test of this folder runs, what would start or reach something fails it."""
    _running.append(request.node.nodeid)
    yield
    _running.clear()
