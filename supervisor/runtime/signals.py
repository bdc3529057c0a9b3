"""SIGTERM and SIGINT as events."""

from __future__ import annotations

import queue
import signal
import threading


def set_on_signals(*events: threading.Event) -> None:
    """Set all `events`, in this order, at the first SIGTERM or SIGINT. For the main thread.

    A thread sets them: the handler runs within whatever the main thread does, also within an event's own lock, which is
    not reentrant: it would wait for itself for ever. A SimpleQueue's put() is reentrant (its documentation).
    """
    signalled: queue.SimpleQueue[int] = queue.SimpleQueue()

    def set_all() -> None:
        signalled.get()
        for event in events:
            event.set()

    threading.Thread(target=set_all, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: signalled.put(caught))
