"""The connection to etcd: its JSON gateway over HTTP, several endpoints, TLS, logins. Standard library only.

The operations are in client.py. https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spotsup_trainer.etcd.stream import LineStream
from spotsup_trainer.etcd.tls import TlsSocket

LOGIN_ENDED = "invalid auth token"
# A user or a role was changed while the request was under way, whosever it was: ErrAuthOldRevision, in the words of
# api/v3rpc/rpctypes/error.go, and since etcd 3.5 also of server/auth/store.go. Nothing was done, and the same request
# is accepted when it is sent again.
_USERS_CHANGED = ("revision of auth store is old", "revision in header is old")
_MAX_REPEATS = 8

# Far more than all keys of 10,000 nodes. What sends more is not etcd.
MAX_ANSWER_BYTES = 512 * 2**20
_PIECE_BYTES = 1 << 16
# grpc's codes that say nothing about the request: cancelled, unknown, deadline, internal, unavailable, data loss.
_NOT_ITS_FAULT = frozenset({1, 2, 4, 13, 14, 15})

Json = dict[str, Any]
T = TypeVar("T")

log = logging.getLogger(__name__)


class EtcdError(Exception):
    """A call to etcd failed."""


class EtcdUnavailableError(EtcdError):
    """No endpoint answered in time. A write that raises this may or may not have happened."""


class EtcdRefusedError(EtcdError):
    """etcd refused: bad request, no permission, lease not found, out of space. `code`: grpc's."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class _NotEtcdError(http.client.HTTPException):
    """Something else answered, such as a proxy or a login page: the endpoint counts as one that does not answer."""


def decoded(text: bytes, read: Callable[[Json], T]) -> T:
    """Return what `read` finds in an answer. Raises an HTTPException if that is not etcd's, whatever it is instead."""
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise TypeError("etcd's answers are objects")
        return read(parsed)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # JSON is not quoted: it may hold a token, or a job's environment.
        shown = "JSON of another form" if text.lstrip()[:1] in {b"{", b"["} else repr(text[:60])
        raise _NotEtcdError(f"this is no answer of etcd: {shown}") from error


def _text_of(path: str) -> str:
    # Comments may be in any encoding, and a file that is not PEM is for OpenSSL to refuse.
    return Path(path).read_bytes().decode("ascii", errors="ignore")


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files; `ca_text` is what such a file holds. An etcd with `--client-cert-auth` needs cert and key.

    When the file `ca` is another one, the next connection trusts what it holds then. `read_ca`: its certificates as PEM
    text, where it holds more than these.
    """

    ca: str = ""
    cert: str | None = None
    key: str | None = None
    ca_text: str = ""
    read_ca: Callable[[str], str] = _text_of


class Gateway:
    """For any number of threads. Keeps connections alive, one per concurrent call, and tries the endpoints in turn."""

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
        self._trust = _Trust(tls) if tls else None
        self._first = 0  # index of the endpoint to try first: the one that answered last
        self._idle: dict[int, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close idle connections; those in use are closed when their calls end."""
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def forget_login(self) -> None:
        """Log in again with the next call: the token has expired."""
        self._token = None

    def call(self, path: str, body: Json, *, endpoint: str | None = None) -> Json:
        """POST, as `ask`; returns the answer as it is."""
        return self.ask(path, body, dict, endpoint=endpoint)

    def ask(self, path: str, body: Json, read: Callable[[Json], T], *, endpoint: str | None = None) -> T:
        """POST to the first endpoint that answers, or to `endpoint` only. Each is tried once, for `timeout_s`.

        `read` takes the answer apart, and raises whatever it likes where it is not etcd's: then the next one is tried.
        """
        payload = json.dumps(body).encode()
        problems = []
        for index in self._in_turn() if endpoint is None else (self.endpoints.index(endpoint),):
            try:
                answer = decoded(self._post(index, path, payload), read)
            except (OSError, http.client.HTTPException) as error:
                problems.append(self._failed(index, error))
                continue
            if endpoint is None:
                self._first = index
            return answer
        raise EtcdUnavailableError(f"etcd does not answer ({'; '.join(problems)})")

    def _in_turn(self) -> Sequence[int]:
        first, count = self._first, len(self.endpoints)
        return [(first + turn) % count for turn in range(count)]

    def _failed(self, index: int, error: Exception) -> str:
        """Describe an endpoint that did not answer, and try others first from now on."""
        if self._first == index:
            self._first = (index + 1) % len(self.endpoints)
        return f"{self.endpoints[index]}: {error or type(error).__name__}"

    def _post(self, index: int, path: str, payload: bytes, *, may_login: bool = True) -> bytes:
        if self._credentials and self._token is None and may_login:
            self._login(index)
        for _ in range(_MAX_REPEATS):
            status, text = self._exchange(index, path, payload)
            if status == 200:
                return text
            message, code = _error_of(status, text)
            if not any(each in message for each in _USERS_CHANGED):
                break
        # Simple tokens expire after 5 minutes without use: log in again, once.
        if self._credentials and may_login and (status == 401 or LOGIN_ENDED in message):
            self._login(index)
            return self._post(index, path, payload, may_login=False)
        raise _refusal(status, message, code)

    def _login(self, index: int) -> None:
        assert self._credentials is not None
        name, password = self._credentials
        self._token = None  # with an expired one, etcd would refuse even the login
        status, text = self._exchange(
            index, "/v3/auth/authenticate", json.dumps({"name": name, "password": password}).encode()
        )
        if status != 200:
            message, code = _error_of(status, text)
            if code not in _NOT_ITS_FAULT:  # without a leader nobody is logged in
                message = f"etcd does not accept user {name!r}: {message}"
            raise _refusal(status, message, code)
        self._token = decoded(text, _token_of)

    def _exchange(self, index: int, path: str, payload: bytes) -> tuple[int, bytes]:
        kept = self._take(index)
        if kept is not None:
            try:
                return self._round_trip(index, kept, path, payload)
            except socket.timeout:  # TimeoutError, under the name that Python 3.9 has for it too
                raise
            except (OSError, http.client.HTTPException):
                # The server may have closed the connection while it was idle: try again on a new one. All our
                # requests may be repeated: puts are absolute, transactions guarded.
                pass
        return self._round_trip(index, self.connect(index), path, payload)

    def _round_trip(
        self, index: int, connection: http.client.HTTPConnection, path: str, payload: bytes
    ) -> tuple[int, bytes]:
        try:
            connection.request("POST", path, payload, {"Content-Type": "application/json", **self._headers()})
            response = connection.getresponse()
            answer = response.status, _body(response)
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

    def connect(self, index: int, *, watch: bool = False) -> http.client.HTTPConnection:
        """Return a new connection to endpoint `index`. It sends small writes at once and detects a dead peer in about
        10 s."""
        url = urlsplit(self.endpoints[index])
        host, port = url.hostname or "127.0.0.1", url.port or 2379
        context = self._trust.context() if self._trust else None
        connection = (
            http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=context)
            if url.scheme == "https" and not watch
            else http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        )
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
            connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        if url.scheme == "https" and watch:
            try:
                connection.sock = TlsSocket(connection.sock, context or ssl.create_default_context(), host)
            except BaseException:
                connection.close()
                raise
        return connection

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def open_stream(self, path: str, body: Json) -> tuple[str, LineStream]:
        """Return a streamed response (watch), and the endpoint that sends it. The caller closes it."""
        problems = []
        for index in self._in_turn():
            try:
                if self._credentials and self._token is None:
                    self._login(index)
                return self.endpoints[index], self._begin(index, path, body)
            except (OSError, http.client.HTTPException) as error:
                problems.append(self._failed(index, error))
        raise EtcdUnavailableError(f"etcd does not answer ({'; '.join(problems)})")

    def _begin(self, index: int, path: str, body: Json) -> LineStream:
        connection = self.connect(index, watch=True)
        try:
            connection.request("POST", path, json.dumps(body).encode(), self._headers())
            response = connection.getresponse()
            if response.status == 200:
                return LineStream(connection, response)
            message, code = _error_of(response.status, _body(response))
        except BaseException:
            connection.close()
            raise
        connection.close()
        self._token = None if response.status == 401 else self._token
        raise _refusal(response.status, message, code)


