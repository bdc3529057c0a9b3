"""A call on a thread of its own that nobody has to wait for: one that hangs holds up neither others nor our exit.

Nor do those that hang pile up: beyond `MAX_CALLS` that have not ended, another one is not begun.
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
    """Begin; what it returns or raises comes through the future, whose `result(timeout_s)` is the bound.

    It is TimeoutError at once where too many others hang.
    """
    future: Future[T] = Future()
    if not _free.acquire(blocking=False):
        future.set_exception(TimeoutError(f"{MAX_CALLS} calls that were made before have not ended"))
        return future

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        finally:
            _free.release()

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
