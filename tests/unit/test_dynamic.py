"""torch's own rendezvous handler on etcd v3: its state by compare-and-swap, its store, and outages, on a real etcd."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.dynamic import PASSWORD_VARIABLE, EtcdBackend, handler_from
from spotsup_trainer.dynamic_link import Link
from spotsup_trainer.dynamic_store import EtcdStore
from spotsup_trainer.etcd import Etcd, EtcdUnavailableError, Tls, TxnResult
from spotsup_trainer.rendezvous import create_etcd_v3
from torch.distributed import DistStoreError, PrefixStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from tests.certificates import self_signed
from tests.etcd_server import etcd_server, require_login
from tests.programs import free_ports

KEY = "/torchrun/job/state"
NODE = _NodeDesc("127.0.0.1", 1, 0)
PHRASE = "open sesame"


def link_to(etcd: Etcd, *, lease_ttl_s: float = 60.0, outage_s: float = 20.0) -> Link:
    return Link(etcd, lease_ttl_s=lease_ttl_s, outage_s=outage_s)


def eventually(look: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state(number: int = 0, beat: datetime | None = None) -> bytes:
    """As torch writes it."""
    made = _RendezvousState()
    made.round = number
    made.participants[NODE] = 0
    made.wait_list.add(NODE)
    made.deadline = datetime.now(UTC) + timedelta(seconds=1)
    made.last_heartbeats[NODE] = beat or datetime.now(UTC)
    return pickle.dumps(made)


def number_of(raw: bytes) -> int:
    return int(pickle.loads(raw).round)  # noqa: S301 - our own


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    with closing(Etcd([etcd_endpoint])) as client:
        yield client


@pytest.fixture
def backend(etcd: Etcd) -> EtcdBackend:
    return EtcdBackend(link_to(etcd), KEY)


# -- the state -------------------------------------------------------------------------------------------------


def test_the_state_is_replaced_only_by_who_has_seen_it(backend: EtcdBackend, etcd: Etcd) -> None:
    assert backend.get_state() is None
    first, second = state(1), state(2)
    written = backend.set_state(first)
    assert written is not None
    _, token, done = written
    assert done
    assert backend.get_state() == (first, token)
    assert backend.set_state(second) == (first, token, False)  # without a token: only where there is nothing
    newer = backend.set_state(second, token)
    assert newer is not None
    assert (newer[0], newer[2]) == (second, True)
    assert newer[1] > token
    assert backend.set_state(state(3), token) == (second, newer[1], False)
    etcd.delete(KEY)
    assert backend.set_state(state(3), newer[1]) is None
    assert backend.get_state() is None


def test_no_change_of_the_state_is_lost_among_many_writers(etcd: Etcd) -> None:
    changes, writers = 20, 6

    def write(_: int) -> None:
        own, done = EtcdBackend(link_to(etcd), KEY), 0
        raw, token = state(), None
        while done < changes:
            answer = own.set_state(state(number_of(raw) + 1), token)
            assert answer is not None
            raw, token, won = answer
            done += won

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    found = EtcdBackend(link_to(etcd), KEY).get_state()
    assert found is not None
    assert number_of(found[0]) == changes * writers


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_a_state_runs_no_code(backend: EtcdBackend, etcd: Etcd, tmp_path: Path) -> None:
    raw = pickle.dumps(Malice(tmp_path / "was here"))
    etcd.put(KEY, raw)
    with pytest.raises(RendezvousStateError, match=r"state of torch's rendezvous: it holds a posix\.mkdir"):
        backend.get_state()
    with pytest.raises(RendezvousStateError):
        backend.set_state(state())
    assert not (tmp_path / "was here").exists()
    pickle.loads(raw)  # noqa: S301 - or this test would show nothing
    assert (tmp_path / "was here").exists()


def test_what_is_no_state_is_named(backend: EtcdBackend, etcd: Etcd) -> None:
    for raw in (b"no pickle", b"", pickle.dumps(range), pickle.dumps(NODE), pickle.dumps({1, 2})):
        etcd.put(KEY, raw)
        with pytest.raises(RendezvousStateError, match=f"{KEY} in etcd is no state"):
            backend.get_state()


# -- outages, and what is left ---------------------------------------------------------------------------------


def test_an_outage_is_waited_for_and_forgives_heartbeats(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd, ThreadPoolExecutor(1) as pool:
        link = link_to(etcd)
        backend = EtcdBackend(link, KEY)
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        written = backend.set_state(state(1, an_hour_ago))
        assert written is not None
        before = backend.get_state()
        assert before is not None
        assert pickle.loads(before[0]).last_heartbeats == {NODE: an_hour_ago}  # noqa: S301 - our own
        server.kill()
        waiting = pool.submit(backend.set_state, state(2, an_hour_ago), written[1])
        eventually(lambda: link._away_since)
        restarted_at = datetime.now(UTC)
        assert server.start()
        answer = waiting.result(timeout=20)
        assert answer is not None
        assert answer[2]
        found = backend.get_state()
        assert found is not None
        for raw in (answer[0], found[0]):
            assert number_of(raw) == 2
            assert restarted_at < pickle.loads(raw).last_heartbeats[NODE] <= datetime.now(UTC)  # noqa: S301 - our own


def test_waiting_for_etcd_is_bounded_for_all_callers_together() -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    with closing(Etcd([endpoint])) as etcd:
        link = link_to(etcd, outage_s=1.0)
        backend, store = EtcdBackend(link, KEY), EtcdStore(link, "/s/", 60)
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match=endpoint):
            backend.get_state()
        waited_s = time.monotonic() - began
        assert waited_s >= 1.0
        with pytest.raises(RendezvousConnectionError, match=endpoint):
            backend.set_state(state())
        with pytest.raises(DistStoreError, match=endpoint):
            store.get("x")
        assert time.monotonic() - began < 2 * waited_s


def test_what_etcd_refuses_is_told_at_once(etcd: Etcd, backend: EtcdBackend) -> None:
    require_login(etcd, PHRASE)
    with pytest.raises(RendezvousConnectionError, match="user name is empty"):
        backend.get_state()


def test_keys_go_by_themselves_once_nobody_writes_them(etcd: Etcd) -> None:
    link = link_to(etcd, lease_ttl_s=1.5)
    backend, store = EtcdBackend(link, KEY), EtcdStore(link, "/torchrun/job/store/", 60)
    backend.set_state(state())
    store.set("old round", b"x")
    store.add("n", 1)
    leases = {kv.lease for kv in etcd.range("/torchrun/").kvs}
    assert len(leases) == 1

    def renewed() -> bool:
        store.set("new round", b"y")
        return {kv.lease for kv in etcd.range("/torchrun/job/store/key/new").kvs}.isdisjoint(leases)

    eventually(renewed)
    assert store.check(["old round"])  # the new lease came long before the old one ends
    eventually(lambda: not etcd.range("/torchrun/").kvs)


def test_a_lease_that_ended_early_is_replaced(etcd: Etcd, backend: EtcdBackend) -> None:
    written = backend.set_state(state(1))
    assert written is not None
    etcd.revoke(etcd.range(KEY).kvs[0].lease)
    assert backend.set_state(state(2), written[1]) is None
    again = backend.set_state(state(3))
    assert again is not None
    assert again[2]


# -- the store -------------------------------------------------------------------------------------------------


def test_the_store_does_what_torch_expects(etcd: Etcd) -> None:
    inner = EtcdStore(link_to(etcd), "/s/", 60)
    store = PrefixStore("round.1", inner)
    store.set("a", "text")
    store.set("b", bytes(range(256)))
    assert (store.get("a"), store.get("b")) == (b"text", bytes(range(256)))
    assert store.multi_get(["b", "a"]) == [bytes(range(256)), b"text"]
    store.multi_set(["c", "d"], ["1", "2"])
    assert (store.check(["a", "c"]), store.check(["a", "none"])) == (True, False)
    assert PrefixStore("round.2", inner).check(["a"]) is False
    store.wait(["a", "b", "c", "d"])
    assert [store.add("n", 2), store.add("n", -3), store.add("c", 5)] == [2, -1, 6]
    assert store.get("n") == b"-1"
    assert store.compare_set("e", "", "new") == b"new"
    assert store.compare_set("e", "other", "newer") == b"new"
    assert store.compare_set("e", "new", "newer") == b"newer"
    assert store.compare_set("none", "expected", "x") == b"expected"
    assert store.num_keys() == 6
    assert (store.delete_key("a"), store.delete_key("a"), store.num_keys()) == (True, False, 5)


def test_a_key_is_waited_for_but_not_for_ever(etcd: Etcd) -> None:
    inner, other = EtcdStore(link_to(etcd), "/s/", 20), EtcdStore(link_to(etcd), "/s/", 20)
    store = PrefixStore("p", inner)
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(store.get, "late"), pool.submit(store.wait, ["late"], timedelta(seconds=20))]
        time.sleep(0.1)  # so that they do wait; were they late, they would find it at once
        PrefixStore("p", other).set("late", b"x")
        assert [read.result(timeout=20) for read in reads] == [b"x", None]
    with pytest.raises(DistStoreError, match="p/never"):
        store.wait(["late", "never"], timedelta(milliseconds=50))
    store.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(DistStoreError, match="p/never"):
        store.get("never")


class Forgetful(Etcd):
    """Loses every third answer to a transaction, after etcd has done it."""

    calls = itertools.count()

    def txn(self, *arguments: Any, **options: Any) -> TxnResult:
        done = super().txn(*arguments, **options)
        if next(self.calls) % 3 == 0:
            raise EtcdUnavailableError("the answer was lost")
        return done


def test_each_addition_counts_once_although_answers_are_lost(etcd_endpoint: str) -> None:
    adders, times = 4, 10
    with closing(Forgetful([etcd_endpoint])) as etcd, ThreadPoolExecutor(adders) as pool:
        stores = [EtcdStore(link_to(etcd), "/s/", 60) for _ in range(adders)]
        start = threading.Barrier(adders)

        def add(store: EtcdStore) -> list[int]:
            start.wait()
            return [store.add("n", 1) for _ in range(times)]

        sums = [each for found in pool.map(add, stores) for each in found]
    assert sorted(sums) == list(range(1, adders * times + 1))


# -- how it is asked for ---------------------------------------------------------------------------------------


def parameters(endpoint: str = "127.0.0.1:2379", job: str = "job", **conf: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd-v3", endpoint, job, 1, 1, "127.0.0.1", **conf)


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"endpoint": ","}, "--rdzv-endpoint is empty"),
        ({"job": "a/b"}, "--rdzv-id is 'a/b'"),
        ({"outage": "long"}, "outage=long"),
        ({"lease_ttl": 89}, "lease_ttl=89 is too short.* 90 s"),
        ({"endpoint": "https://e:2379", "ca": "ca.pem", "cert": "c.pem"}, "all of ca, cert and key"),
        ({"endpoint": "https://e:2379,http://f:2379", "ca": "ca.pem"}, "http://f:2379 would not use it"),
        ({"user": "me"}, PASSWORD_VARIABLE),
    ],
)
def test_what_cannot_be_right_is_said(conf: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        handler_from(parameters(**conf), {})


def test_a_round_forms_with_tls_and_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", raising=False)
    monkeypatch.setenv(PASSWORD_VARIABLE, PHRASE)
    cert, key = self_signed(tmp_path)
    options = ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert, "--client-cert-auth"]
    with etcd_server(tmp_path / "etcd", options, scheme="https") as server:
        with closing(Etcd([server.endpoint], tls=Tls(cert, cert, key))) as etcd:
            require_login(etcd, PHRASE)
        conf = {"ca": cert, "cert": cert, "key": key, "user": "root", "prefix": "/mine/"}
        handler = create_etcd_v3(parameters(server.endpoint, **conf))
        found = handler.next_rendezvous()
        assert (found.rank, found.world_size, found.bootstrap_store_info.master_addr) == (0, 1, "127.0.0.1")
        assert not handler.use_agent_store  # or a replacement would never train
        assert handler.shutdown()
        with closing(Etcd([server.endpoint], tls=Tls(cert, cert, key), user="root", password=PHRASE)) as etcd:
            assert {kv.key.split("/")[1] for kv in etcd.range("/").kvs} == {"mine"}


def test_who_shares_the_store_knowingly_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")
    assert create_etcd_v3(parameters()).use_agent_store
