"""The JSON gateway of the simulated etcd, with the real client in front of it.

tests/integration/test_simulated_etcd.py asks the real one the same questions.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spotsup_trainer.etcd import Compare, Delete, Etcd, EtcdRefusedError, KeyValue, Put

if TYPE_CHECKING:
    from spotsup_simulator.etcd import SimEtcd

DAEMON_USER = "daemon"
_HTTP_UNAUTHORIZED, _UNAUTHENTICATED = 401, 16
_AUTH = "/v3/auth/"


class SimGateway(Etcd):
    """The real client: it logs in, again where its token has ended, and repeats what etcd refuses for others' changes.
    Only the wire is simulated."""

    def __init__(self, etcd: SimEtcd, connected: Callable[[], bool] = lambda: True) -> None:
        super().__init__(["http://etcd"], user=DAEMON_USER, password=DAEMON_USER)
        self._sim = etcd
        self._connected = connected
        # Runs before a request has its effect, and after it; what it raises is the request's end.
        self.before: Callable[[], None] = _nothing
        self.after: Callable[[], None] = _nothing

    def _exchange(self, index: int, path: str, payload: bytes) -> tuple[int, bytes]:
        if not self._connected():
            raise ConnectionRefusedError("etcd is down")
        self.before()
        answer = answered(self._sim, self._token, path, json.loads(payload))
        self.after()
        return answer


def answered(etcd: SimEtcd, token: str | None, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """HTTP status and text."""
    try:
        found = _answer(etcd, token, path, body)
        return 200, json.dumps({"header": {"revision": str(etcd.revision)}} | found).encode()
    except EtcdRefusedError as error:
        status = _HTTP_UNAUTHORIZED if error.code == _UNAUTHENTICATED else 400
        return status, json.dumps({"error": str(error), "message": str(error), "code": error.code}).encode()


def _answer(etcd: SimEtcd, token: str | None, path: str, body: dict[str, Any]) -> dict[str, Any]:
    if path == f"{_AUTH}authenticate":
        return {"token": etcd.auth.log_in(body["name"])}
    etcd.auth.check(token)
    if path.startswith(_AUTH):
        return etcd.auth.manage(path.removeprefix(_AUTH), body, etcd.revision)
    if path.startswith("/v3/lease/"):
        return _lease(etcd, path, body)
    match path:
        case "/v3/kv/range":
            return {"kvs": [_key_value(kv) for kv in _found(etcd, body)]}
        case "/v3/kv/put":
            etcd.txn([], [_operation({"request_put": body})])
            return {}
        case "/v3/kv/deleterange":
            count = len(_found(etcd, body))
            etcd.txn([], [_operation({"request_delete_range": body})])
            return {"deleted": str(count)} if count else {}
        case "/v3/kv/txn":
            return _txn(etcd, body)
        case "/v3/kv/compaction":
            etcd.compact(int(body["revision"]))
            return {}
        case "/v3/maintenance/status":
            return {"version": "3.4.23"} | ({"errors": ["memberID:1 alarm:NOSPACE "]} if etcd.full else {})
    raise AssertionError(path)


def _lease(etcd: SimEtcd, path: str, body: dict[str, Any]) -> dict[str, Any]:
    match path.rpartition("/")[2]:
        case "grant":
            number = etcd.grant(int(body["TTL"]))
            return {"ID": str(number), "TTL": str(etcd.leases[number].ttl_s)}
        case "keepalive":
            left_s = etcd.keep_alive(int(body["ID"]))
            header = {"revision": str(etcd.revision)}
            return {"result": {"header": header, "ID": body["ID"]} | ({"TTL": str(left_s)} if left_s else {})}
        case "revoke":
            etcd.revoke(int(body["ID"]))
            return {}
    raise AssertionError(path)


def _txn(etcd: SimEtcd, body: dict[str, Any]) -> dict[str, Any]:
    assert not body["failure"], "nothing that the daemon does"
    guards = [_guard(each) for each in body["compare"]]
    result = etcd.txn(guards, [_operation(each) for each in body["success"]])
    return {"succeeded": True} if result.succeeded else {}


def _guard(raw: dict[str, Any]) -> Compare:
    key = _text(raw["key"])
    match raw["target"]:
        case "VALUE":
            return Compare(key, "value", base64.b64decode(raw["value"]))
        case "MOD":
            return Compare(key, "mod", int(raw["mod_revision"]))
    return Compare(key, "create", int(raw["create_revision"]))


def _operation(raw: dict[str, Any]) -> Put | Delete:
    if put := raw.get("request_put"):
        return Put(_text(put["key"]), base64.b64decode(put["value"]), int(put.get("lease", 0)))
    gone = raw["request_delete_range"]
    return Delete(_text(gone["key"]), prefix="range_end" in gone)


def _found(etcd: SimEtcd, body: dict[str, Any]) -> list[KeyValue]:
    key, after = _text(body["key"]), int(body.get("min_mod_revision", 0))
    keys = sorted(each for each in etcd.keys if each.startswith(key)) if "range_end" in body else [key]
    found = [kv for each in keys if (kv := etcd.keys.get(each)) is not None and kv.mod_revision >= after]
    return found[: int(body.get("limit", 0)) or None]


def _key_value(kv: KeyValue) -> dict[str, str]:
    """As etcd does: what is zero or empty is left out."""
    found = {"create_revision": str(kv.create_revision), "mod_revision": str(kv.mod_revision)}
    found |= {"key": _b64(kv.key.encode())} | ({"value": _b64(kv.value)} if kv.value else {})
    return found | ({"lease": str(kv.lease)} if kv.lease else {})


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _nothing() -> None:
    pass
