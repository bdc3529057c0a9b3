"""The etcd client against a real etcd."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from spotsup_trainer.etcd import (
    Compare,
    Delete,
    Etcd,
    EtcdRefusedError,
    EtcdUnavailableError,
    Put,
    Tls,
    WatchEvent,
)

from tests.support.certificates import self_signed
from tests.support.etcd_server import cable, etcd_server, require_login
from tests.support.programs import free_ports

NOT_FOUND = 5
PHRASE = "open sesame"
ENDED = "a token that etcd no longer knows"


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    with closing(Etcd([etcd_endpoint])) as client:
        yield client


def test_a_value_is_read_as_it_was_written_whatever_its_bytes(etcd: Etcd) -> None:
    value = bytes(range(256))
    revision = etcd.put("/a/1", value)
    found = etcd.get("/a/1")
    assert found is not None
    assert (found.key, found.value, found.mod_revision, found.lease) == ("/a/1", value, revision, 0)
    assert etcd.get("/a/2") is None
    etcd.put("/a/1", b"")
    empty = etcd.get("/a/1")
    assert empty is not None
    assert empty.value == b""


def test_a_range_has_all_below_its_prefix_and_nothing_else(etcd: Etcd) -> None:
    for key in ("/a/2", "/a/1", "/a0", "/a", "/b"):
        etcd.put(key, b"x")
    found = etcd.range("/a/")
    assert [kv.key for kv in found.kvs] == ["/a/1", "/a/2"]
    assert [kv.key for kv in etcd.range("/a/", limit=1).kvs] == ["/a/1"]
    assert [kv.value for kv in etcd.range("/a/", keys_only=True).kvs] == [b"", b""]
    assert etcd.delete("/a/", prefix=True) == 2
    assert [kv.key for kv in etcd.range("/").kvs] == ["/a", "/a0", "/b"]
    assert etcd.delete("/b") == 1


def test_a_transaction_does_all_or_the_other(etcd: Etcd) -> None:
    absent = [Compare("/k", "mod", 0)]
    assert etcd.txn(absent, [Put("/k", b"1"), Put("/l", b"1")]).succeeded
    assert not etcd.txn(absent, [Put("/k", b"2")], [Put("/seen", b"yes")]).succeeded
    found = etcd.get("/k")
    assert found is not None
    assert found.value == b"1"
    guards = [Compare("/k", "mod", found.mod_revision), Compare("/k", "value", b"1"), Compare("/none", "create", 0)]
    done = etcd.txn(guards, [Delete("/k"), Delete("/l", prefix=True), Put("/new", b"")])
    assert done.succeeded
    assert [kv.key for kv in etcd.range("/").kvs] == ["/new", "/seen"]
    assert done.revision == etcd.range("/").revision


def test_keys_of_a_lease_end_with_it(etcd: Etcd) -> None:
    lease = etcd.grant(60)
    etcd.put("/k", b"1", lease)
    assert etcd.keepalive(lease) == 60
    etcd.revoke(lease)
    assert etcd.get("/k") is None
    assert etcd.keepalive(lease) == 0
    etcd.revoke(lease)
    with pytest.raises(EtcdRefusedError, match="lease not found") as refusal:
        etcd.put("/k", b"2", lease)
    assert refusal.value.code == NOT_FOUND


def test_a_watch_reports_every_change_since_it_was_opened(etcd: Etcd) -> None:
    etcd.put("/a/0", b"before")
    watch = etcd.watch("/a/")
    first = etcd.put("/a/1", b"1")
    etcd.txn([], [Put("/a/2", b"2"), Put("/a/3", b"3"), Put("/b", b"other")])
    etcd.delete("/a/1")
    events: list[WatchEvent] = []
    for batch in watch:
        events.extend(batch.events)
        if len(events) == 4:
            assert batch.revision == first + 2
            watch.close()
    assert [(event.key, event.value) for event in events] == [
        ("/a/1", b"1"),
        ("/a/2", b"2"),
        ("/a/3", b"3"),
        ("/a/1", None),
    ]


def test_a_watch_can_be_ended_from_another_thread(etcd: Etcd) -> None:
    watch = etcd.watch("/a/")
    reader = threading.Thread(target=lambda: list(watch))
    reader.start()
    watch.close()
    reader.join(timeout=10)
    assert not reader.is_alive()


def test_a_watch_that_fell_behind_a_compaction_says_so(etcd: Etcd) -> None:
    watch = etcd.watch("/a")
    # Nobody reads: sockets, and etcd's queue of 128 answers, fill up.
    etcd.compact([etcd.put("/a", bytes(50_000)) for _ in range(500)][-1])
    with pytest.raises(EtcdUnavailableError, match="compacted"):
        list(watch)


def test_an_etcd_that_is_not_there_is_named() -> None:
    port = free_ports(1)[0]
    with pytest.raises(EtcdUnavailableError, match=f"http://127.0.0.1:{port}"):
        Etcd([f"http://127.0.0.1:{port}"]).get("/a")
    with pytest.raises(EtcdUnavailableError, match="refused"):
        Etcd([f"http://127.0.0.1:{port}"]).watch("/a")
    with pytest.raises(ValueError, match="http://127"):
        Etcd([])


def test_another_endpoint_takes_over_from_one_that_is_gone_or_hangs(etcd_endpoint: str) -> None:
    with cable(etcd_endpoint) as wire, closing(Etcd([wire.endpoint, etcd_endpoint], timeout_s=2.0)) as etcd:
        etcd.put("/a", b"1")
        assert wire.calls == 1
        wire.hang()
        assert etcd.get("/a") is not None
        # it has cost its time once, and is not asked again
        assert etcd.get("/a") is not None
        with closing(etcd.watch("/a")) as watch:
            assert watch.endpoint == etcd_endpoint
        assert wire.calls == 1
    with closing(Etcd([f"http://127.0.0.1:{free_ports(1)[0]}", etcd_endpoint])) as etcd:
        with closing(etcd.watch("/a")) as watch:
            assert watch.endpoint == etcd_endpoint
        assert str(etcd.status()["version"]).startswith("3.")


def test_a_watch_knows_whether_its_own_endpoint_is_there(etcd_endpoint: str) -> None:
    with cable(etcd_endpoint) as wire, closing(Etcd([wire.endpoint, etcd_endpoint], timeout_s=2.0)) as etcd:
        watch = etcd.watch("/a")
        watch.ping()
        wire.hang()
        with pytest.raises(EtcdUnavailableError, match=f"{wire.endpoint}: timed out"):
            watch.ping()
        watch.close()
        # and others are asked first from now on
        tried = wire.calls
        with closing(etcd.watch("/a")) as another:
            assert another.endpoint == etcd_endpoint
        assert wire.calls == tried


def test_a_restart_is_hidden_by_a_new_connection(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd:
        etcd.put("/a", b"1")
        watch = etcd.watch("/a")
        server.kill()
        with pytest.raises(EtcdUnavailableError, match="watch broken"):
            list(watch)
        with pytest.raises(EtcdUnavailableError):
            etcd.get("/a")
        assert server.start()
        assert etcd.get("/a") is not None
        server.kill()
        assert server.start()
        assert etcd.put("/a", b"2") > 0  # on a connection that the server has closed


def test_users_with_passwords(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd:
        require_login(etcd, PHRASE)
        _check_users(etcd)


def _check_users(etcd: Etcd) -> None:
    with pytest.raises(EtcdRefusedError):
        etcd.get("/a")
    with closing(Etcd(etcd.endpoints, user="root", password=PHRASE)) as known:
        watch = known.watch("/a")
        known.put("/a", b"1")
        for batch in watch:
            assert batch.events[0].value == b"1"
            watch.close()
        known._token = ENDED  # as etcd's simple tokens do after 5 minutes
        assert known.get("/a") is not None
        known._token = ENDED
        with pytest.raises(EtcdUnavailableError, match=r"invalid auth token|permission denied"):
            known.watch("/a")
        known.watch("/a").close()
    with (
        closing(Etcd(etcd.endpoints, user="root", password=PHRASE[::-1])) as unknown,
        pytest.raises(EtcdRefusedError, match="does not accept user 'root'"),
    ):
        unknown.get("/a")


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    options = ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert, "--client-cert-auth"]
    with (
        etcd_server(tmp_path / "etcd", options, scheme="https") as server,
        closing(Etcd([server.endpoint], tls=Tls(cert, cert, key))) as etcd,
    ):
        watch = etcd.watch("/a")
        etcd.put("/a", b"1")
        for batch in watch:
            assert batch.events[0].value == b"1"
            watch.close()
        with pytest.raises(EtcdUnavailableError, match=r"(?i)certificate|ssl|reset|closed|broken pipe"):
            Etcd([server.endpoint], tls=Tls(cert)).get("/a")
        with pytest.raises(EtcdUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            Etcd([server.endpoint]).get("/a")
