"""etcd v3 over its JSON gateway, with the standard library alone.

Shared by the daemon and the nodes. Why not a client library: docs/decisions/0003-etcd-client.md.
The gateway (`/v3/...`, etcd 3.4 to 3.6) takes and gives base64 keys and values, and int64 as JSON strings:
https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

_LOGIN_ENDED = "invalid auth token"

Json: TypeAlias = dict[str, Any]


class EtcdError(Exception):
    """Anything that went wrong between us and etcd."""


class EtcdUnavailableError(EtcdError):
    """No endpoint answered in time. A write that raises this may or may not have happened."""


class EtcdRefusedError(EtcdError):
    """etcd answered, and the answer was no: bad request, no permission, lease not found, out of space."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CompactedError(EtcdError):
    """The history that a watch wanted to resume from is gone: read the current state and watch from there."""

    def __init__(self, compact_revision: int) -> None:
        super().__init__(f"history before revision {compact_revision} was compacted")
        self.compact_revision = compact_revision


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as etcd holds it. `lease` is 0 when the key has none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Keys of one read, all as of `revision`."""

    kvs: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """A guard of a transaction: `target` of `key` must equal `value`. `mod` or `create` of 0: must not exist."""

    key: str
    target: Literal["mod", "create", "value"]
    value: int | bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key, optionally under a lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, or all keys that begin with it."""

    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether the guards held, and the revision of the store after it."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. `value` is None where the key was deleted (or its lease ended)."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events that belong together (one revision is never split), and the revision they lead to."""

    events: tuple[WatchEvent, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. With `--client-cert-auth` etcd wants cert and key too."""

    ca: str
    cert: str | None = None
    key: str | None = None


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _unb64(text: str) -> bytes:
    return base64.b64decode(text)


