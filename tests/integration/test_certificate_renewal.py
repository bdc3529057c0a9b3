"""A daemon renews the certificate of the etcd beside it, as `spotsupd init` makes one on a host: when it starts, and
while it runs. Nobody else does."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from spotsup_trainer.etcd import EtcdError

from supervisor.config import parse_config
from supervisor.files import replace_file
from supervisor.journal import certificates
from supervisor.journal.certificates import TlsFiles
from supervisor.journal.connection import login_of, renewal
from tests.support.programs import program_env
from tests.support.secured_etcd import PHRASE, SecuredEtcd, secured_etcd
from tools.stack import ROOT

pytestmark = pytest.mark.long

SHORT = dt.timedelta(seconds=4)


def shorten(files: TlsFiles) -> dt.datetime:
    """Have etcd show a certificate that ends in a moment, with its names and key. Returns when."""
    (known,) = certificates.certificates_in(files.cert)
    (ca,) = certificates.certificates_in(files.ca)
    made_at = dt.datetime.now(dt.UTC) - dt.timedelta(days=certificates.CERTIFICATE_DAYS) + SHORT
    ending = certificates.server_certificate(
        certificates.names_in(known),
        certificates.key_in(files.key),
        ca,
        certificates.key_in(files.ca_key),
        made_at,
    )
    replace_file(files.cert, ending.public_bytes(Encoding.PEM))
    return ending.not_valid_after_utc


def await_end(ends: dt.datetime) -> None:
    while dt.datetime.now(dt.UTC) <= ends:
        time.sleep(0.1)


def config_of(etcd: SecuredEtcd, folder: Path) -> dict[str, object]:
    (folder / "password").write_text(PHRASE)
    login = {"ca": str(etcd.tls.ca), "user": "spotsupd", "password_file": str(folder / "password")}
    return {"state_dir": str(folder), "etcd": {"endpoints": [etcd.endpoint], **login}}


def test_a_certificate_that_ends_soon_is_renewed_before_anyone_is_refused(tmp_path: Path) -> None:
    with secured_etcd(tmp_path) as etcd:
        config = parse_config(config_of(etcd, tmp_path), "test")
        renew = renewal(config, embedded=False)
        assert renew is not None
        assert renew() == ""
        ends = shorten(etcd.tls)
        with closing(login_of(config).connect()) as client:
            client.put("/a", b"1")
        assert "made a certificate for localhost" in renew()
        await_end(ends)
        with closing(login_of(config).connect()) as client:
            assert client.get("/a") is not None


def test_the_start_of_a_daemon_repairs_what_nobody_has_renewed_in_time(tmp_path: Path) -> None:
    with secured_etcd(tmp_path) as etcd:
        given = config_of(etcd, tmp_path)
        file = tmp_path / "spotsupd.toml"
        file.write_text(
            f'state_dir = "{tmp_path}"\n[etcd]\nendpoints = ["{etcd.endpoint}"]\nca = "{etcd.tls.ca}"\n'
            f'user = "spotsupd"\npassword_file = "{tmp_path}/password"\n'
        )
        await_end(shorten(etcd.tls))
        login = login_of(parse_config(given, "test"))
        with closing(login.connect()) as client, pytest.raises(EtcdError, match="certificate has expired"):
            client.get("/")
        command = [sys.executable, "-m", "supervisor.cli.daemon", "run", "--config", str(file)]
        log = tmp_path / "daemon.log"
        with log.open("w") as said:
            daemon = subprocess.Popen(command, cwd=ROOT, env=program_env(), stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + 60.0
            while "spotsupd is ready" not in log.read_text():
                assert daemon.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        finally:
            daemon.terminate()
            assert daemon.wait(30.0) == 0
        with closing(login.connect()) as client:
            client.get("/")


def test_only_who_has_the_key_of_the_ca_renews(tmp_path: Path) -> None:
    with secured_etcd(tmp_path) as etcd:
        given = config_of(etcd, tmp_path)
        etcd.tls.ca_key.rename(tmp_path / "elsewhere")
        assert renewal(parse_config(given, "test"), embedded=False) is None
    assert renewal(parse_config({}, "test"), embedded=False) is None
    assert renewal(parse_config({}, "test"), embedded=True) is None
    secure = parse_config({"state_dir": str(tmp_path), "etcd": {"secure": True}}, "test")
    assert renewal(secure, embedded=True) is not None
    assert renewal(secure, embedded=False) is None
