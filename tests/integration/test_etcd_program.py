"""Another etcd in the place of the distribution's: found in what a person fetched, put in place, and gone over to while
nodes and a leader hold leases, on one host and on three."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from spotsup_trainer.etcd import Etcd, EtcdError

from supervisor.errors import StartError, UsageError
from supervisor.installation.answers import https
from supervisor.installation.etcd_member import version_of
from supervisor.installation.etcd_program import inspect, install, refusal
from supervisor.runtime.leader import Leadership
from tests.integration.test_etcd_member import Host, formed, hosts
from tests.support.etcd_server import etcd_server
from tests.support.newer_etcd import newer_etcd
from tests.support.programs import find_program
from tools.setup.errors import SetupError

__all__ = ["hosts"]

TTL_S = 6.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Others may look into it: a program is tried as a user without rights."""
    with tempfile.TemporaryDirectory(prefix="spotsup-etcd-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def script(folder: Path, says: str) -> Path:
    path = folder / "etcd-of-the-test"
    path.write_text(f"#!/bin/sh\n[ $# = 1 ] && [ $1 = --version ] && printf '{says}'\n")
    return path


def test_a_program_is_found_in_a_releases_archive_and_put_in_place(folder: Path) -> None:
    data = script(folder, r"etcd Version: 3.5.33\nGit SHA: x\n").read_bytes()
    archive = folder / "etcd-v3.5.33-linux-amd64.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in (("README-etcdctl.md", b"x"), ("etcdctl", b"no"), ("etcd", data)):
            info = tarfile.TarInfo(f"etcd-v3.5.33-linux-amd64/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    found = inspect(archive, folder / "there")
    assert (str(found.version), found.data) == ("3.5.33", data)
    assert not (folder / "there").exists(), "it is tried, and is not there yet"
    place = folder / "there" / "etcd"
    install(found, place)
    install(found, place)
    assert place.read_bytes() == data
    assert place.stat().st_mode & 0o7777 == 0o755
    assert sorted(each.name for each in place.parent.iterdir()) == ["etcd", "etcd.old"]


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("hello", "is no etcd: asked for its version, it says 'hello'"),
        (r"etcd Version: 3.7.0-rc.1\n", "is etcd 3.7.0-rc.1, which is no release"),
        ("", "is no etcd"),
    ],
)
def test_what_is_no_release_of_etcd_is_refused(folder: Path, says: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspect(script(folder, says), folder / "there")


def test_what_does_not_run_here_is_refused(folder: Path) -> None:
    for name, data in (("other", b"\x7fELF\x02\x01\x01" + bytes(64)), ("empty.tar", b""), ("text", b"hello")):
        (folder / name).write_bytes(data)
        with pytest.raises(UsageError, match=r"does not run on this computer|is no etcd"):
            inspect(folder / name, folder / "there")
    with tarfile.open(folder / "without.tar.gz", "w:gz"):
        pass
    with pytest.raises(UsageError, match="no program etcd in this archive"):
        inspect(folder / "without.tar.gz", folder / "there")
    (folder / "file").write_bytes(b"")
    with pytest.raises(StartError, match="cannot be tried"):
        inspect(script(folder, "x"), folder / "file" / "there")


# -- going over to it ------------------------------------------------------------------------------------------


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
                wait_until(lambda: leader.leading)
                guard, before = leader.guard(), str(login.status()["version"])
                server.kill()
                server.program(newer)
                assert server.start()
                wait_until(lambda: min(agents.wrote) > 5)
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
def test_three_hosts_go_to_the_next_minor_version_one_by_one_and_no_lease_ends(
    hosts: list[Host],
    newer: Path,
    folder: Path,
) -> None:
    formed(hosts)
    login = hosts[0].member.login
    for_leader = login.connect(1.0)
    leader = Leadership(for_leader, "/leader", "me", TTL_S)
    leader.start()
    try:
        with Agents(lambda: login.connect(1.0)) as agents, contextlib.closing(login.connect()) as etcd:
            wait_until(lambda: leader.leading)
            guard = leader.guard()
            for number, host in enumerate(hosts):
                own = replace(login, endpoints=(https(host.address),))
                here, there = version_of(own), inspect(newer, folder / "trial").version
                assert here is not None
                assert "can be passed by" in refusal(there, here)
                host.kill()
                host.program = newer
                host.start()
                assert host.serves()
                assert str(version_of(own)) == "3.5.1"
                assert all_there(etcd, agents)
                # Members of two versions: writes of each reach the other.
                others = [replace(login, endpoints=(https(each.address),)) for each in hosts]
                for index, each in enumerate(others):
                    with contextlib.closing(each.connect()) as client:
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


def wait_until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