def prefix_end(prefix: str) -> bytes:
    """The first key after all that begin with `prefix` (etcd's `range_end`). Our keys are ASCII: no 0xff to carry."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def _span(key: str, prefix: bool) -> Json:
    return {"key": _b64(key)} | ({"range_end": _b64(prefix_end(key))} if prefix else {})


def _key_value(raw: Json) -> KeyValue:
    return KeyValue(
        key=_unb64(raw["key"]).decode(),
        value=_unb64(raw.get("value", "")),
        create_revision=int(raw.get("create_revision", 0)),
        mod_revision=int(raw.get("mod_revision", 0)),
        lease=int(raw.get("lease", 0)),
    )


def _compare(guard: Compare) -> Json:
    field = {"mod": "mod_revision", "create": "create_revision", "value": "value"}[guard.target]
    value = _b64(guard.value) if isinstance(guard.value, bytes) else str(guard.value)
    return {"key": _b64(guard.key), "target": guard.target.upper(), "result": "EQUAL", field: value}


def _request_op(op: Put | Delete) -> Json:
    if isinstance(op, Put):
        return {"request_put": {"key": _b64(op.key), "value": _b64(op.value), "lease": str(op.lease)}}
    return {"request_delete_range": _span(op.key, op.prefix)}


class Etcd:
    """A client that any thread may use: kept-alive connections, as many as calls at once; endpoints tried in turn."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: str | None = None,
        password: str | None = None,
        tls: Tls | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint given; one looks like http://127.0.0.1:2379")
        self.endpoints = tuple(endpoints)
        self.timeout_s = timeout_s
        self._credentials = (user, password or "") if user else None
        self._token: str | None = None
        self._ssl = _ssl_context(tls) if tls else None
        self._first = 0  # index of the endpoint that answered last
        self._idle: dict[int, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close what is idle; what is in use is closed when its call ends."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def forget_login(self) -> None:
        """Log in anew with the next call: the token has ended."""
        self._token = None

    # -- reads ---------------------------------------------------------------------------------------------

    def get(self, key: str) -> KeyValue | None:
        """The key, or None where there is none."""
        kvs = self.range(key, prefix=False).kvs
        return kvs[0] if kvs else None

    def range(self, key: str, *, prefix: bool = True, limit: int = 0, keys_only: bool = False) -> Range:
        """All keys that begin with `key` (or the one key), in key order."""
        body = _span(key, prefix) | {"limit": str(limit), "keys_only": keys_only}
        answer = self._call("/v3/kv/range", body)
        kvs = tuple(_key_value(raw) for raw in answer.get("kvs", []))
        return Range(kvs, int(answer["header"]["revision"]))

    # -- writes --------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write one key; returns the revision of the store after it."""
        answer = self._call("/v3/kv/put", {"key": _b64(key), "value": _b64(value), "lease": str(lease)})
        return int(answer["header"]["revision"])

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete; returns how many keys there were."""
        return int(self._call("/v3/kv/deleterange", _span(key, prefix)).get("deleted", 0))

    def txn(
        self,
        guards: Sequence[Compare],
        then: Sequence[Put | Delete],
        otherwise: Sequence[Put | Delete] = (),
    ) -> TxnResult:
        """All of `then` if every guard holds, else all of `otherwise`. At most 128 operations (etcd's default)."""
        answer = self._call(
            "/v3/kv/txn",
            {
                "compare": [_compare(guard) for guard in guards],
                "success": [_request_op(op) for op in then],
                "failure": [_request_op(op) for op in otherwise],
            },
        )
        return TxnResult(bool(answer.get("succeeded", False)), int(answer["header"]["revision"]))

    # -- leases --------------------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> int:
        """A new lease; its id. etcd rounds up to whole seconds and never gives less than 2 s at default settings."""
        return int(self._call("/v3/lease/grant", {"TTL": str(max(1, round(ttl_s)))})["ID"])

    def keepalive(self, lease: int) -> int:
        """Renew; the seconds it has now, 0 where the lease is gone."""
        answer = self._call("/v3/lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", answer).get("TTL", 0))

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. One that is gone already is fine."""
        try:
            self._call("/v3/lease/revoke", {"ID": str(lease)})
        except EtcdRefusedError as error:
            if error.code != 5:  # grpc NOT_FOUND
                raise

    # -- upkeep --------------------------------------------------------------------------------------------

    def compact(self, revision: int) -> None:
        """Forget history before `revision`."""
        self._call("/v3/kv/compaction", {"revision": str(revision)})

    def status(self) -> Mapping[str, Any]:
        """Version, database size and leader of the endpoint that answers."""
        return self._call("/v3/maintenance/status", {})

    def watch(self, key: str, *, prefix: bool = True, start_revision: int = 0) -> Watch:
        """Changes from `start_revision` on (0: from now), on a connection of its own. See `Watch`."""
        return Watch(self, _span(key, prefix) | {"start_revision": str(start_revision)})

    # -- the wire ------------------------------------------------------------------------------------------

    def _call(self, path: str, body: Json) -> Json:
        """POST to the first endpoint that answers, each tried once, at most `timeout_s` each."""
        payload = json.dumps(body).encode()
        problems = []
        for turn in range(len(self.endpoints)):
            index = (self._first + turn) % len(self.endpoints)
            try:
                answer = self._post(index, path, payload)
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"{self.endpoints[index]}: {error or type(error).__name__}")
                continue
            self._first = index
            return answer
        raise EtcdUnavailableError(f"etcd does not answer ({'; '.join(problems)})")

    def _post(self, index: int, path: str, payload: bytes, *, may_login: bool = True) -> Json:
        if self._credentials and self._token is None and may_login:
            self._login(index)
        status, text = self._exchange(index, path, payload)
        if status == 200:
            parsed: Json = json.loads(text)
            return parsed
        message, code = _error_of(text)
        # Simple tokens end after 5 minutes without use: log in again, once.
        if self._credentials and may_login and (status == 401 or _LOGIN_ENDED in message):
            self._login(index)
            return self._post(index, path, payload, may_login=False)
        if status >= 500 and code in {0, 14}:  # grpc UNAVAILABLE: no leader, shutting down
            raise http.client.HTTPException(f"HTTP {status} {message}")
        raise EtcdRefusedError(message, code)

    def _login(self, index: int) -> None:
        assert self._credentials is not None
        name, password = self._credentials
        self._token = None  # with one that has ended, etcd would refuse even the login
        status, text = self._exchange(
            index, "/v3/auth/authenticate", json.dumps({"name": name, "password": password}).encode()
        )
        if status != 200:
            raise EtcdRefusedError(f"etcd does not accept user {name!r}: {_error_of(text)[0]}")
        self._token = json.loads(text)["token"]

    def _exchange(self, index: int, path: str, payload: bytes) -> tuple[int, bytes]:
        kept = self._take(index)
        if kept is not None:
            try:
                return self._round_trip(index, kept, path, payload)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):
                # A kept connection that the server closed while idle says nothing about the server: once more, anew.
                # All our requests may be repeated: puts are absolute, transactions guarded.
                pass
        return self._round_trip(index, self.connect(index), path, payload)

    def _round_trip(
        self, index: int, connection: http.client.HTTPConnection, path: str, payload: bytes
    ) -> tuple[int, bytes]:
        try:
            connection.request("POST", path, payload, {"Content-Type": "application/json", **self._headers()})
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        self._give_back(index, connection)
        return answer

    def _take(self, index: int) -> http.client.HTTPConnection | None:
        with self._lock:
            kept = self._idle.get(index)
            return kept.pop() if kept else None

    def _give_back(self, index: int, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.setdefault(index, []).append(connection)
                return
        connection.close()

    def connect(self, index: int) -> http.client.HTTPConnection:
        """A new connection to endpoint `index`, small writes sent at once, a dead peer noticed in about 10 s."""
        url = urlsplit(self.endpoints[index])
        host, port = url.hostname or "127.0.0.1", url.port or 2379
        connection = (
            http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self._ssl)
            if url.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        )
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return connection

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def open_stream(self, path: str, body: Json) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A long answer on its own connection (watch): the caller reads lines and closes the connection."""
        problems = []
        for turn in range(len(self.endpoints)):
            index = (self._first + turn) % len(self.endpoints)
            try:
                if self._credentials and self._token is None:
                    self._login(index)
                connection, response = self._begin(index, path, body)
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"{self.endpoints[index]}: {error or type(error).__name__}")
                continue
            if response.status == 200:
                return connection, response
            message, code = _error_of(response.read())
            connection.close()
            self._token = None if response.status == 401 else self._token
            raise EtcdRefusedError(message, code)
        raise EtcdUnavailableError(f"etcd does not answer ({'; '.join(problems)})")

    def _begin(self, index: int, path: str, body: Json) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self.connect(index)
        try:
            connection.request("POST", path, json.dumps(body).encode(), self._headers())
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise


