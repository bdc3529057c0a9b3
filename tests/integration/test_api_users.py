"""`spotsupd user`: a token is shown once, known by its hash alone, and refused as soon as it is revoked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from spotsup.contexts import fingerprint
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from supervisor.access import AuditEntry, caller_of, id_of
from supervisor.api.security.tls import certificate_of, own_ca
from supervisor.cli import user
from supervisor.cli.daemon import main
from supervisor.config import load_config
from supervisor.journal.backup import export_journal
from supervisor.journal.codec import dump
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from supervisor.model import ClusterRecord
from tests.support.etcd_server import etcd_server
from tests.support.machines import wait_for

KEYS = Keys("desk")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as server, closing(Etcd([server.endpoint])) as client:
        config = f'cluster = "desk"\nstate_dir = "{tmp_path}"\n[etcd]\nendpoints = ["{server.endpoint}"]\n'
        (tmp_path / "spotsupd.toml").write_text(config)
        yield client


@pytest.fixture
def journal(etcd: Etcd) -> Iterator[Journal]:
    store = EtcdStore(etcd, KEYS.world)
    store.start(20.0)
    yield Journal(store, KEYS)
    store.close()


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["user", *arguments, "--config", str(folder / "spotsupd.toml")])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


def test_a_users_token_is_valid_at_once_until_it_is_revoked(tmp_path: Path, etcd: Etcd, journal: Journal) -> None:
    text = run(tmp_path, "add", "ann", "--role", "submitter").strip()
    token_id = id_of(text)
    wait_for(lambda: token_id in journal.read().tokens, "the daemon's copy of the token")
    stored = journal.read().tokens[token_id]
    caller = caller_of(text, stored, time.time())
    assert caller is not None
    assert (caller.name, caller.role, round((stored.expires_at - time.time()) / 86400)) == ("ann", "submitter", 90)
    secret = text.rpartition("_")[2].encode()
    assert not [kv.key for kv in etcd.range("/").kvs if secret in kv.value], "only its hash is stored"

    second: dict[str, Any] = json.loads(run(tmp_path, "add", "ann", "--role", "viewer", "--days", "1", "-o", "json"))
    assert run(tmp_path, "list").splitlines()[0].startswith(f"ann  submitter  {token_id}  until 20")
    rows = json.loads(run(tmp_path, "list", "-o", "json"))
    assert [(row["id"], row["role"], row["expired"]) for row in rows] == [
        (token_id, "submitter", False),
        (second["id"], "viewer", False),
    ]
    assert "token" not in rows[0]

    etcd.put(f"{KEYS.world}cluster", dump(ClusterRecord(1.0, "0")))
    assert export_journal(etcd, KEYS, tmp_path / "journal.gz", 1.0).keys == 1, "a restored one would be valid again"
    assert run(tmp_path, "revoke", "ann", "--token", token_id) == f"revoked ann's token {token_id}\n"
    wait_for(lambda: set(journal.read().tokens) == {second["id"]}, "the end of one")
    run(tmp_path, "revoke", "ann")
    wait_for(lambda: not journal.read().tokens, "the end of both")
    assert run(tmp_path, "list").startswith("no users: ")
    assert "ann has no tokens" in run(tmp_path, "revoke", "ann", code=4)


def test_who_makes_a_token_is_told_how_it_is_used(tmp_path: Path, etcd: Etcd) -> None:
    with (tmp_path / "spotsupd.toml").open("a") as file:
        file.write('[api]\nlisten = "0.0.0.0:8443"\nnames = ["spot.example.org"]\n')
    arguments = ("add", "ann", "--role", "viewer", "--config", str(tmp_path / "spotsupd.toml"))
    assert "login" not in CliRunner().invoke(main, ["user", *arguments]).stderr, "there is no certificate yet"
    config = load_config(tmp_path / "spotsupd.toml")
    certificate_of(config, "desk")
    shown = CliRunner().invoke(main, ["user", *arguments]).stderr.splitlines()[0]
    assert shown == f"spotsupctl login https://spot.example.org:8443 --fingerprint {fingerprint(own_ca(config))}"


def test_there_are_only_so_many_tokens(tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "MAX_TOKENS", 1)
    run(tmp_path, "add", "ann", "--role", "viewer")
    assert "there are 1 tokens: revoke some first" in run(tmp_path, "add", "bob", "--role", "viewer", code=5)


def test_what_is_no_users_name_is_refused(tmp_path: Path, etcd: Etcd) -> None:
    for name in ("", "a b", "../ann", "ünal", "1", "a" * 65):
        assert "is no user's name" in run(tmp_path, "add", name, "--role", "admin", code=2)
    assert not etcd.range("/").kvs


def test_a_damaged_token_is_left_out_and_others_stay(tmp_path: Path, etcd: Etcd, journal: Journal) -> None:
    text = run(tmp_path, "add", "ann", "--role", "admin").strip()
    etcd.put(f"{KEYS.world}tokens/damaged", b"{}")
    found = etcd.get(f"{KEYS.world}tokens/{id_of(text)}")
    assert found is not None
    etcd.put(f"{KEYS.world}tokens/renamed", found.value)
    wait_for(lambda: len(journal._store.view().keys) == 3, "all three keys")
    assert set(journal.read().tokens) == set(journal.tokens()) == {id_of(text)}
    assert journal.read().jobs == {}


def test_the_audit_log_keeps_the_newest(journal: Journal) -> None:
    for at in (3.0, 1.0, 2.0):
        journal.add_audit(AuditEntry(at, "f" * 16, "ann", "", "", "POST /v1/jobs", "job", 200))
    assert [each.at for each in journal.audit()] == [1.0, 2.0, 3.0]
    assert journal.trim_audit(2, []) == 1
    assert [each.at for each in journal.audit()] == [2.0, 3.0]


def test_what_was_refused_displaces_nothing_that_was_done(journal: Journal) -> None:
    for at, status in ((1.0, 200), (2.0, 403), (3.0, 422), (4.0, 500)):
        journal.add_audit(AuditEntry(at, "f" * 16, "eve", "", "", "POST /v1/jobs", "job", status))
    assert journal.trim_audit(2, []) == 0
    assert journal.trim_audit(1, []) == 2
    assert [(each.at, each.status) for each in journal.audit()] == [(3.0, 422), (4.0, 500)]
