"""The mirror against a real etcd that dies, comes back, and forgets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd, EtcdUnavailableError, Put, Range
from spotsup_trainer.etcd.mirror import Mirror, MirrorView

from tests.support.etcd_server import cable, etcd_cluster, etcd_server

pytestmark = pytest.mark.long

WAIT_S = 20.0


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    with closing(Etcd([etcd_endpoint])) as client:
        yield client


@contextmanager
def mirrored(etcd: Etcd, pulse_s: float = 60.0) -> Iterator[Mirror]:
    mirror = Mirror(etcd, "/m/", pulse_s=pulse_s)
    mirror.start()
    try:
        assert mirror.wait_live(WAIT_S)
        yield mirror
    finally:
        mirror.close()


def values(view: MirrorView) -> dict[str, bytes]:
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


def test_two_views_know_in_which_keys_they_differ_except_over_an_outage(etcd: Etcd) -> None:
    etcd.put("/m/1", b"1")
    with cable(etcd.endpoints[0]) as wire, closing(Etcd([wire.endpoint])) as far, mirrored(far) as mirror:
        before = mirror.view()
        etcd.txn([], [Put("/m/2", b"2"), Put("/m/3", b"3")])
        etcd.delete("/m/1")
        assert shows(mirror, {"/m/2": b"2", "/m/3": b"3"})
        after = mirror.view()
        assert after.changed_since(before) == before.changed_since(after) == ["/m/1", "/m/2", "/m/3"]
        assert after.changed_since(after) == []
        wire.cut()
        assert mirror.wait(lambda view: not view.live, WAIT_S)
        assert mirror.view().changed_since(after) == []
        wire.repair()
        assert mirror.wait_live(WAIT_S)
        assert mirror.view().changed_since(after) is None


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


class Busy(Etcd):
    """Before it reads, and after the mirror began to watch, others write."""

    def pages(self, prefix: str, changed_after: int = 0) -> Iterator[Range]:
        self.put("/m/passing", b"1")
        self.delete("/m/passing")
        self.put("/m/1", b"1")
        return super().pages(prefix, changed_after)


def test_it_never_goes_back_behind_its_own_copy(etcd_endpoint: str) -> None:
    views: list[MirrorView] = []
    with closing(Busy([etcd_endpoint])) as busy:
        mirror = Mirror(busy, "/m/", lambda: views.append(mirror.view()))
        mirror.start()
        try:
            assert mirror.wait_live(WAIT_S)
            busy.put("/m/2", b"2")
            assert shows(mirror, {"/m/1": b"1", "/m/2": b"2"})
        finally:
            mirror.close()
    assert [values(view) for view in views] == [{"/m/1": b"1"}, {"/m/1": b"1", "/m/2": b"2"}]
    assert views[0].revision < views[1].revision


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


def test_it_reads_again_what_was_compacted_while_it_was_cut_off(etcd: Etcd) -> None:
    etcd.put("/m/1", b"1")
    with cable(etcd.endpoints[0]) as wire, closing(Etcd([wire.endpoint])) as far, mirrored(far) as mirror:
        wire.cut()
        assert mirror.wait(lambda view: not view.live, WAIT_S)
        etcd.delete("/m/1")
        etcd.compact(etcd.put("/m/2", b"2"))
        wire.repair()
        assert shows(mirror, {"/m/2": b"2"})


def test_it_loses_no_deletion_to_a_compaction_under_its_watch(etcd: Etcd) -> None:
    etcd.put("/m/1", b"1")
    with cable(etcd.endpoints[0]) as wire, closing(Etcd([wire.endpoint])) as far, mirrored(far) as mirror:
        wire.hang()
        # Nothing gets through: sockets, and etcd's queue of 128 answers, fill up.
        for _ in range(500):
            etcd.put("/m/2", bytes(50_000))
        etcd.delete("/m/1")
        etcd.compact(etcd.put("/m/2", b"2"))
        wire.repair()
        assert shows(mirror, {"/m/2": b"2"})
        assert mirror.view().outages == 1


def test_an_etcd_that_lost_its_data_is_taken_as_it_is_now(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd:
        for number in range(5):
            etcd.put(f"/m/{number}", b"old")
        with mirrored(etcd) as mirror:
            old = mirror.view()
            server.kill()
            server.empty()
            assert server.start()
            # also where it has counted on beyond what the mirror knew: its history is another one
            for _ in range(old.revision):
                etcd.put("/m/3", b"new")
            assert shows(mirror, {"/m/3": b"new"})
            etcd.delete("/m/3")
            assert shows(mirror, {})
            assert mirror.view().outages > old.outages


def test_an_etcd_that_was_restored_from_a_backup_is_taken_as_it_is_now(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd:
        etcd.put("/m/1", b"1")
        server.kill()
        server.save()
        assert server.start()
        with mirrored(etcd) as mirror:
            etcd.delete("/m/1")
            newest = etcd.put("/m/2", b"2")
            assert shows(mirror, {"/m/2": b"2"})
            server.kill()
            server.restore()
            assert server.start()
            assert shows(mirror, {"/m/1": b"1"})
            assert mirror.view().revision < newest
            etcd.put("/m/3", b"3")
            assert shows(mirror, {"/m/1": b"1", "/m/3": b"3"})


def test_a_silent_endpoint_is_left_for_another(etcd: Etcd) -> None:
    """It hangs, or the network drops what is sent: the connection stays open, and an idle watch would not notice."""
    direct = etcd.endpoints[0]
    with (
        cable(direct) as wire,
        closing(Etcd([wire.endpoint, direct], timeout_s=0.5)) as far,
        mirrored(far, pulse_s=0.3) as mirror,
    ):
        wire.hang()
        started = time.monotonic()
        etcd.put("/m/1", b"1")
        assert shows(mirror, {"/m/1": b"1"})
        assert time.monotonic() - started < 15


def test_an_etcd_that_hangs_is_away(tmp_path: Path) -> None:
    with (
        etcd_server(tmp_path) as server,
        closing(Etcd([server.endpoint], timeout_s=0.5)) as etcd,
        mirrored(etcd, pulse_s=0.3) as mirror,
    ):
        server.freeze()
        assert mirror.wait(lambda view: not view.live, WAIT_S)
        server.thaw()
        assert mirror.wait_live(WAIT_S)


def test_a_member_that_lost_its_peers_is_not_believed_and_one_that_has_them_is_found(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as servers, closing(Etcd([s.endpoint for s in servers], timeout_s=1.0)) as etcd:
        etcd.put("/m/1", b"1")
        with mirrored(etcd, pulse_s=0.3) as mirror:
            # the member that the watch is on goes: the next has the same keys
            servers[0].kill()
            etcd_back(etcd)
            etcd.put("/m/2", b"2")
            assert shows(mirror, {"/m/1": b"1", "/m/2": b"2"})
            # two of three are gone: the last one keeps its watches open, and has nothing to report
            servers[2].kill()
            assert mirror.wait(lambda view: not view.live, WAIT_S)
            assert values(mirror.view()) == {"/m/1": b"1", "/m/2": b"2"}
            for server in (servers[0], servers[2]):
                server.launch()
            etcd_back(etcd)
            etcd.delete("/m/1")
            assert shows(mirror, {"/m/2": b"2"})


def test_it_asks_about_once_a_second_while_etcd_is_away(etcd_endpoint: str) -> None:
    with cable(etcd_endpoint) as wire, closing(Etcd([wire.endpoint])) as etcd, mirrored(etcd) as mirror:
        wire.cut()
        assert mirror.wait(lambda view: not view.live, WAIT_S)
        before = wire.calls
        time.sleep(2.0)  # a rate is about time
        assert 2 <= wire.calls - before <= 7
        wire.repair()
        assert mirror.wait_live(WAIT_S)


def test_it_can_be_closed_before_etcd_was_ever_there() -> None:
    mirror = Mirror(Etcd(["http://127.0.0.1:1"]), "/m/")
    mirror.start()
    assert not mirror.wait_live(0.2)
    mirror.close()
    assert not any(thread.is_alive() for thread in mirror._threads)


def etcd_back(etcd: Etcd) -> None:
    """Wait until it can be written to."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            etcd.put("/other", b"")
        except EtcdUnavailableError:
            assert time.monotonic() < deadline
        else:
            return
