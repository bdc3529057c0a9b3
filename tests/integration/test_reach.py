"""Bootstrap's step `reach`: what keeps a node from etcd is named within 10 s, with what to do."""

from __future__ import annotations

import datetime as dt
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from email.utils import format_datetime
from pathlib import Path

import pytest
from spotsup_trainer.etcd import reach as reach_program
from spotsup_trainer.etcd.access import NO_ACCESS, EtcdAccess

from bootstrap.model import Run, Skip, Upload
from bootstrap.reach.step import reach
from supervisor.journal.certificates import TlsFiles, ensure_certificates
from tests.support.etcd_server import cable, etcd_server
from tests.support.plans import FRESH, a_setup
from tests.support.programs import free_ports
from tests.support.secured_etcd import SecuredEtcd, a_job, secured_etcd
from tools.stack import ROOT

pytestmark = pytest.mark.long

JOB = a_job()
NOW = dt.datetime.now(dt.UTC)
WRONG = "wrong phrase"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with secured_etcd(tmp_path_factory.mktemp("reach")) as made:
        made.access(JOB)
        yield made


@pytest.fixture
def access(secured: SecuredEtcd) -> EtcdAccess:
    return secured.access(JOB)


def tried(tmp_path: Path, access: EtcdAccess, *endpoints: str) -> tuple[int, str]:
    """Exit code and stderr of what bootstrap runs on a node."""
    file = tmp_path / "etcd.json"
    file.write_bytes(access.encode())
    arguments = ["--etcd", ",".join(endpoints), "--access", str(file), "--cluster", "test", "--job", JOB.name]
    done = subprocess.run(
        [sys.executable, "-m", "spotsup_trainer.etcd.reach", *arguments, "--node", "n"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": str(ROOT / "trainer")},
    )
    return done.returncode, done.stderr


def refused(tmp_path: Path, access: EtcdAccess, *endpoints: str) -> str:
    code, said = tried(tmp_path, access, *endpoints)
    assert code == 1, said
    assert "Traceback" not in said
    assert access.password == "" or access.password not in said
    return said


def test_an_etcd_that_can_be_used_is_passed_without_a_word(
    tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess
) -> None:
    assert tried(tmp_path, access, secured.endpoint) == (0, "")
    # One of several members is enough.
    assert tried(tmp_path, access, f"https://127.0.0.1:{free_ports(1)[0]}", secured.endpoint) == (0, "")


def test_a_wrong_port(tmp_path: Path, access: EtcdAccess) -> None:
    port = free_ports(1)[0]
    said = refused(tmp_path, access, f"https://127.0.0.1:{port}")
    assert f"127.0.0.1:{port} refuses connections: etcd does not run there, listens on another port" in said
    assert "check etcd.node_endpoints" in said


def test_a_firewall_that_drops(tmp_path: Path, access: EtcdAccess) -> None:
    with silent_port() as port:
        said = refused(tmp_path, access, f"https://127.0.0.1:{port}")
    assert f"127.0.0.1:{port} does not answer within 2.5 s: a firewall between drops it: let this machine's net" in said


def test_a_peer_that_answers_byte_by_byte_is_given_up_after_nine_seconds(tmp_path: Path, access: EtcdAccess) -> None:
    """No time limit of a socket ends that: each byte begins it anew. The limit is the program's own, so it is not held
    against a busy machine's clock."""
    assert reach_program.LIMIT_S < reach_program.MAX_S <= 9.0, "with the interpreter's start within 10 s"
    with dripping_port() as port:
        said = refused(tmp_path, NO_ACCESS, f"http://127.0.0.1:{port}")
    assert f"http://127.0.0.1:{port} does not answer within 9 s: a name server is silent, or what answers" in said


@contextmanager
def dripping_port() -> Iterator[int]:
    """Where an answer begins, and never comes to its end."""
    over = threading.Event()

    def drip(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not over.wait(0.5):
                client.sendall(b"x")

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(over.set)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=drip, args=(client,)).start()

        serving = threading.Thread(target=serve)
        serving.start()
        stack.callback(serving.join)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield listener.getsockname()[1]


@contextmanager
def silent_port() -> Iterator[int]:
    """Where connections are neither accepted nor refused: the kernel drops what does not fit into a full backlog."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_name_that_nobody_knows(tmp_path: Path, access: EtcdAccess) -> None:
    assert "this machine knows no address of etcd.invalid" in refused(tmp_path, access, "https://etcd.invalid:2379")


def test_another_ca(tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess) -> None:
    other = TlsFiles(tmp_path / "other")
    ensure_certificates(other, (), NOW)
    said = refused(tmp_path, replace(access, ca=other.ca.read_text()), secured.endpoint)
    assert "is not signed by the CA that this node was given" in said
    assert "etcd.ca has to name the CA that signed it" in said


def test_a_ca_that_is_none(tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess) -> None:
    assert "no TLS with" in refused(tmp_path, replace(access, ca="nonsense"), secured.endpoint)


def test_a_certificate_for_another_name(tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess) -> None:
    with cable(secured.endpoint) as wire:
        near = wire.endpoint.replace("http://127.0.0.1", "https://localhost")
        assert tried(tmp_path, access, near)[0] == 0
    files = TlsFiles(tmp_path / "named")
    with tls_server(files, NOW) as port:
        said = refused(tmp_path, replace(access, ca=files.ca.read_text()), f"https://127.0.0.2:{port}")
    assert (
        f"the certificate of 127.0.0.2:{port} is not for 127.0.0.2: renew it with this name (`spotsupd etcd-cert"
        in said
    )


@pytest.mark.parametrize(("days", "what"), [(-800, "has expired"), (30, "is not valid yet")])
def test_a_certificate_out_of_its_time(tmp_path: Path, access: EtcdAccess, days: int, what: str) -> None:
    files = TlsFiles(tmp_path / "old")
    made_at = NOW + dt.timedelta(days=days)
    ensure_certificates(files, (), NOW - dt.timedelta(days=900))  # the CA is valid now, too
    files.cert.unlink()
    with tls_server(files, NOW, made_at) as port:
        said = refused(tmp_path, replace(access, ca=files.ca.read_text()), f"https://127.0.0.1:{port}")
    assert f"the certificate of 127.0.0.1:{port} {what}: renew it with `spotsupd etcd-certificates`" in said


def test_a_clock_that_is_wrong(tmp_path: Path, access: EtcdAccess) -> None:
    files = TlsFiles(tmp_path / "ahead")
    there = NOW + dt.timedelta(days=30)  # as seen from this machine, whose clock is 30 days behind
    ensure_certificates(files, (), NOW)
    files.cert.unlink()
    with tls_server(files, there, there) as port:
        said = refused(tmp_path, replace(access, ca=files.ca.read_text()), f"https://127.0.0.1:{port}")
    assert re.search(rf"this machine's clock is 7[12]\d\.\d h behind that of 127\.0\.0\.1:{port}", said)
    assert "set the clock (NTP)" in said


@contextmanager
def tls_server(files: TlsFiles, says: dt.datetime, made_at: dt.datetime = NOW) -> Iterator[int]:
    """Speaks TLS with a certificate that is made at `made_at`, and answers with its own idea of the date."""
    ensure_certificates(files, (), made_at)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    with socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104 - for 127.0.0.2, too

        def serve() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                try:
                    with raw, context.wrap_socket(raw, server_side=True) as connection:
                        connection.recv(4096)
                        connection.sendall(f"HTTP/1.0 200 OK\r\nDate: {format_datetime(says, True)}\r\n\r\n".encode())
                except OSError:
                    continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_tls_on_one_side_only(tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess) -> None:
    assert "speaks TLS only: its URL in etcd.node_endpoints has to begin with https://" in refused(
        tmp_path, access, secured.endpoint.replace("https", "http")
    )
    with etcd_server(tmp_path / "plain") as plain:
        assert "speaks no TLS: start etcd with --cert-file" in refused(
            tmp_path, access, plain.endpoint.replace("http", "https")
        )
        assert "has no users: run `spotsupd etcd-users`" in refused(tmp_path, access, plain.endpoint)
        assert tried(tmp_path, NO_ACCESS, plain.endpoint) == (0, "")


def test_a_login_that_is_not_accepted(tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess) -> None:
    said = refused(tmp_path, replace(access, password=WRONG), secured.endpoint)
    assert f"does not know the job's user '{access.user}', or not with this password: has the job ended" in said
    assert WRONG not in said
    said = refused(tmp_path, replace(access, user="", password=""), secured.endpoint)
    assert "asks for a user, and the daemon has none: set etcd.user" in said
    other = secured.access(a_job("other"))
    assert "may not read its own keys" in refused(tmp_path, other, secured.endpoint)


def test_what_accepts_and_never_answers(tmp_path: Path, secured: SecuredEtcd, access: EtcdAccess) -> None:
    with cable(secured.endpoint) as wire:
        wire.hang()
        said = refused(tmp_path, access, wire.endpoint.replace("http:", "https:"))
    assert "accepts connections, but ends them before TLS begins" in said


def test_an_etcd_that_restarts_meanwhile_is_waited_for(tmp_path: Path, access: EtcdAccess) -> None:
    with secured_etcd(tmp_path / "own") as etcd:
        own = etcd.access(JOB)
        etcd.server.kill()
        starter = threading.Timer(1.0, etcd.server.start)
        starter.start()
        try:
            assert tried(tmp_path, own, etcd.endpoint) == (0, "")
        finally:
            starter.join()


# -- the step ----------------------------------------------------------------------------------------------------------


def test_the_step_tries_what_the_agent_will_use_and_shows_no_secret() -> None:
    config = {"etcd_endpoints": ["https://a:1", "https://b:2"], "cluster": "test", "job": "j", "node": "j-abcde-1"}
    setup = a_setup(agent_config=json.dumps(config).encode(), etcd_access=b'{"password":"s3cret"}')
    decision = reach(FRESH, setup)
    assert isinstance(decision, tuple)
    upload, run = decision
    assert isinstance(upload, Upload)
    assert isinstance(run, Run)
    assert upload.mode == 0o600
    assert f"--access {upload.path}" in run.script
    assert "--etcd https://a:1,https://b:2 --cluster test --job j --node j-abcde-1" in run.script
    assert "s3cret" not in run.script
    assert not run.as_root
    assert reach(replace(FRESH, python=""), setup) == Skip("there is no interpreter to try it with; the agent will")
    assert isinstance(reach(FRESH, a_setup()), Skip)
