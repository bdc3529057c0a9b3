"""The ways to an etcd with TLS and users: the embedded one, and the commands for one's own."""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError, Tls

from supervisor.cli.daemon import main
from supervisor.config import Config, parse_config
from supervisor.errors import StartError, UsageError
from supervisor.journal.certificates import TlsFiles, ensure_certificates
from supervisor.journal.connection import embedded_etcd_of, login_to_embedded, open_etcd
from supervisor.journal.etcd_server import EmbeddedEtcd
from tests.support.etcd_server import etcd_server
from tests.support.programs import free_ports


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    EmbeddedEtcd(tmp_path / "state" / "etcd").stop()


def config_of(state: Path, **etcd: object) -> Config:
    state.mkdir(exist_ok=True)
    return parse_config({"state_dir": str(state), "etcd": etcd}, "test")


# -- embedded ----------------------------------------------------------------------------------------------------------


def test_an_embedded_etcd_that_is_secure_answers_to_users_only_and_where_nodes_reach_it(state: Path) -> None:
    port = free_ports(1)[0]
    config = config_of(state, secure=True, listen=f"127.0.0.2:{port}")
    server = embedded_etcd_of(config)
    server.start()
    login = login_to_embedded(config, server)
    assert login.node_endpoints == (f"https://127.0.0.2:{port}",)
    assert "password" not in repr(login)
    with closing(login.connect()) as etcd:
        etcd.put("/a", b"1")
    tls = Tls(login.ca)
    with closing(Etcd(login.node_endpoints, tls=tls)) as nobody, pytest.raises(EtcdRefusedError):
        nobody.get("/a")
    # The next daemon, and commands beside it, find everything as it is.
    again = embedded_etcd_of(config)
    again.start()
    assert login_to_embedded(config, again) == login
    with open_etcd(config, embedded_etcd=True) as etcd:
        found = etcd.get("/a")
        assert found is not None
        assert found.value == b"1"
    server.stop()
    with open_etcd(config, embedded_etcd=True) as etcd:  # starts it meanwhile
        assert etcd.get("/a") is not None


def test_an_embedded_etcd_that_runs_without_tls_is_not_taken_for_a_secure_one(state: Path) -> None:
    plain = embedded_etcd_of(config_of(state))
    plain.start()
    with pytest.raises(StartError, match=r"runs without TLS, and etcd\.secure says otherwise: cancel all jobs"):
        embedded_etcd_of(config_of(state, secure=True)).start()
    plain.stop()
    secure = embedded_etcd_of(config_of(state, secure=True))
    secure.start()
    login_to_embedded(config_of(state, secure=True), secure)
    with pytest.raises(StartError, match="runs with TLS, and"):
        embedded_etcd_of(config_of(state)).start()
    secure.stop()


def test_an_etcd_without_tls_listens_on_loopback_only(state: Path) -> None:
    with pytest.raises(UsageError, match=r"listen needs secure = true"):
        config_of(state, listen="10.0.0.5:2379")
    with pytest.raises(ValueError, match="loopback only"):
        EmbeddedEtcd(state, listen="10.0.0.5:2379")


# -- one's own ---------------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_an_etcd_of_ones_own_is_secured_by_two_commands_that_may_be_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    made = invoke("etcd-certificates", str(folder), "--name", "10.0.0.5")
    assert "made a CA and a certificate for localhost, 127.0.0.1, ::1, 10.0.0.5" in made
    options = next(line for line in made.splitlines() if line.startswith("etcd's options: ")).split(": ")[1].split()
    assert f"{folder}: nothing to do" in invoke("etcd-certificates", str(folder), "--name", "10.0.0.5")
    served = options[: options.index("--peer-cert-file")] + options[options.index("--bcrypt-cost") :]
    with etcd_server(tmp_path / "etcd", served, scheme="https") as server:
        file = tmp_path / "spotsupd.toml"
        file.write_text(
            f'state_dir = "{tmp_path}"\n[etcd]\nendpoints = ["{server.endpoint}"]\nca = "{folder}/ca.crt"\n'
            f'user = "spotsupd"\npassword_file = "{tmp_path}/password"\n'
        )
        assert "the daemons' is spotsupd" in invoke("etcd-users", "--config", str(file))
        assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o600
        assert "nothing to do" in invoke("etcd-users", "--config", str(file))
        checked = CliRunner().invoke(main, ["check", "--config", str(file)]).output
        assert f"ok      etcd, answer: etcd answers at {server.endpoint}" in checked
        (tmp_path / "password").write_text("wrong")
        refused = CliRunner().invoke(main, ["etcd-users", "--config", str(file)])
        assert (refused.exit_code, "'spotsupd' may not manage them" in refused.output) == (1, True)
        with closing(Etcd([server.endpoint], tls=Tls(f"{folder}/ca.crt"))) as nobody, pytest.raises(EtcdError):
            nobody.get("/")


def test_what_is_missing_for_users_is_said(tmp_path: Path) -> None:
    file = tmp_path / "spotsupd.toml"
    file.write_text(f'state_dir = "{tmp_path}"\n')
    for arguments, exit_code, message in (
        (["--embedded-etcd"], 5, "set `secure = true` in [etcd]"),
        ([], 2, "set etcd.user and etcd.password_file first"),
    ):
        done = CliRunner().invoke(main, ["etcd-users", "--config", str(file), *arguments])
        assert (done.exit_code, message in done.output) == (exit_code, True)
    ensure_certificates(TlsFiles(tmp_path), (), dt.datetime.now(dt.UTC))
    file.write_text(f'state_dir = "{tmp_path}"\n[etcd]\nca = "{tmp_path}/etcd.key"\n')
    assert (
        "etcd.ca, etcd.cert and etcd.key cannot be used"
        in CliRunner().invoke(main, ["check", "--config", str(file)]).output
    )


def test_a_daemon_that_rents_machines_does_not_start_with_an_etcd_that_is_open_or_out_of_reach(state: Path) -> None:
    file = state.parent / "spotsupd.toml"
    file.write_text(f'state_dir = "{state}"\n[aws]\nregions = ["us-east-1"]\n')
    for arguments in (["--embedded-etcd"], []):
        done = CliRunner().invoke(main, ["run", "--config", str(file), *arguments])
        assert (
            done.exit_code,
            "[aws] rents machines, which cannot be given etcd at http://127.0.0.1" in done.output,
        ) == (
            2,
            True,
        )
    assert not state.exists()  # nothing was started
