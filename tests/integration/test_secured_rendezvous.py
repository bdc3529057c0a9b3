"""Nodes of a job on an etcd with TLS and users: tokens end, etcd restarts, the certificate is renewed; none loses its
place."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from spotsup_trainer.etcd.access import EtcdAccess, read_access
from spotsup_trainer.etcd.trust import adopt
from spotsup_trainer.rendezvous.client import RendezvousClient, RendezvousConfig
from spotsup_trainer.rendezvous.view import Rules
from spotsup_trainer.wire import CaBundle, Hint, encode

from supervisor.journal.certificates import TlsFiles, ensure_certificates
from tests.support.secured_etcd import KEYS, SecuredEtcd, a_job, secured_etcd

pytestmark = pytest.mark.long

JOB = a_job()
TTL_S = 4.0  # a busy machine may stop all of this for longer than two seconds


@dataclass
class Node:
    etcd: SecuredEtcd
    client: RendezvousClient

    def sees(self, reason: str) -> bool:
        hint = self.client.snapshot().view.hint
        return hint is not None and hint.reason == reason

    def publish(self, reason: str) -> None:
        with closing(self.etcd.client()) as daemon:
            daemon.put(KEYS.hint(JOB.name), encode(Hint(("a",), 1, 1, reason)))


@contextmanager
def member(etcd: SecuredEtcd, access: EtcdAccess) -> Iterator[Node]:
    config = RendezvousConfig("test", JOB.name, "a", "a-1", "127.0.0.1", (etcd.endpoint,), TTL_S, access)
    client = RendezvousClient(config, Rules(1, 1))
    client.open()
    client.announce(state="waiting", store_port=1)
    try:
        yield Node(etcd, client)
    finally:
        client.close()


def eventually(what: str, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def has_key(node: Node) -> bool:
    with closing(node.etcd.client()) as daemon:
        return daemon.get(KEYS.member(JOB.name, "a")) is not None


def test_a_member_outlives_its_tokens_and_a_restart_of_etcd(tmp_path: Path) -> None:
    with secured_etcd(tmp_path, ["--auth-token-ttl", "1"]) as etcd, member(etcd, etcd.access(JOB)) as node:
        node.publish("first")
        eventually("the first hint", lambda: node.sees("first"))
        revisions = set()
        began = time.monotonic()
        while time.monotonic() < began + 2 * TTL_S:  # by then the lease has ended, unless somebody could renew it
            with closing(etcd.client()) as daemon:
                found = daemon.get(KEYS.member(JOB.name, "a"))
                assert found is not None
                revisions.add(found.create_revision)
            time.sleep(0.2)
        assert len(revisions) == 1
        etcd.server.kill()  # its tokens were in its memory
        assert etcd.server.start()
        node.publish("second")
        eventually("the second hint", lambda: node.sees("second"))
        eventually("its key", lambda: has_key(node))


def test_a_renewed_certificate_disturbs_no_member_and_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    with secured_etcd(tmp_path) as etcd, member(etcd, etcd.access(JOB)) as node:
        node.publish("first")
        eventually("the first hint", lambda: node.sees("first"))
        before, outages = shown(etcd), node.client._mirror.view().outages
        in_a_year = dt.datetime.now(dt.UTC) + dt.timedelta(days=300)
        assert "made a certificate for localhost" in ensure_certificates(etcd.tls, ("etcd.example",), in_a_year)
        # Valid from today's point of view, too, as a renewal in time is.
        assert ensure_certificates(etcd.tls, ("other.example",), dt.datetime.now(dt.UTC))
        after = shown(etcd)
        assert after.serial_number != before.serial_number
        assert after.public_key() == before.public_key()
        node.publish("second")
        eventually("the second hint", lambda: node.sees("second"))
        assert node.client._mirror.view().outages == outages
        assert has_key(node)
        with member(etcd, etcd.access(JOB)) as newcomer:
            eventually("a newcomer", lambda: newcomer.sees("second"))


def shown(etcd: SecuredEtcd) -> x509.Certificate:
    """The certificate that etcd shows to a new connection."""
    context = ssl.create_default_context(cadata=etcd.ca)
    host, port = etcd.endpoint.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port))) as raw,
        context.wrap_socket(raw, server_hostname=host) as connection,
    ):
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")


def test_a_member_takes_the_ca_that_the_daemon_names_if_it_verifies_etcd(tmp_path: Path) -> None:
    with secured_etcd(tmp_path) as etcd:
        file = tmp_path / "access.json"
        file.write_bytes(etcd.access(JOB).encode())
        before = etcd.ca
        with member(etcd, read_access(str(file))) as node, closing(etcd.client()) as daemon:
            node.publish("first")
            eventually("the first hint", lambda: node.sees("first"))
            new, now = TlsFiles(tmp_path / "next"), dt.datetime.now(dt.UTC)
            ensure_certificates(new, (), now)
            etcd.tls.ca.write_text(before + new.ca.read_text())
            daemon.put(KEYS.ca(JOB.name), encode(CaBundle(etcd.ca)))
            eventually("both CAs", lambda: node.sees("first") and read_access(str(file)).ca == etcd.ca)
            assert file.stat().st_mode & 0o777 == 0o600
            etcd.tls.ca_key.write_bytes(new.ca_key.read_bytes())
            assert "made a certificate for" in ensure_certificates(etcd.tls, (), now), "by the new CA"
            with pytest.raises(ssl.SSLCertVerificationError):
                adopt(str(file), before, [etcd.endpoint], nullcontext())
            assert read_access(str(file)).ca == etcd.ca
            etcd.server.kill()  # its connections end; it shows a certificate that the old CA did not sign
            assert etcd.server.start()
            node.publish("second")
            eventually("the second hint", lambda: node.sees("second"))
    with pytest.raises(OSError, match="refused"):
        adopt(str(file), before, ["https://127.0.0.1:1"], nullcontext())


def test_a_login_that_is_not_there_yet_or_for_a_while_is_an_outage_for_nodes(tmp_path: Path) -> None:
    """P7: a user that another daemon deleted by mistake is made again by the next sweep, and nodes go on."""
    with secured_etcd(tmp_path) as etcd, ExitStack() as stack:
        access = etcd.access(JOB)
        use = etcd.use
        node = stack.enter_context(member(etcd, access))
        node.publish("first")
        eventually("the first hint", lambda: node.sees("first"))
        etcd.use = replace(use, jobs=())
        with etcd.users() as users:
            assert users.prune()
            eventually("its lease to end", lambda: not has_key(node))
            etcd.use = replace(use, with_nodes=(JOB,))
            assert users.prune() == f"users of etcd: made {access.user} again"
        eventually("its key again", lambda: has_key(node))
        node.publish("second")
        eventually("the second hint", lambda: node.sees("second"))


def test_the_file_with_the_access(tmp_path: Path) -> None:
    access = EtcdAccess("me", "secret phrase", "PEM")
    file = tmp_path / "etcd.json"
    file.write_bytes(access.encode())
    assert read_access(str(file)) == access
    assert read_access("") == EtcdAccess()
    assert "secret" not in repr(access)
    for broken in (b"", b"[]", b'{"user": 5}', b'{"user": "me", "password": ["secret"]}', b"[" * 100_000):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match="is not a file with the access to etcd") as error:
            read_access(str(file))
        assert "secret" not in str(error.value)
    with pytest.raises(ValueError, match=r"cannot be read from .*: No such file"):
        read_access(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="the CA certificate of etcd cannot be used"):
        EtcdAccess(ca="nonsense").connect(["https://127.0.0.1:1"])
