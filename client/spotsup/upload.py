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


class Daemon(Protocol):
    """Where code goes."""

    def send(self, method: str, path: str, body: Any) -> Any:
        """The answer's JSON to a body of JSON or bytes. A SpotsupError whose `retry_after_s` is not None may pass."""
        ...


def upload(archive: Archive, daemon: Daemon, sleep: Callable[[float], None] = time.sleep) -> str:
    """Return the SHA-256 of an archive that the daemon has now. Raises SpotsupError."""
    for most_s in (*WAITS_S, None):
        try:
            return str(daemon.send("PUT", "/v1/blobs", archive.data)["sha256"])
        except SpotsupError as error:
            if error.retry_after_s is None:
                raise
            if most_s is None:
                size = f"{len(archive.data) / 1e6:.1f} MB of code"
                raise type(error)(f"{error}; {size} were sent {TRIES} times: nothing was submitted") from error
            wait_s = max(most_s * random.uniform(0.5, 1.0), min(error.retry_after_s, MAX_ASKED_WAIT_S))  # noqa: S311 - no secret
            if sys.stderr.isatty():
                print(f"sending the code failed ({error}): again in {wait_s:.0f} s", file=sys.stderr)
        sleep(wait_s)
    raise AssertionError
