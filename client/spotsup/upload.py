"""Sends an archive of code to the daemon: one request, tried three times."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from spotsup.errors import SpotsupError

if TYPE_CHECKING:
    from spotsup.archive import Archive

TRIES = 3
WAITS_S = (2.0, 8.0)
MAX_ASKED_WAIT_S = 60.0  # where the daemon says how long
SHOWN_BYTES = 1_000_000  # of an archive from which on a terminal shows how much has gone


class Daemon(Protocol):
    """Where code goes."""

    def put(self, path: str, data: bytes, sent: Callable[[int], None]) -> Any:
        """Return a PUT's JSON. A SpotsupError whose `retry_after_s` is not None may pass."""
        ...


def upload(archive: Archive, daemon: Daemon, sleep: Callable[[float], None] = time.sleep) -> str:
    """Return the SHA-256 of an archive that the daemon has now. Raises SpotsupError."""
    size, line = len(archive.data), _Line()
    for max_wait_s in (*WAITS_S, None):
        try:
            return str(daemon.put("/v1/blobs", archive.data, lambda sent: line.show(sent, size))["sha256"])
        except SpotsupError as error:
            if error.retry_after_s is None:
                raise
            if max_wait_s is None:
                text = f"{error}; {size / 1e6:.1f} MB of code were sent {TRIES} times: nothing was submitted"
                raise type(error)(text, error.request) from error
            wait_s = max(max_wait_s * random.uniform(0.5, 1.0), min(error.retry_after_s, MAX_ASKED_WAIT_S))  # noqa: S311 - no secret
            line.say(f"sending the code failed ({error}): again in {wait_s:.0f} s")
        finally:
            line.clear()
        sleep(wait_s)
    raise AssertionError


class _Line:
    """A line at the terminal, written anew; nothing where there is none."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, sent: int, size: int) -> None:
        text = f"code: {sent / 1e6:.0f} of {size / 1e6:.0f} MB sent"
        if size >= SHOWN_BYTES and text != self._shown and sys.stderr.isatty():
            self._shown = text
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        self.clear()
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    def clear(self) -> None:
        if self._shown:
            self._shown = ""
            print("\r\033[K", end="", file=sys.stderr, flush=True)
