"""etcd v3: the operations that spotsup needs, over etcd's JSON gateway (gateway.py).

Shared by the daemon and the nodes. Why not a client library: docs/decisions/0003-etcd-client.md.
The gateway (`/v3/...`, etcd 3.4 to 3.6) encodes keys and values in base64, and int64 as JSON strings.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from spotsup_trainer.etcd.gateway import (
    LOGIN_ENDED,
    EtcdError,
    EtcdRefusedError,
    EtcdUnavailableError,
    Gateway,
    Json,
    Tls,
    decoded,
)

__all__ = [
    "Compare",
    "Delete",
    "Etcd",
    "EtcdError",
    "EtcdRefusedError",
    "EtcdUnavailableError",
    "KeyValue",
    "Put",
    "Range",
    "Tls",
    "TxnResult",
    "Watch",
    "WatchBatch",
    "WatchEvent",
    "prefix_end",
]


@dataclass(frozen=True)
class KeyValue:
    """One key as etcd holds it. `lease` is 0 when the key has none."""

    key: str
    value: bytes = field(repr=False)
    create_revision: int
    mod_revision: int
    lease: int = 0


# Of a page: the next one has as many keys as come to this size, by the page before.
PAGE_BYTES = 4 * 2**20
FIRST_PAGE_KEYS, MAX_PAGE_KEYS = 16, 2_000


@dataclass(frozen=True)
class Range:
    """Keys of one read, all as of `revision`."""

    kvs: tuple[KeyValue, ...]
    revision: int
    more: bool = False  # the limit left keys out


@dataclass(frozen=True)
class Compare:
    """A guard of a transaction: `target` of `key` must equal `value`. `mod` or `create` of 0: must not exist."""

    key: str
    target: Literal["mod", "create", "value"]
    value: int | bytes = field(repr=False)


@dataclass(frozen=True)
class Put:
    """Write a key, optionally under a lease."""

    key: str
    value: bytes = field(repr=False)
    lease: int = 0


@dataclass(frozen=True)
class Delete:
    """Delete a key, or all keys that begin with it."""

    key: str
    prefix: bool = False


@dataclass(frozen=True)
class TxnResult:
    """Whether the guards held, and the revision of the store after it."""

    succeeded: bool
    revision: int


@dataclass(frozen=True)
class WatchEvent:
    """One change. `value` is None where the key was deleted (or its lease ended)."""

    key: str
    value: bytes | None = field(repr=False)
    mod_revision: int
    create_revision: int = 0
    lease: int = 0


@dataclass(frozen=True)
class WatchBatch:
    """Events that belong together (one revision is never split), and the revision they lead to."""

    events: tuple[WatchEvent, ...]
    revision: int


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _unb64(text: str) -> bytes:
    return binascii.a2b_base64(text)


def prefix_end(prefix: str) -> bytes:
    """Return the first key after all that begin with `prefix` (etcd's `range_end`). Our keys are ASCII: no 0xff to
    carry."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def _span(key: str, prefix: bool) -> Json:
    return {"key": _b64(key)} | ({"range_end": _b64(prefix_end(key))} if prefix else {})


def _key_value(raw: Json) -> KeyValue:
    return KeyValue(
        key=_unb64(raw["key"]).decode(errors="backslashreplace"),  # anything may have written it
        value=_unb64(raw.get("value", "")),
        create_revision=int(raw.get("create_revision", 0)),
        mod_revision=int(raw.get("mod_revision", 0)),
        lease=int(raw.get("lease", 0)),
    )


def _revision(answer: Json) -> int:
    return int(answer["header"]["revision"])


def _of_etcd(answer: Json) -> Json:
    """Return the answer, if it has etcd's header."""
    _revision(answer)
    return answer


def _found(answer: Json) -> Range:
    kvs = tuple(_key_value(raw) for raw in answer.get("kvs", ()))
    return Range(kvs, _revision(answer), bool(answer.get("more", False)))


def _found_with_last(answer: Json) -> tuple[Range, bytes]:
    """Return the last key as it is: who wrote it may have written any bytes, and the next page begins after them."""
    kvs = answer.get("kvs", ())
    return _found(answer), _unb64(kvs[-1]["key"]) if kvs else b""


def _txn_result(answer: Json) -> TxnResult:
    return TxnResult(bool(answer.get("succeeded", False)), _revision(answer))


def _lease_id(answer: Json) -> int:
    return int(_of_etcd(answer)["ID"])


def _seconds_left(answer: Json) -> int:
    return int(_of_etcd(answer.get("result", answer)).get("TTL", 0))


def _compare(guard: Compare) -> Json:
    field = {"mod": "mod_revision", "create": "create_revision", "value": "value"}[guard.target]
    value = _b64(guard.value) if isinstance(guard.value, bytes) else str(guard.value)
    return {"key": _b64(guard.key), "target": guard.target.upper(), "result": "EQUAL", field: value}


def _request_op(op: Put | Delete) -> Json:
    if isinstance(op, Put):
        return {"request_put": {"key": _b64(op.key), "value": _b64(op.value), "lease": str(op.lease)}}
    return {"request_delete_range": _span(op.key, op.prefix)}


class Etcd(Gateway):
    """A client that any thread may use."""

    # -- reads ---------------------------------------------------------------------------------------------

    def get(self, key: str) -> KeyValue | None:
        """Return the key, or None if it does not exist."""
        kvs = self.range(key, prefix=False).kvs
        return kvs[0] if kvs else None

    def range(
        self, key: str, *, prefix: bool = True, limit: int = 0, keys_only: bool = False, changed_after: int = 0
    ) -> Range:
        """Return all keys that begin with `key` (or the one key), in key order; those written after a revision."""
        since = {"min_mod_revision": str(changed_after + 1)} if changed_after else {}
        body = _span(key, prefix) | {"limit": str(limit), "keys_only": keys_only, **since}
        return self.ask("/v3/kv/range", body, _found)

    def pages(self, prefix: str, changed_after: int = 0) -> Iterator[Range]:
        """Yield all keys that begin with `prefix`, or those written after a revision, page by page, all as of the first
        page's revision. Of much, one read would take longer than its time limit, and need memory for all at once.
        Raises EtcdError."""
        since = {"min_mod_revision": str(changed_after + 1)} if changed_after else {}
        body = _span(prefix, prefix=True) | since
        limit, revision = FIRST_PAGE_KEYS, 0
        while True:
            asked = {**body, "limit": str(limit), "revision": str(revision)}
            found, last = self.ask("/v3/kv/range", asked, _found_with_last)
            revision = revision or found.revision
            yield Range(found.kvs, revision, found.more)
            if not found.more or not last:
                return
            body = {**body, "key": _b64(last + b"\0")}
            size = sum(len(kv.value) + len(kv.key) for kv in found.kvs)
            limit = max(1, min(MAX_PAGE_KEYS, limit * PAGE_BYTES // max(1, size)))

    # -- writes --------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write one key; returns the revision of the store after it."""
        return self.ask("/v3/kv/put", {"key": _b64(key), "value": _b64(value), "lease": str(lease)}, _revision)

    def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete; returns how many keys were deleted."""
        return self.ask(
            "/v3/kv/deleterange", _span(key, prefix), lambda answer: int(_of_etcd(answer).get("deleted", 0))
        )

    def txn(
        self,
        guards: Sequence[Compare],
        then: Sequence[Put | Delete],
        otherwise: Sequence[Put | Delete] = (),
    ) -> TxnResult:
        """Return all of `then` if every guard holds, else all of `otherwise`. At most 128 operations (etcd's
        default)."""
        body = {
            "compare": [_compare(guard) for guard in guards],
            "success": [_request_op(op) for op in then],
            "failure": [_request_op(op) for op in otherwise],
        }
        return self.ask("/v3/kv/txn", body, _txn_result)

    # -- leases --------------------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> int:
        """Grant a lease; returns its id. etcd takes whole seconds, and grants at least 2 s with default settings."""
        return self.ask("/v3/lease/grant", {"TTL": str(max(1, round(ttl_s)))}, _lease_id)

    def keepalive(self, lease: int) -> int:
        """Renew; returns the seconds that the lease has now, 0 if it no longer exists."""
        return self.ask("/v3/lease/keepalive", {"ID": str(lease)}, _seconds_left)

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. Does nothing if the lease no longer exists."""
        try:
            self.ask("/v3/lease/revoke", {"ID": str(lease)}, _of_etcd)
        except EtcdRefusedError as error:
            if error.code != 5:  # grpc NOT_FOUND
                raise

    # -- maintenance----------------------------------------------------------------------------------------

    def compact(self, revision: int) -> None:
        """Delete the history before `revision`."""
        self.ask("/v3/kv/compaction", {"revision": str(revision)}, _of_etcd)

    def status(self) -> Mapping[str, Any]:
        """Version, database size and leader, by the endpoint that answers."""
        return self.ask("/v3/maintenance/status", {}, _of_etcd)

    def watch(self, key: str, *, prefix: bool = True) -> Watch:
        """Return all changes from now on, on a connection of its own. See `Watch`."""
        return Watch(self, _span(key, prefix))


class Watch:
    """An open watch: iterate for batches; `close()` from any thread ends the iteration.

    It misses no change that is made after it was opened. Raises EtcdUnavailableError when it ends, for any reason. To
    continue, read the current state; do not ask for the history in between. etcd may have compacted it, or have lost
    its data, and then it counts revisions from 1 again under the same cluster id.
    """

    def __init__(self, etcd: Etcd, span: Json) -> None:
        self._etcd = etcd
        self._span = span
        self.endpoint, self._stream = etcd.open_stream("/v3/watch", {"create_request": span})
        self._closed = False
        self._begun = False
        try:
            confirmed, *self._early = self._results()
            if not confirmed.created:
                raise EtcdUnavailableError(f"watch not begun: {self.endpoint} gives no answer of etcd")
        except EtcdError:
            self.close()
            raise
        self._stream.socket.settimeout(None)

    def close(self) -> None:
        """Stop the iteration."""
        self._closed = True
        # shutdown(), not close(): only that wakes a thread that is blocked in recv().
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)
        if not self._begun:
            self._stream.close()

    def ping(self) -> None:
        """Do a linearizable read on this watch's own endpoint.

        Raises EtcdUnavailableError if it hangs, cannot be reached, or has lost its peers: then its watch is silent,
        and looks like a watch without changes. (etcd's own progress notifications come every 10 minutes, and the
        gateway cannot request them.)
        """
        # A refusal, such as a lack of permission, proves that the endpoint works.
        with contextlib.suppress(EtcdRefusedError):
            body = self._span | {"limit": "1", "keys_only": True}
            self._etcd.ask("/v3/kv/range", body, _of_etcd, endpoint=self.endpoint)

    def __iter__(self) -> Iterator[WatchBatch]:
        self._begun = True
        try:
            results, self._early = self._early, []
            while not self._closed:
                events = tuple(event for result in results for event in result.events)
                if events:
                    # Not the header's revision: for a watch that lags, that is the store's, which is ahead of it.
                    yield WatchBatch(events, events[-1].mod_revision)
                results = self._results()
        finally:
            self._stream.close()

    def _results(self) -> list[_WatchResult]:
        """Return all results that have arrived, at least one; none if the watch was closed."""
        try:
            found = [decoded(line, _watch_result) for line in self._read_lines()]
        except http.client.HTTPException as error:
            raise EtcdUnavailableError(f"watch broken: {error}") from error
        for result in found:
            # etcd 3.5 says of a watch whose login has ended what it says of one that is not allowed.
            if LOGIN_ENDED in result.problem or "permission denied" in result.problem:
                self._etcd.forget_login()
            if result.problem:
                raise EtcdUnavailableError(f"watch {result.problem}")
        return found

    def _read_lines(self) -> list[bytes]:
        try:
            lines = self._stream.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if self._closed:
                return []
            raise EtcdUnavailableError(f"watch broken: {error or type(error).__name__}") from error
        if lines or self._closed:
            return lines
        raise EtcdUnavailableError("watch broken: etcd closed the connection")


@dataclass(frozen=True)
class _WatchResult:
    created: bool
    events: tuple[WatchEvent, ...] = ()
    # Why the watch has ended, or "".
    problem: str = ""


def _watch_result(message: Json) -> _WatchResult:
    result = message.get("result", {})
    if int(result.get("compact_revision", 0)):
        return _WatchResult(False, (), "cancelled: it fell behind, and etcd compacted what it had not sent yet")
    if "error" in message or result.get("canceled"):
        reason = message.get("error") or result.get("cancel_reason") or "no reason given"
        return _WatchResult(False, (), f"broken: {reason}")
    _of_etcd(result)
    return _WatchResult(bool(result.get("created")), tuple(_watch_event(raw) for raw in result.get("events", ())))


def _watch_event(raw: Json) -> WatchEvent:
    kv = _key_value(raw["kv"])
    value = None if raw.get("type") == "DELETE" else kv.value
    return WatchEvent(kv.key, value, kv.mod_revision, kv.create_revision, kv.lease)
