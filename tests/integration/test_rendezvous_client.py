"""RendezvousClient on a real etcd, without torch: a job of many rounds, each with another node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.rendezvous.client import RendezvousClient, RendezvousConfig
from spotsup_trainer.rendezvous.membership import Broken, Wait, Yield, standing
from spotsup_trainer.rendezvous.view import Rules
from spotsup_trainer.timing import LeaseTimes
from spotsup_trainer.wire import Ended, Hint, Keys, Member, Notice, Progress, Round, RoundMember, Tombstone, encode

from tests.support.etcd_server import etcd_server
from tests.support.waiting import until

KEYS = Keys("test")
JOB = "job"
TTL_S = 2.0
NODES = 3
# A job of a week: SPOTSUP_ROUNDS=1000.
ROUNDS = int(os.environ.get("SPOTSUP_ROUNDS", "100"))
# The daemon deletes a node's messages once its cloud has confirmed that it is gone: a while after its tombstone.
WORDS_STAY = 3


@contextmanager
def clients(endpoint: str) -> Iterator[Job]:
    made = Job(endpoint)
    try:
        yield made
    finally:
        made.close()


class Job:
    """Seats of one job, looked after by one thread, and what the daemon and the agents write beside them."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.etcd = Etcd([endpoint])
        self.clients: dict[str, RendezvousClient] = {}
        self.rounds: dict[str, Round] = {}
        self.gone: list[str] = []

    def start(self, node: str) -> None:
        place = RendezvousConfig("test", JOB, node, f"{node}-1", "127.0.0.1", (self.endpoint,), TTL_S)
        client = self.clients[node] = RendezvousClient(place, Rules(1, NODES))
        client.open()
        client.announce(state="waiting", store_port=1)

    def hint(self) -> None:
        self.etcd.put(KEYS.hint(JOB), encode(Hint(tuple(self.clients), NODES, NODES)))

    def take(self, node: str, *, noticed: bool) -> None:
        """A machine is taken: its launcher vanishes, with an outcome or without."""
        if noticed:
            self.etcd.put(KEYS.notice(JOB, node), encode(Notice(node, 1.0, 0.0, "local")))
            self.etcd.put(KEYS.ended(JOB, node), encode(Ended(node, "left", 0, "asked to leave", 1.0)))
        self.etcd.put(KEYS.tombstone(JOB, node), encode(Tombstone(node, "preempted", 1.0)))
        self.clients.pop(node).close(linger=not noticed)
        self.rounds.pop(node, None)
        self.gone.append(node)
        if len(self.gone) > WORDS_STAY:
            old = self.gone.pop(0)
            for key in (KEYS.tombstone(JOB, old), KEYS.notice(JOB, old), KEYS.ended(JOB, old)):
                self.etcd.delete(key)

    def form(self, after: int) -> Round:
        """Look after all clients until they are in one round, later than `after`."""
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            for node, client in self.clients.items():
                self.look_after(node, client)
            formed = next(iter(self.rounds.values()), None)
            if formed and formed.number > after and list(self.rounds.values()) == [formed] * len(self.clients):
                self.etcd.put(KEYS.progress(JOB), encode(Progress(formed.number, 1, 0.0, 0.0)))
                return formed
            next(iter(self.clients.values())).wait_change(0.01)
        raise AssertionError(f"no round after {after}")

    def look_after(self, node: str, client: RendezvousClient) -> None:
        view, current = client.snapshot().view, self.rounds.get(node)
        if current is not None:
            if isinstance(standing(view, current, node, time.monotonic()), Broken | Yield):
                del self.rounds[node]
                client.announce(state="waiting", round=current.number, parked=True)
            return
        if view.round and view.round.number > client.member.round and node in view.round.nodes():
            self.rounds[node] = view.round
            client.announce(state="running", round=view.round.number, parked=False)
        elif not isinstance(decision := client.decide(), Wait):
            client.try_write(decision)

    def written(self) -> list[str]:
        return [kv.key for kv in self.etcd.range(KEYS.root, keys_only=True).kvs]

    def members(self) -> set[str]:
        return {key.split("/member/")[1] for key in self.written() if "/member/" in key}

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.etcd.close()


@pytest.mark.long
def test_many_rounds_of_changing_nodes_leave_a_bounded_number_of_keys_and_leases(etcd_endpoint: str) -> None:
    with clients(etcd_endpoint) as job:
        for number in range(NODES):
            job.start(f"n{number}")
        job.hint()
        formed = job.form(0)
        most = 0
        for number in range(NODES, NODES + ROUNDS):
            # in turn: rank 0, which has been there longest, with notice; and one in the middle, without
            job.take(formed.nodes()[number % 2], noticed=number % 2 == 0)
            job.start(f"n{number}")
            job.hint()
            formed = job.form(formed.number)
            most = max(most, len([key for key in job.written() if "/member/" not in key]))
        assert formed.number >= ROUNDS
        # hint, round and progress; three messages of each of the last that are gone
        assert most <= 3 + 3 * WORDS_STAY
        deadline = time.monotonic() + 20.0
        while job.members() != set(job.clients) and time.monotonic() < deadline:
            time.sleep(0.1)  # the leases of those that vanished without an outcome
        assert job.members() == set(job.clients)
        assert len(job.etcd.call("/v3/lease/leases", {})["leases"]) == NODES


