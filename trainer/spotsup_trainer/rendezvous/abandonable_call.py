"""Calls that may hang and can be abandoned, for torch's TCPStore.

A store's client waits for some answers without a time limit (its first handshake, the end of a `get` that timed out:
receiveValue in torch's TCPStore.cpp), so a leader whose machine has frozen would block all other nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_POLL_S = 0.05

Result = TypeVar("Result")


def call_while(call: Callable[[], Result], worthwhile: Callable[[], bool]) -> Result | None:
    """Return what `call` returns or raises; None once `worthwhile` returns False; or what `worthwhile` raises.

    A call that hangs is abandoned on its own daemon thread, which ends with its connection. `worthwhile` is called
    from the caller's thread.
    """
    pending = _Call(call)
    threading.Thread(target=pending.run, name="call_while", daemon=True).start()
    while not pending.done.wait(_POLL_S):
        try:
            go_on = worthwhile()
        except BaseException:
            pending.abandon()
            raise
        if not go_on:
            pending.abandon()
            return None
    error, pending.error = pending.error, None
    if error is None:
        return pending.result
    try:
        raise error
    finally:
        del error  # its traceback has this frame: a reference cycle that would keep the stores in it alive


class _Call(Generic[Result]):
    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._abandoned = False

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.error = error
        self.done.set()
        if self._abandoned:
            self._drop_references()

    def abandon(self) -> None:
        """Take note that the result is no longer wanted."""
        self._abandoned = True
        self._drop_references()

    def _drop_references(self) -> None:
        # The error's traceback has the frame of `run`, and so this object: a cycle that would keep the called store
        # alive, and its port open.
        self.error = self.result = None
