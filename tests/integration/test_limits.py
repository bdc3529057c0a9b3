"""Bounds of calls and messages are reached, and hold; docs/limits.md has the bounds of the code."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest

from supervisor.runtime.background import MAX_CALLS, in_background
from supervisor.runtime.systemd import SEND_S, notify
from tools import limits

TESTS = Path(__file__).resolve().parents[1]


def test_the_document_has_the_bounds_of_the_code() -> None:
    text = limits.DOCUMENT.read_text(encoding="utf-8")
    assert text == limits.updated(text), "run `make docs` and commit docs/limits.md"
    rows = limits.ROW.findall(text)
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| what |")]
    assert len(rows) == len(lines), "a row cannot be read"
    missing = [
        f"{file}::{name}" for *_, file, name in rows if f"def {name}(" not in (TESTS / file).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_a_bound_that_is_wrong_is_rewritten_and_one_that_is_gone_is_named() -> None:
    row = "| pools of a day | {} | `supervisor.pool_days.{}` | `sim/test_pools.py::test_a_day` |"
    assert limits.updated(row.format("1", "MAX_POOLS")) == row.format("64", "MAX_POOLS")
    with pytest.raises(ValueError, match=r"names supervisor\.pool_days\.MAX_PULLS, which is not there"):
        limits.updated(row.format("1", "MAX_PULLS"))


def test_calls_beside_the_loop_that_hang_are_limited_in_number() -> None:
    over = threading.Event()
    hanging = [in_background(lambda: over.wait(30.0), "test") for _ in range(MAX_CALLS)]
    with pytest.raises(TimeoutError, match=f"{MAX_CALLS} earlier calls have not ended"):
        in_background(lambda: None, "test").result(0.0)
    over.set()
    assert all(each.result(30.0) for each in hanging)
    until = time.monotonic() + 30.0
    while (free := in_background(lambda: "again", "test")).exception(30.0) and time.monotonic() < until:
        time.sleep(0.01)  # a thread's slot is free a moment after its result
    assert free.result(0.0) == "again"


def test_a_service_manager_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    notify("STATUS=no listener yet")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as others,
    ):
        deaf.bind(str(address))
        others.connect(str(address))
        with contextlib.suppress(BlockingIOError):
            while others.send(b"never read"):
                pass
        began = time.monotonic()
        notify("WATCHDOG=1")
        assert SEND_S <= time.monotonic() - began < SEND_S + 15.0