def test_where_the_first_in_rank_does_not_write_the_round_the_next_does(etcd_endpoint: str) -> None:
    with clients(etcd_endpoint) as job:
        for node in "abc":
            job.start(node)
        formed = job.form(0)
        job.clients.pop("c").close()
        job.rounds.clear()
        for client in job.clients.values():
            client.announce(state="waiting", round=formed.number)
        frozen = job.clients.pop("a")
        try:
            deadline = time.monotonic() + 20.0
            while "b" not in job.rounds and time.monotonic() < deadline:
                job.look_after("b", job.clients["b"])
                job.clients["b"].wait_change(0.01)
            assert job.rounds["b"].nodes() == ("a", "b")
            assert [loss.node for loss in job.rounds["b"].recent_losses] == ["c"]
        finally:
            frozen.close()


def test_a_message_is_decoded_again_although_another_store_has_the_same_revision(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, closing(Etcd([server.endpoint])) as etcd:
        revision = etcd.put(KEYS.hint(JOB), encode(Hint(("a",), 1, 1)))
        client = RendezvousClient(
            RendezvousConfig("test", JOB, "a", "a-1", "127.0.0.1", (server.endpoint,), TTL_S), Rules(1, 1)
        )
        client.open()
        try:
            assert hinted(client, "a")
            server.kill()
            server.empty()
            assert server.start()
            assert etcd.put(KEYS.hint(JOB), encode(Hint(("b",), 1, 1))) == revision
            time.sleep(2 * LeaseTimes(TTL_S, 1).call_s)  # nothing evaluates the view meanwhile
            assert hinted(client, "b")
        finally:
            client.close()


def test_a_lost_peer_is_known_again_a_while_after_etcd_is_back(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        client = RendezvousClient(
            RendezvousConfig("test", JOB, "a", "a-1", "127.0.0.1", (server.endpoint,), TTL_S), Rules(1, 1)
        )
        client.open()
        try:
            until(lambda: client.snapshot().live)
            assert client.snapshot().shows_losses(time.monotonic())
            server.kill()
            until(lambda: not client.snapshot().live)
            assert not client.snapshot().shows_losses(time.monotonic())
            assert server.start()
            until(lambda: client.snapshot().live)
            assert not client.snapshot().shows_losses(time.monotonic())
            until(lambda: client.snapshot().shows_losses(time.monotonic()))
        finally:
            client.close()


def test_a_member_is_there_since_its_key_appeared_as_that_of_this_incarnation(etcd_endpoint: str) -> None:
    with clients(etcd_endpoint) as job:
        job.start("a")
        client = job.clients["a"]

        def since(incarnation: str, **changes: Any) -> float:
            key, message = KEYS.member(JOB, "c"), Member("c", incarnation, "127.0.0.1", 1, "waiting", **changes)
            job.etcd.put(key, encode(message))
            deadline = time.monotonic() + 20.0
            while client.snapshot().view.members.get("c") != message:
                assert time.monotonic() < deadline
                client.wait_change(0.1)
            return client.snapshot().view.since["c"]

        first = since("c1")
        assert since("c1", round=1) == first
        restarted = since("c2")
        assert restarted > first
        job.etcd.delete(KEYS.member(JOB, "c"))
        while "c" in client.snapshot().view.members:
            client.wait_change(0.1)
        assert since("c2") > restarted


def test_who_waits_patiently_leaves_changes_of_members_and_hears_of_a_round_at_once(etcd_endpoint: str) -> None:
    with clients(etcd_endpoint) as job:
        job.start("a")
        client = job.clients["a"]
        assert client.flush(20.0)
        settled = time.monotonic() + 20.0
        while "a" not in client.snapshot().view.members and time.monotonic() < settled:
            client.wait_change(0.1)

        job.etcd.put(KEYS.member(JOB, "c"), encode(Member("c", "c1", "127.0.0.1", 1, "waiting")))
        began = time.monotonic()
        client.wait_change(0.5, patient=True)
        assert time.monotonic() - began >= 0.5
        assert "c" in client.snapshot().view.members

        formed = Round(1, (RoundMember("a", "a-1", "127.0.0.1", 1),), 1.0, "")
        job.etcd.put(KEYS.round(JOB), encode(formed))
        client.wait_change(60.0, patient=True)
        assert client.snapshot().view.round == formed


def hinted(client: RendezvousClient, node: str) -> bool:
    """Wait until the hint names this node."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        hint = client.snapshot().view.hint
        if hint and hint.members == (node,):
            return True
        client.wait_change(0.1)
    return False
