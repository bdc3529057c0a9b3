"""The TCPStore of a round, from the launchers beside that of rank 0, which serves it."""

from __future__ import annotations

import socket
import weakref
from datetime import timedelta

from torch.distributed import TCPStore

from spotsup_trainer.wire import RoundMember

_PROBE_TIMEOUT_S = 1.0
_CONNECT_TIMEOUT_S = 5.0


def reach(leader: RoundMember) -> TCPStore:
    """Return a connection to the leader's store. Raises OSError and DistError."""
    # TCPStore itself retries for seconds, and prints a stack trace, if the port is closed.
    _probe(leader).close()
    return TCPStore(
        leader.addr,
        leader.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=_CONNECT_TIMEOUT_S),
    )


class WatchedStore:
    """The leader's store for a Heartbeat. A call raises ConnectionResetError if the store has ended with its launcher:
    torch would print a stack of C++ before it raises anything.

    Raises OSError and DistError as `reach` does.
    """

    def __init__(self, leader: RoundMember) -> None:
        # Nothing is sent on it, and it ends when the store does: torch gives nobody its own socket.
        self._sign = _probe(leader)
        weakref.finalize(self, self._sign.close)
        self._sign.setblocking(False)
        self._store = reach(leader)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 where there is none; return the sum."""
        return int(self._running().add(key, amount))

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._running().set(key, value)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""
        return bool(self._running().check(keys))

    def get(self, key: str) -> bytes:
        """Return the value of a key that exists."""
        return bytes(self._running().get(key))

    def _running(self) -> TCPStore:
        try:
            self._sign.recv(1)
        except BlockingIOError:
            return self._store
        raise ConnectionResetError("the store has ended")


def _probe(leader: RoundMember) -> socket.socket:
    return socket.create_connection((leader.addr, leader.store_port), timeout=_PROBE_TIMEOUT_S)


def first_line(error: Exception) -> str:
    """Return an error of a store as one line: torch's have a stack of C++ below it."""
    return str(error).partition("\n")[0]