def _body(response: http.client.HTTPResponse) -> bytes:
    if response.length is not None and response.length <= MAX_ANSWER_BYTES:
        return response.read()
    pieces, size = [], 0
    while piece := response.read(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise _NotEtcdError(f"this is no answer of etcd: more than {MAX_ANSWER_BYTES} bytes")
    return b"".join(pieces)


def _error_of(status: int, text: bytes) -> tuple[str, int]:
    """Message and grpc's code. Raises an HTTPException if it is not etcd that refuses."""
    try:
        return decoded(text, _reason)
    except _NotEtcdError as error:
        raise _NotEtcdError(f"HTTP {status}, {error}") from error


def _refusal(status: int, message: str, code: int) -> Exception:
    """Return an HTTPException, as of an endpoint that does not answer, if another one may do what is asked."""
    if code in _NOT_ITS_FAULT:  # no leader, shutting down, overloaded
        return http.client.HTTPException(f"HTTP {status} {message}")
    return EtcdRefusedError(message, code)


def _reason(parsed: Json) -> tuple[str, int]:
    error = parsed.get("error")
    if isinstance(error, dict):  # the format of streams, among them keepalive
        return str(error["message"]), _positive(error["grpc_code"])
    return str(error or parsed["message"]), _positive(parsed["code"])


def _positive(code: object) -> int:
    if not isinstance(code, int) or code <= 0:
        raise TypeError("etcd says why it refuses")
    return code


def _token_of(answer: Json) -> str:
    token = answer["token"]
    if not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise TypeError("a token goes into a header")
    return token


class _Trust:
    """Which certificates of etcd are accepted. The CA may be replaced while programs run for weeks."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._seen = _file_version(tls.ca)
        self._context = _ssl_context(tls)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection. A file that cannot be used is as if it had not changed."""
        with self._lock:
            seen = _file_version(self._tls.ca)
            if seen != self._seen:
                self._seen = seen
                try:
                    self._context = _ssl_context(self._tls)
                except (OSError, ValueError) as error:
                    log.warning("the CA of etcd in %s cannot be used (%s); the one before counts", self._tls.ca, error)
            return self._context


def _file_version(path: str) -> tuple[int, ...]:
    """Another one when a file was written or replaced; () if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _ssl_context(tls: Tls) -> ssl.SSLContext:
    ca = tls.read_ca(tls.ca) if tls.ca else tls.ca_text
    if tls.ca and not ca.strip():
        raise ssl.SSLError(f"no certificate in {tls.ca}")  # else the system's would count
    context = ssl.create_default_context(cadata=ca or None)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    return context
