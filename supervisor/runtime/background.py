"""Calls on threads of their own: a call that hangs delays neither others nor our exit.

At most `MAX_CALLS` run at a time; beyond that no call is started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

MAX_CALLS = 64
_free = threading.BoundedSemaphore(MAX_CALLS)

T = TypeVar("T")


def in_background(call: Callable[[], T], name: str) -> Future[T]:
    """Start a call. The caller bounds it with the future's `result(timeout_s)`.

    The future fails with TimeoutError at once if `MAX_CALLS` others hang.
    """
    future: Future[T] = Future()
    if not _free.acquire(blocking=False):
        future.set_exception(TimeoutError(f"{MAX_CALLS} earlier calls have not ended: try again in a minute"))
        return future

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            future.set_exception(error)
        finally:
            _free.release()

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
