"""The local cloud as a daemon's default: its server is there when it is needed, and goes when it has no machines."""

from __future__ import annotations

from pathlib import Path

from provisioners.localcloud.client import NotSentError, call
from provisioners.localcloud.control import ServerError, start_server, take_over
from provisioners.localcloud.store import Store, StoreError

PING_TIMEOUT_S = 5.0


def ensure_server(directory: Path) -> None:
    """Serve `directory`, unless somebody does already. Raises ServerError and StoreError."""
    try:
        call(directory, "GET", "/v1/ping", timeout_s=PING_TIMEOUT_S)
    except NotSentError:
        start_server(directory)


def stop_if_empty(directory: Path) -> None:
    """Stop the server of a cloud without machines. One with machines goes on: they outlive a daemon."""
    store = Store(directory)
    if any(machine.ended_at is None for machine in store.machines().values()):
        return
    take_over(store)
    try:
        store.forget_endpoint()
    finally:
        store.unlock()


__all__ = ["ServerError", "StoreError", "ensure_server", "stop_if_empty"]
