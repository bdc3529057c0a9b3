"""How etcd begins on each of three hosts, and begins again where its data was lost.

Real members, with TLS and users, at the ports of an installation, on loopback addresses of this test's own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError

from supervisor.config import Config, EtcdConfig
from supervisor.errors import StartError
from supervisor.installation.answers import EtcdHere, https
from supervisor.installation.etcd_member import MemberHere, answers, has_data
from supervisor.installation.layout import BEGIN, PEER_PORT, etcd_environment
from supervisor.journal.certificates import TlsFiles, ensure_certificates
from supervisor.journal.connection import EtcdLogin
from supervisor.journal.users import enable_users
from tests.support.programs import find_program, program_env

pytestmark = [pytest.mark.timeout(240), pytest.mark.nightly]
USER, PHRASE = "spotsupd", "x" * 64
NOW = dt.datetime.now(dt.UTC)
# Seconds in which etcd that may run does answer, on a busy computer.
SOON_S = 60.0


class Host:
    """A host with an address, a folder, and an etcd that is started as the unit does."""

    def __init__(self, address: str, hosts: tuple[str, ...], folder: Path, ca: Path) -> None:
        self.address, self._hosts, self._folder = address, hosts, folder
        self._data = folder / "etcd"
        self._data.mkdir(parents=True)
        tls = TlsFiles(folder / "tls")
        shutil.copytree(ca, tls.folder)
        ensure_certificates(tls, (address,), NOW)
        login = EtcdLogin(tuple(map(https, hosts)), (), USER, PHRASE, str(tls.ca))
        others = tuple(each for each in hosts if each != address)
        self.member = MemberHere(address, others, login, tls, self._data, folder / "etcd.begun")
        self._process: subprocess.Popen[bytes] | None = None
        self.program = find_program("etcd")

    def init(self, *, first: bool = False, limit_s: float = 30.0) -> str:
        """Let etcd begin, and start it."""
        said = self.member.take_place(first=first, stop=self.kill, limit_s=limit_s)
        self.start()
        return said

    def start(self) -> None:
        """As the unit: nothing happens without data or a permission to begin."""
        begin = self._data / BEGIN
        if self._process is not None or not (begin.exists() or has_data(self._data)):
            return
        config = Config(etcd=EtcdConfig(endpoints=tuple(map(https, self._hosts))))
        text = etcd_environment(config, EtcdHere((self.address,), self.address, self._hosts))
        text = text.replace("/var/lib/spotsup/tls", str(self.member.tls.folder))
        text = text.replace("https://127.0.0.1:2379,", "")  # each test's hosts share this computer's
        text += begin.read_text() if begin.exists() else ""
        settings = dict(line.split("=", 1) for line in text.splitlines() if line[:1] not in {"#", ""})
        settings |= {"ETCD_DATA_DIR": str(self._data), "ETCD_LOG_LEVEL": "warn"}
        settings |= {"ETCD_LISTEN_CLIENT_URLS": https(self.address)}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program)],
                env={**program_env(), **{key: value for key, value in settings.items() if key.startswith("ETCD_")}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_data(self) -> None:
        """Of etcd; the rest of the disk is there."""
        self.kill()
        shutil.rmtree(self._data)
        self._data.mkdir()

    def serves(self, patience_s: float = SOON_S) -> bool:
        return answers(replace(self.member.login, endpoints=(https(self.address),)), patience_s)

    @property
    def began_as(self) -> str:
        return (self._data / BEGIN).read_text().strip().rpartition("=")[2]

    @contextlib.contextmanager
    def client(self) -> Iterator[Etcd]:
        login = replace(self.member.login, endpoints=(https(self.address),))
        with contextlib.closing(login.connect(10.0)) as etcd:
            yield etcd


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    rng = random.SystemRandom()
    net = f"127.{rng.randrange(16, 250)}.{rng.randrange(250)}"
    addresses = tuple(f"{net}.{number}" for number in (11, 12, 13))
    ca = TlsFiles(tmp_path / "ca")
    ensure_certificates(ca, (), NOW)
    for name in ("etcd.crt", "etcd.key"):
        (ca.folder / name).unlink()
    made = [Host(each, addresses, tmp_path / each, ca.folder) for each in addresses]
    try:
        yield made
    finally:
        for host in made:
            host.kill()


def formed(hosts: list[Host]) -> None:
    """Install all three, with users and one key."""
    hosts[0].init(first=True)
    for host in hosts[1:]:
        host.init()
    assert all(host.serves() for host in hosts)
    enable(hosts[0])
    eventually(lambda: put(hosts[0], "/x", b"1"))


def put(host: Host, key: str, value: bytes) -> bool:
    with host.client() as etcd:
        return etcd.put(key, value) > 0


def enable(host: Host) -> bool:
    login = replace(host.member.login, endpoints=(https(host.address),))
    with contextlib.closing(login.anonymous().connect()) as outside, contextlib.closing(login.connect()) as inside:
        return enable_users(outside, inside, USER, PHRASE)


def eventually(look: Callable[[], bool], limit_s: float = SOON_S) -> None:
    deadline = time.monotonic() + limit_s
    problem = ""
    while time.monotonic() < deadline:
        try:
            if look():
                return
        except EtcdError as error:
            problem = str(error)
        time.sleep(0.2)
    raise AssertionError(problem or "not in time")


def value_at(host: Host) -> bytes | None:
    with host.client() as etcd:
        found = etcd.get("/x")
    return found.value if found else None


def test_three_hosts_become_one_etcd_whichever_order_the_last_two_come_in(hosts: list[Host]) -> None:
    assert hosts[0].init(first=True) == ""
    assert not hosts[0].serves(1.0), "it waits"
    assert hosts[0].member.runs() == ""
    # Both at once, and both then make the users.
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(Host.init, hosts[1:])) == ["", ""]
        assert all(host.serves() for host in hosts)
        made = list(pool.map(enable, hosts[1:]))
    assert sum(made) <= 2
    assert {host.began_as for host in hosts} == {"new"}
    assert enable(hosts[0]) is False
    with pytest.raises(EtcdRefusedError), contextlib.closing(hosts[0].member.login.anonymous().connect()) as anonymous:
        anonymous.get("/x")


def test_the_second_host_waits_for_the_first_ones_word_and_a_silent_etcd_is_no_new_one(hosts: list[Host]) -> None:
    with pytest.raises(StartError, match=r"nobody can say whether it has had this host as a member before"):
        ask_soon(hosts[1]).take_place(first=False, stop=hosts[1].kill)
    assert not (hosts[1].member.data / BEGIN).exists()
    hosts[1].start()
    assert ask_soon(hosts[1]).runs() != "", "the unit starts nothing"


def ask_soon(host: Host) -> MemberHere:
    """It asks once."""
    return replace(host.member, ask_again_s=0.0)


@pytest.mark.parametrize("lost", ["all data", "only its log"])
def test_a_host_whose_data_was_lost_becomes_a_new_member_and_nothing_starts_before(
    hosts: list[Host], lost: str
) -> None:
    formed(hosts)
    third = hosts[2]
    third.kill()
    (third.member.data / BEGIN).unlink()  # as the unit does
    if lost == "all data":
        third.lose_data()
    else:
        for path in (third.member.data / "member" / "wal").glob("*.wal"):
            path.unlink()
    eventually(lambda: put(hosts[0], "/x", b"2"))  # where the third one led, a new leader is elected first
    third.start()
    assert ask_soon(third).runs() != "", "the unit starts nothing"
    # By repeating `init` here, without what another host gives.
    assert "a new one takes its place" in third.init(first=True)
    assert third.serves()
    assert third.began_as == "existing"
    eventually(lambda: value_at(third) == b"2")
    with hosts[0].client() as etcd:
        assert len(etcd.call("/v3/cluster/member/list", {})["members"]) == 3
    kept = [path.name.startswith("member.lost-") for path in third.member.data.iterdir()]
    assert any(kept) == (lost == "only its log")
    # Once more: it has data now, and stays who it is.
    assert third.init() == ""
    assert not (third.member.data / BEGIN).exists()


def test_what_one_other_host_alone_knows_is_not_voted_away_by_a_host_without_data(hosts: list[Host]) -> None:
    """The third one lags, the first one is off: with an empty second one as it was, they would be a majority."""
    formed(hosts)
    hosts[2].kill()
    eventually(lambda: put(hosts[1], "/x", b"acknowledged"))
    hosts[0].kill()
    hosts[1].lose_data()
    hosts[2].start()
    eventually(lambda: hosts[2].member.runs() == "")
    with pytest.raises(StartError, match="do not agree now on who its members are"):
        hosts[1].init(limit_s=3.0)
    assert ask_soon(hosts[1]).runs() != ""
    hosts[0].start()
    assert hosts[0].serves()
    eventually(lambda: value_at(hosts[0]) == b"acknowledged")
    assert "a new one takes its place" in hosts[1].init(limit_s=SOON_S)
    assert hosts[1].serves()
    eventually(lambda: value_at(hosts[1]) == b"acknowledged")


def test_a_host_of_another_installation_is_named(hosts: list[Host], tmp_path: Path) -> None:
    formed(hosts)
    other = TlsFiles(tmp_path / "other")
    ensure_certificates(other, (hosts[2].address,), NOW)
    foreign = replace(hosts[2].member, tls=other)
    hosts[2].lose_data()
    with pytest.raises(StartError, match=r"has an etcd of another installation"):
        foreign.take_place(first=True, stop=hosts[2].kill)


def test_what_listens_there_and_is_no_etcd_is_no_answer(hosts: list[Host]) -> None:
    with socket.create_server((hosts[0].address, PEER_PORT)) as server:
        said: list[str] = []
        thread = threading.Thread(target=lambda: said.append(refused(ask_soon(hosts[1]))))
        thread.start()
        server.accept()[0].close()
        thread.join()
    assert hosts[0].address in said[0]


def refused(member: MemberHere) -> str:
    with pytest.raises(StartError) as caught:
        member.take_place(first=False, stop=os.getpid)
    return str(caught.value)
