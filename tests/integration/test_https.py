"""The API over HTTPS: certificates, and clients that are slow, many, or do not speak HTTP as it is written."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from supervisor.api import serving
from supervisor.api.security.tls import Certificate, certificate_of, names_of, own_ca, own_files
from supervisor.config import check_paths, parse_config
from supervisor.errors import StartError, UsageError
from tests.sim.harness import service
from tests.support.https import ROOT, TOKEN, Https
from tests.support.machines import wait_for

BEARER = f"authorization: bearer {TOKEN}\r\n"


@pytest.fixture
def https(tmp_path: Path) -> Iterator[Https]:
    with Https.started(tmp_path) as made:
        yield made


# -- certificates ------------------------------------------------------------------------------------------------------


def test_the_daemon_makes_its_certificate_and_shows_the_ca_to_everyone(https: Https) -> None:
    status, row = https.get("/v1/ca", "")
    assert (status, row["ca"]) == (200, own_files(https.config).ca.read_text())
    for name in ("localhost", "desk.example"):
        with https.connect(name=name) as connection:
            assert connection.version() in {"TLSv1.2", "TLSv1.3"}
    with pytest.raises(ssl.SSLCertVerificationError):
        https.connect(name="another.example")
    assert https.get("/v1/me") == (200, {"name": "ann", "role": "admin", "token": ROOT.id})
    assert https.get("/v1/me", "none")[0] == 401


def test_old_versions_of_tls_are_refused(https: Https) -> None:
    old = https.trusting()
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        https.connect(old)


def test_the_certificate_has_the_names_under_which_it_is_reached() -> None:
    def names(**api: Any) -> list[str]:
        return list(names_of(parse_config({"api": api}, "it"), "desk"))

    assert names(listen="0.0.0.0:8443") == ["desk"]
    assert names(listen="[::]:8443", names=["a.example", "10.0.0.5"]) == ["a.example", "10.0.0.5", "desk"]
    assert names(listen="10.0.0.5:8443", names=["10.0.0.5"]) == ["10.0.0.5", "desk"]


def write(ca: trustme.CA, folder: Path) -> tuple[Path, Path]:
    issued = ca.issue_cert("localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return cert, key


def test_given_files_are_used_and_taken_again_when_they_are_renewed(tmp_path: Path) -> None:
    cert, key = write(trustme.CA(), tmp_path)
    config = parse_config({"api": {"listen": "127.0.0.1:1", "cert": str(cert), "key": str(key)}}, "it")
    certificate = certificate_of(config, "")
    assert own_ca(config) == ""
    certificate.follow(1e6)
    before = certificate._seen
    key.write_text("damaged")
    certificate.follow(2e6)
    assert certificate._seen == before, "a damaged one is not taken, and the daemon goes on"
    write(trustme.CA(), tmp_path)
    os.utime(cert, (1.0, 1.0))
    certificate.follow(3e6)
    assert certificate._seen != before


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be read: No such file"):
        Certificate(tmp_path / "none", tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(StartError, match=r"api\.cert and api\.key .* cannot be used"):
        Certificate(tmp_path / "empty", tmp_path / "empty")
    with pytest.raises(UsageError, match="cert and key belong together"):
        parse_config({"api": {"cert": "/a"}}, "it")
    with pytest.raises(UsageError, match=r"api\.cert is 'a'"):
        check_paths(parse_config({"api": {"cert": "a", "key": "b"}}, "it"))


# -- hostile clients ---------------------------------------------------------------------------------------------------

PAUSE = "POST /v1/daemon/pause HTTP/1.1\r\nhost: x\r\n"
HEALTH = "GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
SMUGGLED: dict[str, str] = {
    "a length and chunks": f"{PAUSE}{BEARER}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": f"{PAUSE}{BEARER}content-length: 2\r\ncontent-length: 40\r\n\r\n{{}}",
    "a bare line feed": f"{PAUSE}{BEARER}content-length: 2\n x: y\r\n\r\n{{}}",
    "a space before the colon": f"{PAUSE}{BEARER}content-length : 2\r\n\r\n{{}}",
    "a folded header": f"{PAUSE}connection: close\r\nx: y\r\n {BEARER}content-length: 2\r\n\r\n{{}}",
    "a zero byte": f"{PAUSE}x: \0\r\n{BEARER}content-length: 2\r\n\r\n{{}}",
    "a head without end": f"{PAUSE}{'x: y' * 20000}",
    "another protocol": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an upgrade": "GET /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n",
    "a chunk of its own size": f"{PAUSE}{BEARER}transfer-encoding: chunked\r\nconnection: close\r\n\r\nfffffffff\r\n",
}


@pytest.mark.parametrize("attack", SMUGGLED)
def test_a_request_that_can_be_read_in_two_ways_is_not_carried_out(https: Https, attack: str) -> None:
    answer = https.raw(SMUGGLED[attack])
    statuses = set(re.findall(rb"HTTP/1.1 (\d+)", answer))
    assert statuses
    assert statuses <= {b"400", b"401", b"413"}, answer
    assert service(https.world).daemons.paused is None
    assert https.get("/v1/health")[0] == 200


def test_a_client_cannot_say_that_it_is_another_one(https: Https) -> None:
    spoofed = "x-forwarded-for: uid\r\nx-forwarded-port: 0\r\nforwarded: for=uid\r\n"
    assert b" 401 " in https.raw(f"{HEALTH}{spoofed}\r\n")[:40]


def slow_clients() -> dict[str, Callable[[ssl.SSLSocket], None]]:
    def one_byte_a_time(connection: ssl.SSLSocket) -> None:
        for byte in (PAUSE + BEARER).encode():
            connection.sendall(bytes([byte]))
            time.sleep(0.02)

    def a_body_that_does_not_come(connection: ssl.SSLSocket) -> None:
        connection.sendall(f"{PAUSE}{BEARER}content-length: 20\r\n\r\n{{".encode())
        while True:
            connection.sendall(b" ")
            time.sleep(0.1)

    def a_second_head_that_does_not_come(connection: ssl.SSLSocket) -> None:
        connection.sendall(f"GET /v1/health HTTP/1.1\r\nhost: x\r\n{BEARER}\r\n".encode())
        assert b" 200 " in connection.recv(65536)[:20]
        one_byte_a_time(connection)

    return {
        "nothing": lambda _: None,
        "a second head that does not come": a_second_head_that_does_not_come,
        "one byte a time": one_byte_a_time,
        "a body that does not come": a_body_that_does_not_come,
    }


@pytest.mark.parametrize("kind", slow_clients())
def test_a_slow_client_is_sent_away(https: Https, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.4)
    with https.connect() as connection:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            slow_clients()[kind](connection)
            assert connection.recv(65536) == b""
        assert time.monotonic() - began < 10.0
    assert https.get("/v1/health")[0] == 200


def test_a_client_that_asks_often_keeps_its_connection(https: Https, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.2)
    with contextlib.closing(
        http.client.HTTPSConnection("localhost", https.port, context=https.trusting(), timeout=20.0)
    ) as connection:
        connection.connect()
        first, began = connection.sock, time.monotonic()
        while time.monotonic() - began < 1.0:  # longer than several looks
            connection.request("GET", "/v1/health", headers={"authorization": f"Bearer {TOKEN}"})
            reply = connection.getresponse()
            assert (reply.status, bool(reply.read())) == (200, True)
            time.sleep(0.11)  # below 20 requests a second
        assert connection.sock is first


def test_who_does_not_begin_tls_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.4)
    with Https.started(tmp_path) as made, socket.create_connection(("127.0.0.1", made.port), 20.0) as connection:
        assert connection.recv(1) == b""


def test_one_address_does_not_take_all_connections(https: Https, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_PER_ADDRESS", 2)
    first, second = https.connect(), https.connect()

    def open_now() -> int:
        return len(https.server._server.server_state.connections)

    wait_for(lambda: open_now() == 2, "both connections")
    with https.connect() as third:
        assert third.recv(1) == b""
    first.close()
    second.close()
    wait_for(lambda: open_now() == 0, "the end of both")
    assert https.get("/v1/health")[0] == 200


def test_an_idle_connection_takes_little_memory(https: Https) -> None:
    with https.connect():
        connections = https.server._server.server_state.connections
        wait_for(lambda: len(connections) == 1, "the connection")
        (found,) = connections
        assert len(found.transport._ssl_protocol._ssl_buffer) == serving.TLS_BUFFER_BYTES  # type: ignore[attr-defined]


def test_an_answer_waits_for_no_acknowledgement(https: Https) -> None:
    with https.connect():
        connections = https.server._server.server_state.connections
        wait_for(lambda: len(connections) == 1, "the connection")
        (found,) = connections
        own = found.transport.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_its_own_certificate_lasts_as_long_as_etcds(https: Https) -> None:
    from supervisor.journal.certificates import CERTIFICATE_DAYS, certificates_in

    (found,) = certificates_in(own_files(https.config).cert)
    left = found.not_valid_after_utc - dt.datetime.now(dt.UTC)
    assert left > dt.timedelta(days=CERTIFICATE_DAYS - 1)
