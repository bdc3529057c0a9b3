"""A daemon whose etcd is full, hangs in parts, or holds what another daemon wrote: what it reports, and still does."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.etcd import Etcd, EtcdRefusedError
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.timing import LeaseTimes
from spotsup_trainer.wire import Keys

from supervisor.api.jobs.changes import Scale
from supervisor.api.service import Service
from supervisor.errors import CommandRefusedError, JournalFullError, JournalRefusedError, JournalUnavailableError
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.leader import Leadership
from tests.chaos import space
from tests.integration.test_lost_journal import Daemon
from tests.support.etcd_server import cable, etcd_server
from tests.support.waiting import until

pytestmark = pytest.mark.long

KEYS = Keys("test")
SPEC = {"name": "job", "nodes": {"min": 1, "desired": 2, "max": 3}, "run": "train.py"}


def test_a_full_etcd_is_reported_in_one_sentence_until_an_operator_frees_space(tmp_path: Path) -> None:
    options = ("--quota-backend-bytes", str(8 * 2**20))
    with etcd_server(tmp_path, options) as server, ExitStack() as stack:
        etcd = Etcd([server.endpoint], timeout_s=5.0)
        stack.callback(etcd.close)
        daemon = Daemon(etcd, stack)
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 0 jobs")
        daemon.submit("job")
        assert space.fill(etcd) > 0
        service = Service(daemon.journal, daemon.leader, SystemClock(), ["local"], lambda *_: True, hosted=["local"])
        with pytest.raises(JournalFullError, match="space quota is used up: training goes on"):
            service.commands.scale("job", Scale(max_nodes=5))
        # it reports that also when it has nothing to write
        daemon.tick_until(lambda: "etcd refuses writes" in daemon.loop.status.headline)
        assert daemon.leader.leading

        standby = Leadership(etcd, f"{KEYS.root}leader", "standby", 4.0)
        stack.callback(standby.stop)
        standby.start()
        until(lambda: "space quota" in standby.etcd_problem())
        assert standby.leader == "me"

        space.free([server.endpoint])
        daemon.tick_until(lambda: daemon.loop.status.headline == "watching 1 job")
        daemon.tick_until(lambda: service.commands.scale("job", Scale(max_nodes=6)).record.max_nodes in (5, 6))
        until(lambda: not standby.etcd_problem())


class Refusing(Etcd):
    """An etcd that refuses everything."""

    refusal = EtcdRefusedError("")

    def ask(self, path: str, body: dict[str, Any], read: Any, *, endpoint: str | None = None) -> Any:
        """As Gateway."""
        raise self.refusal


def test_an_etcd_that_is_busy_is_not_called_full() -> None:
    etcd = Refusing(["http://127.0.0.1:1"])
    store = EtcdStore(etcd, KEYS.world, lambda: None)
    etcd.refusal = EtcdRefusedError("etcdserver: too many requests", 8)
    with pytest.raises(JournalUnavailableError, match="too many requests") as busy:
        store.txn([], [])
    assert not isinstance(busy.value, JournalFullError)
    etcd.refusal = EtcdRefusedError("etcdserver: mvcc: database space exceeded", 8)
    with pytest.raises(JournalFullError, match="space quota is used up"):
        store.txn([], [])
    etcd.refusal = EtcdRefusedError("etcdserver: too many operations in txn request", 3)
    with pytest.raises(JournalRefusedError, match="etcd refuses the write: etcdserver: too many operations"):
        store.txn([], [])
    store.close()
    etcd.close()


@pytest.mark.long
def test_a_leader_outlives_an_endpoint_that_hangs(tmp_path: Path) -> None:
    ttl_s = 4.0
    with etcd_server(tmp_path) as server, cable(server.endpoint) as wire, ExitStack() as stack:
        endpoints = (wire.endpoint, server.endpoint)
        etcd = Etcd(endpoints, timeout_s=LeaseTimes(ttl_s, len(endpoints)).call_s)
        stack.callback(etcd.close)
        leader = Leadership(etcd, f"{KEYS.root}leader", "me", ttl_s)
        leader.start()
        stack.callback(leader.stop)
        until(lambda: leader.leading)
        guard = leader.guard()
        wire.hang()
        hung_at = time.monotonic()
        while time.monotonic() < hung_at + ttl_s * 1.5:
            assert leader.leading
            time.sleep(0.05)
        assert leader.guard() == guard, "the same lease all the time"
        wire.repair()


def test_a_standby_has_its_lease_before_it_needs_it(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, ExitStack() as stack:
        etcd = Etcd([server.endpoint])
        stack.callback(etcd.close)
        daemons = [Leadership(etcd, f"{KEYS.root}leader", name, 4.0) for name in ("first", "second")]
        for daemon in daemons:
            daemon.start()
            stack.callback(daemon.stop)
            until(lambda: any(each.leading for each in daemons))
        assert [each.leading for each in daemons] == [True, False]
        until(lambda: len(etcd.call("/v3/lease/leases", {}).get("leases", [])) == 2)
        # the lease is kept, without a renewal at each poll
        revision = etcd.range("/", limit=1).revision
        time.sleep(5.0)
        assert len(etcd.call("/v3/lease/leases", {})["leases"]) == 2
        for written in (etcd.range("/", changed_after=revision).kvs, etcd.range("/").kvs):
            leaders = [(kv.key, json.loads(kv.value)["name"]) for kv in written]
            assert leaders == [(f"{KEYS.root}leader", "first")], "a standby writes nothing"
        daemons[0].stop()
        until(lambda: daemons[1].leading)


class LateStore(EtcdStore):
    """A mirror that can be made to lag."""

    def __init__(self, etcd: Etcd) -> None:
        self._late = threading.Event()
        self._kept: MirrorView | None = None
        super().__init__(etcd, KEYS.world)

    def view(self) -> MirrorView:
        """As it was when `fall_behind` was called."""
        kept = self._kept
        return kept if kept is not None else super().view()

    def fall_behind(self) -> None:
        self._kept = super().view()

    def go_on(self) -> None:
        self._kept = None


class Other:
    """One daemon's API over an etcd that others write to, too."""

    def __init__(self, etcd: Etcd, stack: ExitStack) -> None:
        self.store = LateStore(etcd)
        self.store.start(20.0)
        stack.callback(self.store.close)
        leader = Leadership(etcd, f"{KEYS.root}leader", "standby", 4.0)
        self.journal = Journal(self.store, KEYS)
        self.waits = 0
        self.service = Service(self.journal, leader, SystemClock(), ["local"], self._wait, hosted=["local"])
        self.catches_up = True

    def _wait(self, predicate: object, _timeout_s: float) -> bool:
        """Catch up at the last moment, if at all."""
        assert callable(predicate)
        self.waits += 1
        if self.catches_up:
            self.store.go_on()
            until(lambda: predicate(self.journal.read()))
        return bool(predicate(self.journal.read()))


