"""`python -m spotsup_trainer.etcd.reach`: whether this node reaches etcd, and if not, why, and what to do.

Bootstrap runs it before anything that takes long: TCP, TLS, login, one read of an own key. It prints one sentence per
endpoint that fails, and exits with 1 if all do, after LIMIT_S; after MAX_S whatever name servers and peers do.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import socket
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from spotsup_trainer.etcd.access import EtcdAccess, read_access
from spotsup_trainer.etcd.client import EtcdError
from spotsup_trainer.wire import Keys

LIMIT_S = 8.0
# Time limits of sockets end no name server's silence, and no peer that sends a byte now and then. A second is left for
# the start of the interpreter: within 10 s in all.
MAX_S = 9.0
# etcd may restart at this moment, or a tunnel begin: what may pass is tried again.
_RETRY_S = 0.5
_CALL_S = 2.5
# A certificate is backdated by a day, so a clock has to be wrong by more to matter.
_WRONG_CLOCK_S = 3600.0
# OpenSSL's verify codes: https://docs.openssl.org/3.0/man1/openssl-verification-options/, x509_vfy.h.in
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = (62, 64)
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")

OPEN_PORT = 'let this machine\'s network in (firewall, security group), or set `reach = "ssh"` for its cloud'


class UnreachedError(Exception):
    """Why one endpoint cannot be used: a sentence with its remedy. `passing`: it may pass by itself."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


def reach(endpoint: str, access: EtcdAccess, key: str) -> None:
    """Read `key` by one endpoint. Raises UnreachedError."""
    url = urlsplit(endpoint)
    host, port = url.hostname or "", url.port or 2379
    with _connected(host, port) as raw:
        if url.scheme == "https":
            _shake_hands(raw, host, port, access)
        else:
            _refuse_tls(raw, host, port)
    _read(endpoint, f"{host}:{port}", access, key)


def _connected(host: str, port: int) -> socket.socket:
    where = f"{host}:{port}"
    try:
        return socket.create_connection((host, port), timeout=_CALL_S)
    except socket.gaierror as error:
        raise UnreachedError(
            f"this machine knows no address of {host} ({error.strerror}): name etcd by address in etcd.node_endpoints, "
            "or repair the machine's DNS"
        ) from error
    except socket.timeout as error:
        raise UnreachedError(
            f"{where} does not answer within {_CALL_S:g} s: a firewall between drops it: {OPEN_PORT}", passing=True
        ) from error
    except ConnectionRefusedError as error:
        raise UnreachedError(
            f"{where} refuses connections: etcd does not run there, listens on another port or on loopback only "
            f"(--listen-client-urls), or a firewall rejects it: check etcd.node_endpoints, then {OPEN_PORT}",
            passing=True,
        ) from error
    except OSError as error:
        no_route = error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
        why = "this machine has no route to" if no_route else "no connection to"
        raise UnreachedError(f"{why} {where} ({error.strerror or error}): {OPEN_PORT}", passing=True) from error


