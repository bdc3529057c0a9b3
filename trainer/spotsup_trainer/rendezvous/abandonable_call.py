"""Calls into torch's TCPStore that may hang: waited for only as long as there is a reason to.

A store's client waits for some of its answers without any time limit (its first handshake, the end of a `get` that ran
out of time: receiveValue in torch's TCPStore.cpp), so a leader whose machine has frozen would hold up all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_LOOK_S = 0.05

Found = TypeVar("Found")


def attempt(call: Callable[[], Found], worthwhile: Callable[[], bool]) -> Found | None:
    """What `call` returns or raises; None once it is not worthwhile any more, or whatever `worthwhile` raises.

    A call that hangs then is left to itself: on a thread that ends when its connection does, and keeps nobody from
    exiting. `worthwhile` is asked from the caller's thread.
    """
    under_way = _Call(call)
    threading.Thread(target=under_way.run, name="attempt", daemon=True).start()
    while not under_way.over.wait(_LOOK_S):
        try:
            going_on = worthwhile()
        except BaseException:
            under_way.abandon()
            raise
        if not going_on:
            under_way.abandon()
            return None
    error, under_way.error = under_way.error, None
    if error is None:
        return under_way.found
    try:
        raise error
    finally:
        del error  # its traceback has this frame: the two would keep each other alive, and the stores in them


class _Call(Generic[Found]):
    def __init__(self, call: Callable[[], Found]) -> None:
        self._call = call
        self.found: Found | None = None
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._abandoned = False

    def run(self) -> None:
        try:
            self.found = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.error = error
        self.over.set()
        if self._abandoned:
            self._forget()

    def abandon(self) -> None:
        """Nobody will ask what came of it."""
        self._abandoned = True
        self._forget()

    def _forget(self) -> None:
        # The error's traceback has the frame of `run`, and so this object: the two would keep each other alive, and
        # with them the store that the call was made to, and its port.
        self.error = self.found = None
