"""Which members of a round still run in it, by the round's own store: etcd is not asked.

A lease also ends where only the way to etcd is cut. The launcher of rank 0 counts up in its store, and every member
notes the count that it sees: how far a member's note is behind is how long ago it ran, by one clock.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

from spotsup_trainer.timing import LeaseTimes
from spotsup_trainer.wire import Round

_COUNT = "spotsup/count"
_LEFT = -(10**9)
_END_S = 0.5

log = logging.getLogger(__name__)


class Store(Protocol):
    """What is needed of torch's TCPStore."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 where there is none; returns the sum."""
        ...

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        ...

    def check(self, keys: list[str]) -> bool:
        """True if all keys exist."""
        ...

    def get(self, key: str) -> bytes:
        """Return the value of a key that exists."""
        ...


class Heartbeat:
    """One round's. A thread with a connection of its own beats; `heard` never blocks.

    `node`: who beats, "" for a launcher outside the round, which only reads. `connect`: may raise OSError and
    RuntimeError, as the store itself. `clock`: seconds, of any beginning.
    """

    def __init__(
        self,
        formed: Round,
        node: str,
        times: LeaseTimes,
        connect: Callable[[], Store],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.round = formed.number
        self._leads = node == formed.members[0].node
        self._node = node
        self._beat_s, self._heard_s = times.beat_s, times.heard_s
        self._connect = connect
        self._clock = clock
        self._store: Store | None = None
        self._count, self._advanced_at = 0, -math.inf
        # By node without a key: since when it is asked about, and how many beats it was behind at the last look.
        self._asked: dict[str, float] = {}
        self._behind: dict[str, float] = {}
        # When `heard` was last called, and when it was called again after a time in which this process stood still.
        self._called_at, self._woke_at = clock(), -math.inf
        self._refused = False
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {formed.number}", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def heard(self, missing: frozenset[str]) -> frozenset[str]:
        """Return those of `missing` that still run in the round. One that was not looked for yet counts as heard, for
        as long as a sign of it would; so does each that was heard before this process stood still, as a machine does
        that its host moves: what is known of the others is as old as that."""
        now = self._clock()
        if now > self._called_at + self._heard_s:
            self._woke_at = now
        self._called_at = now
        if missing != self._asked.keys():
            self._asked = {node: self._asked.get(node, now) for node in missing}
            self._wake.set()
        return frozenset(node for node in missing if self._is_heard(node, now))

    def close(self, *, wait: bool = False) -> None:
        """Stop, and show the others at once that this node does not run in the round any more, if the store answers.
        `wait` for that, for a moment: this process ends."""
        self._ending.set()
        self._wake.set()
        if wait and self._node and self._thread.ident is not None:
            self._thread.join(_END_S)

    def _is_heard(self, node: str, now: float) -> bool:
        if self._refused:
            return False
        if node not in self._behind:
            return now < max(self._asked[node], self._woke_at) + self._heard_s
        return (
            now < max(self._advanced_at, self._woke_at) + self._heard_s
            and self._behind[node] * self._beat_s < self._heard_s
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._beat()
            except ConnectionRefusedError:
                self._refused = True  # the launcher of rank 0 has ended
            except (OSError, RuntimeError) as error:
                if self._store is not None:
                    if not isinstance(error, ConnectionResetError):  # as its launcher ends
                        # torch's errors have a stack of C++ in further lines.
                        log.info("round %d: its store does not answer: %s", self.round, str(error).partition("\n")[0])
                    self._store = None
                    continue  # a new connection shows at once whether its launcher has ended
            self._wake.wait(self._beat_s)
            self._wake.clear()
        if self._store is not None and self._node:
            with contextlib.suppress(OSError, RuntimeError):
                self._store.set(_note(self._node), str(_LEFT))

    def _beat(self) -> None:
        store = self._store = self._store or self._connect()
        self._refused = False
        count = store.add(_COUNT, 1 if self._leads else 0)
        if count != self._count:
            self._count, self._advanced_at = count, self._clock()
        if self._node:
            store.set(_note(self._node), str(count))
        behind = {}
        for node in tuple(self._asked):
            key = _note(node)
            behind[node] = count - int(store.get(key)) if store.check([key]) else math.inf
        self._behind = behind


def _note(node: str) -> str:
    return f"spotsup/count/{node}"
