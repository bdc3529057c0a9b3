"""etcd goes to the next minor version, alone or member by member, while nodes and a leader hold leases."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from spotsup_trainer.etcd import Etcd, EtcdError

from supervisor.runtime.leader import Leadership
from tests.support.etcd_server import etcd_cluster, etcd_server
from tests.support.newer_etcd import newer_etcd
from tests.support.programs import find_program
from tests.support.waiting import until
from tools.setup.errors import SetupError

TTL_S = 6.0


@pytest.fixture(scope="module")
def newer() -> Path:
    """A real etcd of the next minor version."""
    try:
        program = newer_etcd()
    except SetupError as error:
        pytest.skip(str(error))
    older = subprocess.run([find_program("etcd"), "--version"], capture_output=True, text=True, check=True).stdout
    if " 3.4." not in older:
        pytest.skip("the etcd of this computer is not of the minor version before")
    return program


class Agents:
    """Nodes as etcd sees them: each has a key under a lease, renews it as agents do, and writes."""

    def __init__(self, connect: Callable[[], Etcd], count: int = 4) -> None:
        self.max_gap_s = 0.0
        self.wrote: list[int] = [0] * count
        self._connect = connect
        self._stopping = threading.Event()
        self.leases: list[int] = [0] * count
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + 30.0
        while not all(self.wrote):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        with contextlib.closing(self._connect()) as etcd:
            lease = self.leases[number] = etcd.grant(TTL_S)
            etcd.put(f"/run/{number}", b"here", lease)
            last = time.monotonic()
            while not self._stopping.wait(TTL_S / 20):
                with contextlib.suppress(EtcdError):
                    assert etcd.keepalive(lease) > 0, "its lease has ended"
                    etcd.put(f"/count/{number}", str(self.wrote[number] + 1).encode())
                    self.wrote[number] += 1
                    self.max_gap_s, last = max(self.max_gap_s, time.monotonic() - last), time.monotonic()


def all_there(etcd: Etcd, agents: Agents) -> bool:
    """Nobody's lease has ended, and nothing that was acknowledged is lost."""
    held = {kv.key: kv.lease for kv in etcd.range("/run/").kvs}
    counted = {kv.key: int(kv.value) for kv in etcd.range("/count/").kvs}
    wrote = list(agents.wrote)
    same = held == {f"/run/{number}": lease for number, lease in enumerate(agents.leases)}
    return same and all(counted[f"/count/{number}"] >= count - 1 for number, count in enumerate(wrote))


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_one_etcd_goes_to_the_next_minor_version_and_no_lease_ends(tmp_path: Path, newer: Path) -> None:
    with etcd_server(tmp_path / "etcd") as server:
        login = Etcd([server.endpoint], timeout_s=2.0)
        own = Etcd([server.endpoint], timeout_s=1.0)
        leader = Leadership(own, "/leader", "me", TTL_S)
        leader.start()
        try:
            with Agents(lambda: Etcd([server.endpoint], timeout_s=1.0)) as agents, contextlib.closing(login):
                until(lambda: leader.leading)
                guard, before = leader.guard(), str(login.status()["version"])
                server.kill()
                server.program(newer)
                assert server.start()
                until(lambda: min(agents.wrote) > 5)
                assert before.startswith("3.4.")
                assert login.status()["version"] == "3.5.1"
                time.sleep(1.5 * TTL_S)
                assert all_there(login, agents)
                assert leader.guard() == guard
                assert leader.lease_valid()
                print(f"one member: the longest pause of an agent was {agents.max_gap_s:.2f} s")
        finally:
            leader.stop()
            own.close()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_three_members_go_to_the_next_minor_version_one_by_one_and_no_lease_ends(tmp_path: Path, newer: Path) -> None:
    with etcd_cluster(tmp_path / "etcd") as members:
        urls = [each.endpoint for each in members]
        for_leader = Etcd(urls, timeout_s=1.0)
        leader = Leadership(for_leader, "/leader", "me", TTL_S)
        leader.start()
        try:
            with Agents(lambda: Etcd(urls, timeout_s=1.0)) as agents, contextlib.closing(Etcd(urls)) as etcd:
                until(lambda: leader.leading)
                guard = leader.guard()
                for number, member in enumerate(members):
                    member.kill()
                    member.program(newer)
                    assert member.start()
                    with contextlib.closing(Etcd([member.endpoint])) as own:
                        assert own.status()["version"] == "3.5.1"
                    assert all_there(etcd, agents)
                    # Members of two versions: writes of each reach the other.
                    for index, url in enumerate(urls):
                        with contextlib.closing(Etcd([url])) as client:
                            client.put(f"/from/{number}/{index}", b"x")
                    assert len(etcd.range(f"/from/{number}/").kvs) == 3
                time.sleep(1.5 * TTL_S)
                assert all_there(etcd, agents)
                assert leader.guard() == guard
                assert leader.lease_valid()
                print(f"three members: the longest pause of an agent was {agents.max_gap_s:.2f} s")
        finally:
            leader.stop()
            for_leader.close()
