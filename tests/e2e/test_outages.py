"""Outages of etcd under a running round, on a real etcd: it stops, hangs, loses data, and comes back in parts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.rendezvous.membership import Broken, Yield
from spotsup_trainer.wire import Hint, encode
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

from tests.e2e.handlers import JOB, KEYS, TTL_S, Handlers
from tests.e2e.launching import eventually
from tests.support.etcd_server import cable, etcd_cluster, etcd_server


@pytest.fixture
def handlers(etcd_endpoint: str) -> Iterator[Handlers]:
    with contextlib.closing(Handlers(etcd_endpoint)) as made:
        yield made


def test_an_outage_longer_than_any_lease_changes_nothing(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, contextlib.closing(Handlers(server.endpoint)) as handlers:
        for node in "ab":
            handlers.make(node, 2, 2)
        handlers.form("a", "b")
        server.kill()
        handlers.steady("a", "b", until=lambda: not handlers.live("a", "b"))
        handlers.steady_for(TTL_S * 1.5, "a", "b")
        assert server.start()
        handlers.steady("a", "b", until=lambda: handlers.live("a", "b"))
        handlers.steady_for(TTL_S * 1.2, "a", "b")
        handlers.steady("a", "b", until=lambda: all(map(handlers.member, "ab")))
        assert handlers.round().number == 1
        assert [info.rank for info in handlers.form("a", "b")] == [0, 1]


def test_launchers_write_the_round_to_an_etcd_that_lost_its_data_and_nothing_changes(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, contextlib.closing(Handlers(server.endpoint)) as handlers:
        # ranks in another order than the names, and more than one round
        for node in "cab":
            handlers.make(node, 1, 3)
        handlers.form("c")
        late = handlers.join("a", "b")
        handlers.stands("c", Yield)
        handlers.form("c")
        assert {late[node].result(timeout=90).world_size for node in "ab"} == {3}
        formed = handlers.round()
        assert formed.nodes() == ("c", "a", "b")
        server.kill()
        server.empty()
        assert server.start()
        handlers.steady(*"abc", until=lambda: handlers.live(*"abc") and handlers.etcd.get(KEYS.round(JOB)))
        assert handlers.round() == formed
        handlers.steady(*"abc", until=lambda: all(map(handlers.member, "abc")))
        assert handlers.round() == formed
        # and rounds go on from there
        handlers.made["a"].shutdown()
        handlers.stands("b", Broken)
        assert [info.rank for info in handlers.form("c", "b")] == [0, 1]
        assert handlers.round().number == formed.number + 1


def test_launchers_write_the_round_and_their_states_to_an_etcd_from_an_older_backup(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, contextlib.closing(Handlers(server.endpoint)) as handlers:
        for node in "ab":
            handlers.make(node, 2, 2)
        handlers.form("a", "b")
        server.kill()
        server.save()
        assert server.start()
        handlers.form("a", "b")
        formed = handlers.round()
        assert formed.number == 2
        assert all(handlers.made[node].client.flush(60) for node in "ab")
        server.kill()
        server.restore()
        assert server.start()
        handlers.steady("a", "b", until=lambda: handlers.live("a", "b") and handlers.round() == formed)
        # their leases are in the backup, too, and so are their keys, as they were in the first round
        members = [handlers.made[node].client.member for node in "ab"]
        handlers.steady("a", "b", until=lambda: [handlers.member(node) for node in "ab"] == members)
        assert [info.rank for info in handlers.form("a", "b")] == [0, 1]
        assert handlers.round().number == 3


def test_an_etcd_that_hangs_for_longer_than_a_lease_loses_no_member(tmp_path: Path) -> None:
    """When it answers again, all leases have ended at once."""
    with etcd_server(tmp_path) as server, contextlib.closing(Handlers(server.endpoint)) as handlers:
        for node in "ab":
            handlers.make(node, 2, 2)
        handlers.form("a", "b")
        server.freeze()
        handlers.steady_for(TTL_S * 1.5, "a", "b")
        handlers.steady("a", "b", until=lambda: not handlers.live("a"))
        server.thaw()
        handlers.steady("a", "b", until=lambda: handlers.live("a", "b"))
        handlers.steady_for(1.0, "a", "b")
        handlers.steady("a", "b", until=lambda: all(map(handlers.member, "ab")))
        assert handlers.round().number == 1


def test_all_leases_end_while_no_member_reaches_etcd_and_no_member_is_lost(handlers: Handlers) -> None:
    """Nor does a new node replace them that was started meanwhile and reaches etcd first."""
    with cable(handlers.endpoint) as wire, cable(handlers.endpoint) as other:
        for node in "ab":
            handlers.make(node, via=wire.endpoint)
        handlers.hint("ab")
        handlers.form("a", "b")
        wire.cut()
        other.cut()
        handlers.make("c", via=other.endpoint)
        joined = handlers.join("c")
        handlers.steady("a", "b", until=lambda: not handlers.etcd.range(KEYS.member(JOB, "")).kvs)
        handlers.hint("abc")
        other.repair()
        handlers.steady("a", "b", until=lambda: handlers.live("c") and handlers.member("c"))
        handlers.steady_for(1.0, "a", "b")
        assert handlers.round().nodes() == ("a", "b")
        wire.repair()
        handlers.stands("a", Yield)
        assert [info.rank for info in handlers.form("a", "b")] == [0, 1]
        assert joined["c"].result(timeout=90).rank == 2
        assert handlers.round().reason == "c joined"


@pytest.mark.parametrize("cut_off", ["a", "b"])  # with and without the round's store
def test_a_member_that_only_etcd_cannot_hear_keeps_its_round_and_renews_its_key_when_it_is_back(
    handlers: Handlers, cut_off: str
) -> None:
    with cable(handlers.endpoint) as wire:
        for node in "ab":
            handlers.make(node, via=wire.endpoint if node == cut_off else "", lease_ttl=6.0)
        handlers.make("c", lease_ttl=6.0)
        handlers.hint("ab")
        handlers.form("a", "b")
        handlers.etcd.put(KEYS.hint(JOB), encode(Hint(("a", "b"), 1, 2, spares=("c",))))
        waiting = handlers.join("c")
        wire.cut()
        handlers.steady("a", "b", until=lambda: handlers.member(cut_off) is None)
        handlers.steady_for(4.0, "a", "b")
        wire.repair()
        handlers.steady("a", "b", until=lambda: handlers.member(cut_off) is not None)
        handlers.steady_for(1.0, "a", "b")
        assert (handlers.round().number, waiting["c"].done()) == (1, False)


def test_a_member_that_was_cut_off_and_given_up_is_fenced_when_it_is_back(handlers: Handlers) -> None:
    with cable(handlers.endpoint) as wire:
        handlers.make("a")
        handlers.make("b", via=wire.endpoint)
        handlers.hint("ab")
        handlers.form("a", "b")
        wire.cut()
        handlers.write_tombstone("b")
        handlers.steady("b", until=lambda: isinstance(handlers.made["a"].standing(), Broken))
        handlers.form("a")
        handlers.etcd.delete(KEYS.tombstone(JOB, "b"))
        handlers.steady_for(0.5, "b")
        wire.repair()
        handlers.stands("b", Broken)
        standing = handlers.made["b"].standing()
        assert standing == Broken("round 2 was formed meanwhile", "moved")
        # it may join again
        joined = handlers.join("b")
        handlers.stands("a", Yield)
        handlers.form("a")
        assert joined["b"].result(timeout=90).rank == 1


def test_a_single_node_that_was_cut_off_and_replaced_stops_when_it_is_back(handlers: Handlers) -> None:
    """The daemon gives it up and starts another. (Until then the last claimant owns the checkpoint.)"""
    with cable(handlers.endpoint) as wire:
        handlers.make("a", via=wire.endpoint)
        handlers.make("b")
        handlers.hint("a")
        handlers.form("a")
        wire.cut()
        handlers.write_tombstone("a")
        handlers.hint("b")
        handlers.form("b")
        handlers.steady_for(0.5, "a")
        wire.repair()
        handlers.stands("a", Broken)
        standing = handlers.made["a"].standing()
        assert isinstance(standing, Broken)
        assert standing.cause == "moved"
        with pytest.raises(RendezvousClosedError, match="the daemon has given node a up"):
            handlers.made["a"].next_rendezvous()
        handlers.steady_for(0.2, "b")
        assert handlers.round().nodes() == ("b",)


def test_endpoints_that_hang_one_after_another_cost_no_lease_and_no_message(handlers: Handlers) -> None:
    with cable(handlers.endpoint) as one, cable(handlers.endpoint) as other:
        via = f"{one.endpoint},{other.endpoint},{handlers.endpoint}"
        for node in "ab":
            handlers.make(node, 1, 2, via=via)
        handlers.form("a", "b")
        assert all(handlers.made[node].client.flush(60) for node in "ab")
        before = [handlers.etcd.get(KEYS.member(JOB, node)) for node in "ab"]
        for hung in (one, other):
            hung.hang()
            handlers.steady_for(TTL_S * 1.2, "a", "b")
            assert [handlers.etcd.get(KEYS.member(JOB, node)) for node in "ab"] == before
        handlers.hint("a")
        handlers.stands("a", Yield)


def test_the_loss_of_one_etcd_member_changes_nothing(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as servers:
        via = ",".join(server.endpoint for server in servers)
        with contextlib.closing(Handlers(servers[2].endpoint)) as handlers:
            for node in "ab":
                handlers.make(node, 2, 2, via=via)
            handlers.form("a", "b")
            servers[0].kill()  # both watch there
            handlers.steady_for(TTL_S * 1.5, "a", "b")
            handlers.steady("a", "b", until=lambda: handlers.live("a", "b"))
            assert [info.rank for info in handlers.form("a", "b")] == [0, 1]
            assert handlers.round().number == 2


def test_waiting_for_a_round_outlasts_an_etcd_outage(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, contextlib.closing(Handlers(server.endpoint)) as handlers:
        handlers.make("a", 2, 2, join_timeout=6.0)  # of which it needs little while etcd is there
        waiting = handlers.join("a")
        eventually("a waits", lambda: handlers.member("a"))
        server.kill()
        time.sleep(6.5)  # longer than its join timeout
        assert not waiting["a"].done()
        assert server.start()
        handlers.make("b", 2, 2)
        handlers.form("b")
        assert waiting["a"].result(timeout=90).world_size == 2