def _shake_hands(raw: socket.socket, host: str, port: int, access: EtcdAccess) -> None:
    where = f"{host}:{port}"
    try:
        context = ssl.create_default_context(cadata=access.ca or None)
        context.wrap_socket(raw, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        raise UnreachedError(_about_certificate(error, host, port)) from error
    except ssl.SSLError as error:
        if error.reason in _NO_TLS or _answers_plainly(host, port):
            raise UnreachedError(
                f"what answers at {where} speaks no TLS: start etcd with --cert-file and --key-file, or correct the "
                "port"
            ) from error
        raise UnreachedError(
            f"no TLS with {where} ({error.reason or error}): does etcd ask for a client certificate, or is it another "
            "server?"
        ) from error
    except OSError as error:
        raise UnreachedError(
            f"{where} accepts connections, but ends them before TLS begins ({error}): is etcd behind it? {OPEN_PORT}",
            passing=True,
        ) from error


def _about_certificate(error: ssl.SSLCertVerificationError, host: str, port: int) -> str:
    code, where = error.verify_code, f"{host}:{port}"
    if code in _OTHER_NAME:
        return (
            f"the certificate of {where} is not for {host}: renew it with this name (`spotsupd etcd-certificates "
            f"FOLDER --name {host}`), or use another in etcd.node_endpoints"
        )
    if code in {_NOT_YET_VALID, _EXPIRED}:
        off_s = _clock_off_s(host, port)
        if abs(off_s) > _WRONG_CLOCK_S:
            ahead = "ahead of" if off_s > 0 else "behind"
            return (
                f"this machine's clock is {abs(off_s) / 3600:.1f} h {ahead} that of {where}, so the certificate seems "
                "not to be valid: set the clock (NTP), or choose an image that does"
            )
        ended = "has expired" if code == _EXPIRED else "is not valid yet"
        return f"the certificate of {where} {ended}: renew it with `spotsupd etcd-certificates`"
    return (
        f"the certificate of {where} is not signed by the CA that this node was given ({error.verify_message}): "
        "etcd.ca has to name the CA that signed it; or another server answers there"
    )


def _clock_off_s(host: str, port: int) -> float:
    """Return how far this clock is ahead of the server's, in seconds; 0 if it does not say. Nothing is believed but
    that."""
    with contextlib.suppress(OSError, ValueError, TypeError, IndexError, StopIteration):
        with (
            socket.create_connection((host, port), timeout=_CALL_S) as raw,
            _unverified().wrap_socket(raw) as connection,
        ):
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            head = connection.recv(4096).decode("latin-1")
        date = next(line for line in head.split("\r\n") if line.lower().startswith("date:")).partition(":")[2]
        return (datetime.now(timezone.utc) - parsedate_to_datetime(date.strip())).total_seconds()
    return 0.0


def _refuse_tls(raw: socket.socket, host: str, port: int) -> None:
    """etcd hangs up without a word when it speaks TLS and is asked without."""
    with contextlib.suppress(OSError):
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        if raw.recv(1):
            return
    with contextlib.suppress(OSError):
        with socket.create_connection((host, port), timeout=_CALL_S) as again, _unverified().wrap_socket(again):
            pass
        raise UnreachedError(
            f"etcd at {host}:{port} speaks TLS only: its URL in etcd.node_endpoints has to begin with https://"
        )


def _answers_plainly(host: str, port: int) -> bool:
    """Depending on its version, etcd answers TLS in plain text with an error, or hangs up."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_CALL_S) as raw:
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        return raw.recv(5) == b"HTTP/"
    return False


def _unverified() -> ssl.SSLContext:
    """Return a context for what is asked of a server that is not believed."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _read(endpoint: str, where: str, access: EtcdAccess, key: str) -> None:
    etcd = access.connect([endpoint], _CALL_S)
    try:
        etcd.get(key)
    except EtcdError as error:
        raise _about_login(str(error), where, access) from error
    finally:
        etcd.close()


def _about_login(problem: str, where: str, access: EtcdAccess) -> UnreachedError:
    if "authentication failed" in problem:
        return UnreachedError(
            f"etcd at {where} does not know the job's user {access.user!r}, or not with this password: has the job "
            "ended, do all daemons have the same cluster.key, and is this the daemons' own etcd?"
        )
    if "authentication is not enabled" in problem:
        return UnreachedError(f"etcd at {where} has no users: run `spotsupd etcd-users`, or is it another etcd?")
    if "user name is empty" in problem:
        return UnreachedError(f"etcd at {where} asks for a user, and the daemon has none: set etcd.user")
    if "permission denied" in problem:
        return UnreachedError(
            f"the job's user {access.user!r} may not read its own keys at {where}: does etcd.node_endpoints name "
            "the daemons' own etcd?"
        )
    return UnreachedError(
        f"no answer of etcd at {where} ({problem}): is a proxy in between, or etcd starting?", passing=True
    )


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="spotsup-reach")
    parser.add_argument("--etcd", required=True, help="endpoints, separated by commas")
    parser.add_argument("--access", default="", help="a file with the access to etcd")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--node", required=True)
    options = parser.parse_args(argv)
    try:
        access = read_access(options.access)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    trying = _Trying(options.etcd.split(","), access, Keys(options.cluster).agent(options.job, options.node))
    trying.start()
    trying.join(MAX_S)
    if trying.reached:
        return 0
    problems = list(trying.problems.values())
    if trying.is_alive():
        why = "a name server is silent, or what answers there is no etcd"
        problems.append(f"{trying.asked} does not answer within {MAX_S:g} s: {why}")
    sys.stderr.write("".join(f"etcd cannot be used from this machine: {problem}\n" for problem in problems))
    return 1


class _Trying(threading.Thread):
    """Tries endpoints until one is reached, or nothing is to be expected any more."""

    def __init__(self, endpoints: Sequence[str], access: EtcdAccess, key: str) -> None:
        super().__init__(name="reach", daemon=True)
        self._endpoints, self._access, self._key = endpoints, access, key
        self.reached = False
        # The one that is being asked.
        self.asked = ""
        # What was wrong the last time, by endpoint.
        self.problems: dict[str, str] = {}

    def run(self) -> None:
        """Ends by itself after LIMIT_S, but for what blocks."""
        deadline = time.monotonic() + LIMIT_S
        passing = True
        while passing and not self.reached:
            passing = False
            for endpoint in self._endpoints:
                self.asked = endpoint
                try:
                    reach(endpoint, self._access, self._key)
                except UnreachedError as error:
                    self.problems[endpoint] = str(error)
                    passing = passing or error.passing
                else:
                    self.reached = True
                    return
                if time.monotonic() + _CALL_S > deadline:
                    return
            time.sleep(_RETRY_S)


if __name__ == "__main__":
    sys.exit(main())
