"""Writes that survive etcd's outages, against a real etcd."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd, KeyValue
from spotsup_trainer.etcd.outbox import Outbox

from tests.support.etcd_server import cable, etcd_server

pytestmark = pytest.mark.long

WAIT_S = 20.0
TTL_S = 2.0


@contextmanager
def outbox(etcd: Etcd) -> Iterator[Outbox]:
    made = Outbox(etcd, ttl_s=TTL_S)
    made.start()
    try:
        yield made
    finally:
        made.close()


def until(look: Callable[[], KeyValue | None]) -> KeyValue:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("never")


def test_a_leased_key_lives_as_long_as_its_outbox(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd:
        with outbox(etcd) as box:
            box.put("/mine", b"1", leased=True)
            box.put("/for ever", b"1")
            assert box.flush(WAIT_S)
            first = etcd.get("/mine")
            assert first is not None
            assert first.lease
            time.sleep(TTL_S * 1.5)  # keepalives are about time
            assert etcd.get("/mine") == first
        assert etcd.get("/mine") is None
        assert etcd.get("/for ever") is not None


def test_what_can_wait_is_written_later_and_not_at_all_where_it_is_outdated_by_then(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd, outbox(etcd) as box:
        began = time.monotonic()
        box.put("/soon", b"1", after_s=0.3)
        box.put("/mine", b"1", after_s=10 * WAIT_S)
        until(lambda: etcd.get("/soon"))
        assert time.monotonic() - began >= 0.3
        assert etcd.get("/mine") is None
        box.put("/mine", b"2")
        assert until(lambda: etcd.get("/mine")).value == b"2"


def test_a_flush_waits_for_nothing_that_can_wait(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd, outbox(etcd) as box:
        box.put("/mine", b"1", after_s=10 * WAIT_S)
        assert box.flush(WAIT_S)
        assert until(lambda: etcd.get("/mine")).value == b"1"


def test_a_lease_that_ended_is_granted_again_and_its_keys_are_put_again(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd, outbox(etcd) as box:
        box.put("/mine", b"1", leased=True)
        assert box.flush(WAIT_S)
        first = etcd.get("/mine")
        assert first is not None
        etcd.revoke(first.lease)
        again = until(lambda: etcd.get("/mine"))
        assert (again.value, again.lease != first.lease) == (b"1", True)
        etcd.revoke(again.lease)
        box.put("/mine", b"2", leased=True)
        assert box.flush(WAIT_S)
        newest = until(lambda: etcd.get("/mine"))
        assert newest.value == b"2"


def test_only_the_newest_value_outlives_an_outage(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd, outbox(etcd) as box:
        box.put("/k", b"first")
        assert box.flush(WAIT_S)
        server.kill()
        for number in range(100):
            box.put("/k", str(number).encode())
        assert not box.flush(0.3)
        assert server.start()
        assert box.flush(WAIT_S)
        found = etcd.get("/k")
        assert found is not None
        assert found.value == b"99"
        assert etcd.range("/").revision < 10


def test_an_etcd_that_lost_its_data_has_the_leased_keys_again_soon(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd, outbox(etcd) as box:
        box.put("/mine", b"1", leased=True)
        box.put("/for ever", b"1")
        assert box.flush(WAIT_S)
        server.kill()
        server.empty()
        assert server.start()
        started = time.monotonic()
        again = until(lambda: etcd.get("/mine"))
        assert time.monotonic() - started < TTL_S
        assert again.lease
        # what is under no lease is the daemon's to keep, or is output again with the next news
        assert etcd.get("/for ever") is None


def test_a_guarded_value_is_written_over_what_it_was_meant_for_only(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd, outbox(etcd) as box:
        box.put("/k", b"first", over=0)
        assert box.flush(WAIT_S)
        box.put("/k", b"late", over=0)
        assert box.flush(WAIT_S)
        found = etcd.get("/k")
        assert found is not None
        assert found.value == b"first"
        box.put("/k", b"second", over=found.mod_revision)
        assert box.flush(WAIT_S)
        assert until(lambda: etcd.get("/k")).value == b"second"


def test_it_asks_about_once_a_second_while_etcd_is_away(etcd_endpoint: str) -> None:
    with cable(etcd_endpoint) as wire, closing(Etcd([wire.endpoint])) as etcd, outbox(etcd) as box:
        box.put("/mine", b"1", leased=True)
        assert box.flush(WAIT_S)
        wire.cut()
        before = wire.calls
        for number in range(20):
            box.put("/mine", str(number).encode(), leased=True)
            time.sleep(0.1)  # a rate is about time
        assert 1 <= wire.calls - before <= 7
        wire.repair()
        assert box.flush(WAIT_S)


def test_a_value_that_etcd_refuses_stops_no_other(etcd_endpoint: str) -> None:
    with closing(Etcd([etcd_endpoint])) as etcd, outbox(etcd) as box:
        box.put("/too big", b"x" * 2_000_000)
        box.put("/good", b"1")
        assert until(lambda: etcd.get("/good")).value == b"1"
        assert not box.flush(0.1)


def test_it_closes_without_etcd() -> None:
    with closing(Etcd(["http://127.0.0.1:1"], timeout_s=0.5)) as etcd:
        started = time.monotonic()
        with outbox(etcd) as box:
            box.put("/k", b"1", leased=True)
        assert time.monotonic() - started < 15
