"""The mirror against a real etcd that dies, comes back, and forgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd, Put
from spotsup_trainer.mirror import Mirror, View

from tests.etcd_server import cable, etcd_server

WAIT_S = 20.0


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    with closing(Etcd([etcd_endpoint])) as client:
        yield client


@contextmanager
def mirrored(etcd: Etcd) -> Iterator[Mirror]:
    mirror = Mirror(etcd, "/m/")
    mirror.start()
    try:
        assert mirror.wait_live(WAIT_S)
        yield mirror
    finally:
        mirror.close()


def values(view: View) -> dict[str, bytes]:
    return {key: kv.value for key, kv in view.keys.items()}


def shows(mirror: Mirror, expected: dict[str, bytes]) -> bool:
    return mirror.wait(lambda view: view.live and values(view) == expected, WAIT_S)


def test_it_holds_what_is_there_and_follows(etcd: Etcd) -> None:
    etcd.put("/m/1", b"1")
    etcd.put("/other", b"x")
    with mirrored(etcd) as mirror:
        before = mirror.view()
        assert values(before) == {"/m/1": b"1"}
        etcd.txn([], [Put("/m/2", b"2"), Put("/m/3", b"3")])
        etcd.delete("/m/1")
        assert shows(mirror, {"/m/2": b"2", "/m/3": b"3"})
        assert mirror.view().revision == etcd.range("/").revision
        assert values(before) == {"/m/1": b"1"}


def test_a_transaction_is_never_seen_by_half(etcd: Etcd) -> None:
    seen: list[set[bytes]] = []
    changed = threading.Event()

    def look() -> None:
        seen.append(set(values(mirror.view()).values()))
        changed.set()

    mirror = Mirror(etcd, "/m/", look)
    mirror.start()
    try:
        for number in range(20):
            etcd.txn([], [Put(f"/m/{each}", str(number).encode()) for each in "abc"])
        assert shows(mirror, dict.fromkeys(("/m/a", "/m/b", "/m/c"), b"19"))
        assert changed.is_set()
        assert all(len(each) <= 1 for each in seen)
    finally:
        mirror.close()


def test_it_outlives_an_outage_and_misses_nothing(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd:
        etcd.put("/m/1", b"1")
        with mirrored(etcd) as mirror:
            server.kill()
            assert mirror.wait(lambda view: not view.live, WAIT_S)
            assert values(mirror.view()) == {"/m/1": b"1"}
            assert server.start()
            etcd.put("/m/2", b"2")
            etcd.delete("/m/1")
            assert shows(mirror, {"/m/2": b"2"})


def test_it_reads_anew_what_history_forgot_while_it_was_cut_off(etcd: Etcd) -> None:
    etcd.put("/m/1", b"1")
    with cable(etcd.endpoints[0]) as wire, closing(Etcd([wire.endpoint])) as far, mirrored(far) as mirror:
        wire.cut()
        assert mirror.wait(lambda view: not view.live, WAIT_S)
        etcd.delete("/m/1")
        etcd.compact(etcd.put("/m/2", b"2"))
        wire.mend()
        assert shows(mirror, {"/m/2": b"2"})


def test_it_can_be_closed_before_etcd_was_ever_there() -> None:
    mirror = Mirror(Etcd(["http://127.0.0.1:1"]), "/m/")
    mirror.start()
    assert not mirror.wait_live(0.2)
    mirror.close()
    assert not mirror._thread.is_alive()
