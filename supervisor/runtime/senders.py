"""A sender that always answers: each delivery has a time limit."""

from __future__ import annotations

from concurrent.futures import Future

from supervisor.alerts.senders import Outgoing, Receipt, Sender
from supervisor.runtime.background import in_background

# A far side that sends a byte now and then keeps each wait for it below its own limit.
LIMIT_S = 60.0


class BoundedSender:
    """Bounds each delivery. While one that was given up has not ended, no other begins: a channel that hangs holds one
    thread, and no other channel."""

    def __init__(self, name: str, sender: Sender, limit_s: float = LIMIT_S) -> None:
        self._name, self._sender, self._limit_s = name, sender, limit_s
        self._running: Future[Receipt] | None = None

    def send(self, message: Outgoing) -> Receipt:
        """As Sender."""
        if self._running is not None and not self._running.done():
            return Receipt(error="an earlier delivery has not ended yet")
        self._running = in_background(lambda: self._sender.send(message), f"alerts-{self._name}")
        try:
            return self._running.result(self._limit_s)
        except TimeoutError:
            return Receipt(error=f"the delivery did not end within {self._limit_s:g} s")

    def try_without_sending(self) -> str:
        """As Sender."""
        return self._sender.try_without_sending()
