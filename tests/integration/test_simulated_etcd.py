"""The simulated etcd and the real one are asked the same, by the same client: their answers are the same.

Only sizes near the limits are left out, since the overhead of a request differs, and how exactly leases end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from spotsup_simulator.clock import VirtualClock
from spotsup_simulator.etcd import MIN_TTL_S, SimEtcd
from spotsup_simulator.gateway import SimGateway
from spotsup_trainer.etcd import Compare, Delete, Etcd, EtcdRefusedError, Put

from supervisor.journal.maintenance import refuses_writes
from tests.support.etcd_server import etcd_server

LONG = b"x" * 400_000
# The default, which the tests' own servers shorten.
ELECTION = ("--heartbeat-interval", "100", "--election-timeout", "1000")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    options = (*ELECTION, "--quota-backend-bytes", "4000000")
    with etcd_server(tmp_path_factory.mktemp("etcd"), options) as server, closing(Etcd([server.endpoint])) as etcd:
        yield etcd


class Answers:
    """What one etcd answers. Revisions count from the beginning, and leases have numbers in order."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._begun = etcd.range("/").revision
        self._leases: dict[int, int] = {}
        self.found: list[tuple[str, Any]] = []

    def ask(self, name: str, call: Callable[[Etcd], Any]) -> None:
        """Note what is answered, or refused, and at which revision the store is then."""
        try:
            found = call(self._etcd)
        except EtcdRefusedError as error:
            found = (error.code, str(error).partition(" (")[0])
        self.found.append((name, (found, self._etcd.range("/none").revision - self._begun)))

    def txn(self, name: str, guards: list[Compare], operations: list[Put | Delete]) -> None:
        """Whether it succeeded, and its revision."""

        def call(etcd: Etcd) -> tuple[bool, int]:
            done = etcd.txn(guards, operations)
            return done.succeeded, done.revision - self._begun

        self.ask(name, call)

    def keys(self, name: str, prefix: str) -> None:
        """Keys, with the revisions of their creation and of their last write, and whether they have a lease."""

        def call(etcd: Etcd) -> list[tuple[str, bytes, int, int, bool]]:
            return [
                (kv.key, kv.value[:5], kv.create_revision - self._begun, kv.mod_revision - self._begun, kv.lease > 0)
                for kv in etcd.range(prefix).kvs
            ]

        self.ask(name, call)


def transactions(etcd: Etcd) -> list[tuple[str, Any]]:
    etcd.delete("/", prefix=True)
    answers = Answers(etcd)
    answers.txn("nothing", [], [])
    answers.txn("create", [Compare("/a", "create", 0), Compare("/a", "mod", 0)], [Put("/a", b"1"), Put("/b", b"")])
    answers.txn("create again", [Compare("/a", "create", 0)], [Put("/a", b"2")])
    answers.txn("the same once more", [], [Put("/a", b"1")])
    answers.txn("by value", [Compare("/a", "value", b"1")], [Put("/a", b"3")])
    answers.txn("by another value", [Compare("/a", "value", b"1")], [Put("/a", b"4")])
    answers.txn("by the value of nothing", [Compare("/none", "value", b"")], [Put("/a", b"4")])
    answers.txn("delete nothing", [], [Delete("/none"), Delete("/none/", prefix=True)])
    answers.txn("delete", [], [Delete("/a"), Put("/c/1", b"1"), Put("/c/2", b"2")])
    answers.keys("after that", "/")
    answers.txn("twice", [], [Put("/a", b"1"), Put("/a", b"2")])
    answers.txn("put and delete", [], [Put("/a", b"1"), Delete("/a")])
    answers.txn("delete all and put", [], [Delete("/c", prefix=True), Put("/c/3", b"")])
    answers.txn("128 operations", [], [Put(f"/d/{number}", b"") for number in range(128)])
    answers.txn("129 operations", [], [Delete(f"/d/{number}") for number in range(129)])
    answers.txn("129 guards", [Compare("/none", "mod", 0)] * 129, [])
    answers.txn("1.6 MB", [], [Put("/e", b"x" * 1_600_000)])
    answers.txn("2.2 MB", [], [Put("/e", b"x" * 2_200_000)])
    answers.ask("delete many", lambda asked: asked.delete("/d/", prefix=True))
    answers.ask("delete none", lambda asked: asked.delete("/d/", prefix=True))
    answers.ask("compact the future", lambda asked: asked.compact(10**9))
    answers.ask("compact", lambda asked: asked.compact(asked.range("/").revision))
    answers.ask("compact again", lambda asked: asked.compact(asked.range("/").revision))
    answers.keys("in the end", "/")
    return answers.found