class Watch:
    """An open watch: iterate for batches, `close()` from any thread ends the iteration.

    Raises CompactedError when the start revision is gone, EtcdUnavailableError when the connection ends.
    An idle watch is not a fault: the connection's TCP keep-alive notices a dead peer.
    """

    def __init__(self, etcd: Etcd, span: Json) -> None:
        self._etcd = etcd
        self._connection, self._response = etcd.open_stream("/v3/watch", {"create_request": span})
        self._socket = self._connection.sock
        self._socket.settimeout(None)
        self._closed = False
        self._begun = False

    def close(self) -> None:
        """Stop the iteration, wherever it is."""
        self._closed = True
        # shutdown(), not close(): only that wakes a thread that is blocked in recv().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._begun:
            self._response.close()
            self._connection.close()

    def __iter__(self) -> Iterator[WatchBatch]:
        self._begun = True
        try:
            while not self._closed:
                line = self._read_line()
                if line is None:
                    return
                try:
                    batch = _watch_batch(json.loads(line))
                except EtcdUnavailableError as error:
                    if _LOGIN_ENDED in str(error):
                        self._etcd.forget_login()
                    raise
                if batch is not None:
                    yield batch
        finally:
            self._response.close()
            self._connection.close()

    def _read_line(self) -> bytes | None:
        try:
            line = self._response.readline()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if self._closed:
                return None
            raise EtcdUnavailableError(f"watch broken: {error or type(error).__name__}") from error
        if line:
            return line
        if self._closed:
            return None
        raise EtcdUnavailableError("watch broken: etcd closed the connection")


def _watch_batch(message: Json) -> WatchBatch | None:
    if "error" in message:
        raise EtcdUnavailableError(f"watch broken: {message['error'].get('message', message['error'])}")
    result = message["result"]
    if int(result.get("compact_revision", 0)):
        raise CompactedError(int(result["compact_revision"]))
    if result.get("canceled"):
        raise EtcdUnavailableError(f"watch cancelled: {result.get('cancel_reason', 'no reason given')}")
    events = tuple(_watch_event(raw) for raw in result.get("events", []))
    return WatchBatch(events, int(result["header"]["revision"])) if events else None


def _watch_event(raw: Json) -> WatchEvent:
    kv = _key_value(raw["kv"])
    value = None if raw.get("type") == "DELETE" else kv.value
    return WatchEvent(kv.key, value, kv.mod_revision, kv.create_revision, kv.lease)


def _error_of(text: bytes) -> tuple[str, int]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text.decode(errors="replace").strip() or "no reason given", 0
    return str(parsed.get("error") or parsed.get("message") or parsed), int(parsed.get("code", 0))


def _ssl_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    return context
