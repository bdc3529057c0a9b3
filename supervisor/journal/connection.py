"""Connections to etcd, for the daemon and for commands that run beside it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from spotsup_trainer.etcd import Etcd, Tls

from supervisor.config import Config
from supervisor.errors import StartError
from supervisor.journal.etcd_server import EmbeddedEtcd


def connect_etcd(config: Config, endpoints: tuple[str, ...], timeout_s: float = 5.0) -> Etcd:
    """A client as configured. Each endpoint may take `timeout_s` to answer."""
    tls = Tls(config.etcd.ca, config.etcd.cert or None, config.etcd.key or None) if config.etcd.ca else None
    return Etcd(endpoints, user=config.etcd.user or None, password=config.etcd_password(), tls=tls, timeout_s=timeout_s)


@contextlib.contextmanager
def open_etcd(config: Config, *, embedded_etcd: bool) -> Iterator[Etcd]:
    """etcd for a command beside the daemon. An embedded etcd that does not run is started meanwhile."""
    with contextlib.ExitStack() as stack:
        endpoints = config.etcd.endpoints
        if embedded_etcd:
            server = EmbeddedEtcd(config.state / "etcd")
            if not server.alive:
                stack.enter_context(state_lock(config.state))
                stack.callback(server.stop)
            server.start()
            endpoints = (server.endpoint,)
        etcd = connect_etcd(config, endpoints)
        stack.callback(etcd.close)
        yield etcd


@contextlib.contextmanager
def state_lock(state: Path) -> Iterator[None]:
    """Hold the lock of the state folder: one daemon per folder."""
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (state / "lock").open("a")
    except OSError as error:
        raise StartError(f"the state folder {state} cannot be used ({error.strerror}): set state_dir") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(
                f"another spotsupd uses the state folder {state}: stop it, or set another state_dir"
            ) from error
        yield