@contextmanager
def two(folder: Path) -> Iterator[tuple[Service, Other, str]]:
    """A daemon, another whose mirror lags, and the digest of some code."""
    with etcd_server(folder) as server, ExitStack() as stack:
        etcd = Etcd([server.endpoint])
        stack.callback(etcd.close)
        one = Other(etcd, stack).service
        yield one, Other(etcd, stack), one.submissions.put_blob(b"code")


def test_a_command_knows_what_another_daemon_has_acknowledged(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other, code):
        other.store.fall_behind()
        one.submissions.submit(SPEC, code, "submission 1")
        assert other.service.commands.scale("job", Scale(desired=3)).record.desired_nodes == 3, "the job is known"
        other.store.fall_behind()
        one.commands.cancel("job")
        scaled = other.service.commands.scale("job", Scale(desired=1)).record
        assert (scaled.cancel_requested, scaled.desired_nodes) == (True, 1)
        with contextlib.suppress(CommandRefusedError):
            one.submissions.submit(SPEC, code, "submission 2")


def test_a_daemon_whose_mirror_lags_refuses_commands(tmp_path: Path) -> None:
    with two(tmp_path) as (one, other, code):
        other.store.fall_behind()
        other.catches_up = False
        one.submissions.submit(SPEC, code, "submission 1")
        behind = "copy of the journal has been behind etcd"
        with pytest.raises(JournalUnavailableError, match=behind):
            other.service.commands.cancel("job")
        with pytest.raises(JournalUnavailableError, match=behind):
            other.service.commands.scale("job", Scale(desired=3))
        other.catches_up = True
        assert other.service.commands.cancel("job").record.cancel_requested