def leases(etcd: Etcd) -> list[tuple[str, Any]]:
    answers = Answers(etcd)
    first, second = etcd.grant(60), etcd.grant(60)
    short = etcd.grant(1)
    answers.ask("the shortest", lambda asked: asked.keepalive(short))
    answers.ask("as long as asked", lambda asked: asked.keepalive(first))
    answers.ask("put under none", lambda asked: asked.put("/l/0", b"", 12345))
    answers.txn("put under none, with a guard", [Compare("/none", "mod", 0)], [Put("/l/0", b"", 12345)])
    answers.txn("put", [], [Put("/l/1", b"", first), Put("/l/2", b"", first), Put("/l/3", b"", first)])
    answers.ask("move to another lease", lambda asked: asked.put("/l/2", b"2", second) and None)
    answers.ask("move away", lambda asked: asked.put("/l/3", b"3") and None)
    answers.ask("revoke", lambda asked: asked.revoke(first))
    answers.keys("after that", "/l/")
    answers.ask("revoke again", lambda asked: asked.revoke(first))
    answers.ask("renew what has ended", lambda asked: asked.keepalive(first))
    answers.ask("delete its key", lambda asked: asked.delete("/l/2"))
    answers.ask("revoke one without a key", lambda asked: asked.revoke(second))
    answers.keys("in the end", "/l/")
    return answers.found


def full(etcd: Etcd, fill: Callable[[], None]) -> list[tuple[str, Any]]:
    lease = etcd.grant(60)
    etcd.put("/f/1", b"", lease)
    etcd.put("/f/2", b"")
    fill()
    answers = Answers(etcd)
    answers.ask("status", refuses_writes)
    answers.ask("put", lambda asked: asked.put("/f/2", b""))
    answers.ask("delete", lambda asked: asked.delete("/f/2"))
    answers.txn("put", [], [Put("/f/2", b"")])
    answers.txn("put if", [Compare("/f/2", "mod", 5)], [Put("/f/2", b"")])
    answers.txn("delete", [], [Delete("/f/2")])
    answers.ask("grant", lambda asked: asked.grant(60))
    answers.ask("renew", lambda asked: asked.keepalive(lease))
    answers.ask("revoke", lambda asked: asked.revoke(lease))
    answers.ask("what was under it", lambda asked: asked.get("/f/1"))
    answers.ask("compact", lambda asked: asked.compact(asked.range("/").revision))
    return answers.found


def simulated() -> tuple[SimEtcd, Etcd]:
    made = SimEtcd(VirtualClock())
    return made, SimGateway(made)


def test_transactions_are_answered_and_refused_as_by_the_real_one(real: Etcd) -> None:
    assert transactions(simulated()[1]) == transactions(real)


def test_leases_are_as_those_of_the_real_one(real: Etcd) -> None:
    found = leases(simulated()[1])
    assert found == leases(real)
    assert dict(found)["the shortest"][0] == MIN_TTL_S


def test_a_full_one_refuses_what_the_real_one_refuses_and_does_all_else(real: Etcd) -> None:
    made, gateway = simulated()

    def fill() -> None:
        made.full = True

    def fill_really() -> None:
        for number in range(40):
            if refuses_writes(real):
                return
            with suppress(EtcdRefusedError):
                real.put(f"/full/{number}", LONG)
        pytest.fail("it is never full")

    assert full(gateway, fill) == full(real, fill_really)
