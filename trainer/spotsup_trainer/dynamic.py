"""`--rdzv-backend etcd-v3`: torch's own rendezvous handler, with its state and its store in etcd v3.

For who wants torchrun as it is, and etcd instead of a c10d store on one of the nodes. torch decides everything: who is
in a round, with which rank, and who is taken for dead (by heartbeats, and the nodes' clocks). Its handler ends the node
at any error, so outages of etcd are hidden from it, for `outage` seconds. The backend `spotsup` (handler.py) can more.

torch keeps its state as a pickle, and unpickles whatever is under the key. Here nothing but the types that such a state
consists of gets through to it, so that a written key runs no code. Who can write the keys can still end the job or
choose the address that its processes connect to: use TLS and a user wherever others reach etcd.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    create_handler,
)

from spotsup_trainer import rdzv_conf
from spotsup_trainer.dynamic_link import Link
from spotsup_trainer.dynamic_store import EtcdStore
from spotsup_trainer.etcd import Compare, Etcd, EtcdError, Put, Tls

BACKEND = "etcd-v3"
PASSWORD_VARIABLE = "SPOTSUP_ETCD_PASSWORD"  # noqa: S105 - its name
_PREFIX = "/torchrun"
_LEASE_TTL_S = 900.0
_OUTAGE_S = 30.0
_READ_TIMEOUT_S = 60.0  # that of torch's c10d backend
_CALL_TIMEOUT_S = 3.0

_STATE_MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
_STATE_TYPES = {
    (_STATE_MODULE, "_RendezvousState"),
    (_STATE_MODULE, "_NodeDesc"),
    ("datetime", "datetime"),
    ("datetime", "timezone"),
    ("datetime", "timedelta"),
    ("builtins", "set"),
}


class EtcdBackend(RendezvousBackend):  # type: ignore[misc]  # mypy does not read torch
    """Holds torch's state under one key, replaced by compare-and-swap. The token is the key's revision.

    Raises RendezvousConnectionError when etcd does not answer for long, or refuses; RendezvousStateError when
    something else than torch's state is under the key.
    """

    def __init__(self, link: Link, key: str) -> None:
        self._link = link
        self._key = key

    @property
    def name(self) -> str:
        """`etcd-v3`."""
        return BACKEND

    def get_state(self) -> tuple[bytes, int] | None:
        """The state and its token; None where there is none."""
        try:
            found = self._link.read(lambda etcd: etcd.get(self._key))
        except EtcdError as error:
            raise RendezvousConnectionError(str(error)) from error
        return (self._fresh(found.value), found.mod_revision) if found else None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        """Write `state` if the key's revision is `token`, if there is no key without one.

        Returns what is there now, its token, and whether it is ours; None where there is nothing although there was a
        token.
        """
        guard = Compare(self._key, "mod", int(token or 0))
        try:
            done = self._link.write(lambda etcd, lease: etcd.txn([guard], [Put(self._key, state, lease)]))
        except EtcdError as error:
            raise RendezvousConnectionError(str(error)) from error
        if done.succeeded:
            return self._fresh(state), done.revision, True
        found = self.get_state()
        return (*found, False) if found else None

    def _fresh(self, raw: bytes) -> bytes:
        """The state, with nobody's last heartbeat before the end of etcd's last outage: nobody could send any."""
        floor = datetime.fromtimestamp(self._link.back_at, UTC)
        try:
            state = _StateReader(io.BytesIO(raw)).load()
            if all(beat >= floor for beat in state.last_heartbeats.values()):
                return raw
            state.last_heartbeats = {node: max(beat, floor) for node, beat in state.last_heartbeats.items()}
            return pickle.dumps(state)
        except Exception as error:  # unpickling damaged data raises anything
            raise RendezvousStateError(f"{self._key} in etcd is no state of torch's rendezvous: {error}") from error


class _StateReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STATE_TYPES:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)


def handler_from(params: RendezvousParameters, environ: Mapping[str, str]) -> DynamicRendezvousHandler:
    """`params.endpoint`: etcd's endpoints, separated by commas; `params.run_id`: the job.

    `--rdzv-conf` takes what torch's handler takes (`join_timeout`, `last_call_timeout`, `keep_alive_interval`, …), and
    `prefix` of the keys, `lease_ttl` (keys go that many seconds after their last write, or up to twice that), `outage`
    (for how many seconds etcd may be away), `read_timeout` (how long nodes wait for each other's words), `ca`, `cert`
    and `key` (PEM files), `user` (password: SPOTSUP_ETCD_PASSWORD). Raises ValueError for what cannot be right.
    """
    outage_s = rdzv_conf.seconds(params, "outage", _OUTAGE_S)
    read_timeout_s = rdzv_conf.seconds(params, "read_timeout", _READ_TIMEOUT_S)
    lease_ttl_s = rdzv_conf.seconds(params, "lease_ttl", _LEASE_TTL_S)
    heartbeats_s = rdzv_conf.seconds(params, "keep_alive_interval", 5) * rdzv_conf.seconds(
        params, "keep_alive_max_attempt", 3
    )
    least_s = outage_s + max(read_timeout_s, heartbeats_s)
    if lease_ttl_s < least_s:
        raise ValueError(
            f"--rdzv-conf lease_ttl={lease_ttl_s:g} is too short: with these time limits a running job may not write "
            f"its keys for {least_s:g} s"
        )
    job = rdzv_conf.name("--rdzv-id", params.run_id)
    root = f"{str(params.get('prefix', _PREFIX)).rstrip('/')}/{job}/"
    etcd = _etcd(params, environ)
    link = Link(etcd, lease_ttl_s=lease_ttl_s, outage_s=outage_s)
    store, backend = EtcdStore(link, f"{root}store/", read_timeout_s), EtcdBackend(link, f"{root}state")
    handler = create_handler(store, backend, params)  # it holds the store for as long as it lives: see EtcdStore
    weakref.finalize(handler, etcd.close)
    return handler


def _etcd(params: RendezvousParameters, environ: Mapping[str, str]) -> Etcd:
    endpoints = rdzv_conf.endpoints(params.endpoint)
    ca, cert, key, user = (params.get(name) for name in ("ca", "cert", "key", "user"))
    if (cert or key) and not (ca and cert and key):
        raise ValueError("--rdzv-conf has cert or key; it should have all of ca, cert and key")
    plain = [endpoint for endpoint in endpoints if not endpoint.startswith("https://")]
    if ca and plain:
        raise ValueError(f"--rdzv-conf has ca, but {plain[0]} would not use it; it should begin with https://")
    if user and PASSWORD_VARIABLE not in environ:
        raise ValueError(f"--rdzv-conf has user={user}, but the environment has no {PASSWORD_VARIABLE}")
    return Etcd(
        endpoints,
        user=user,
        password=environ.get(PASSWORD_VARIABLE),
        tls=Tls(ca, cert, key) if ca else None,
        timeout_s=_CALL_TIMEOUT_S,
    )
