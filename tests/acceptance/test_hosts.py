"""Two daemons and an etcd on three hosts, installed as docs/install.md says; hosts are lost as a whole, and training
goes on. Each host is a stock machine with a root file system of its own: they share nothing but the network."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bootstrap import BootstrapError
from supervisor.identity import load_identity
from tests.acceptance import control
from tests.acceptance.control import OPERATOR, Control, build_wheels, ensure_daemon_wheels
from tests.acceptance.documented import command, faults
from tests.acceptance.job_folder import job_folder
from tests.acceptance.reading import lost_steps, steps_in
from tests.acceptance.rented import Account, account
from tests.acceptance.stock import (
    REQUIREMENTS,
    USER,
    Network,
    asked_for,
    ensure_root,
    ensure_wheels,
    skipped_where_impossible,
    wheels_served,
    why_not,
)
from tests.support.newer_etcd import newer_etcd
from tests.support.s3 import S3
from tools.stack import ROOT

# Of the test alone: root file systems are built before it, within limits of their own.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900, func_only=True)]

INSTALL_S, TRAIN_S, TAKEOVER_S, HEARD_S, RELEASE_S = 180.0, 400.0, 60.0, 180.0, 120.0
JOB, STEPS, STEP_S = "keeper", 100_000, 0.2
SECTION = "Several daemons"
INSTALL = "sudo env UV_TOOL_DIR=/opt/spotsup UV_TOOL_BIN_DIR=/usr/local/bin uv tool install --python"
_MEMBERS = """\
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from supervisor.config import load_config
from supervisor.journal.connection import login_of
login = login_of(load_config(Path("/etc/spotsup/spotsupd.toml")))
for endpoint in login.endpoints:
    with closing(replace(login, endpoints=(endpoint,)).connect()) as etcd:
        etcd.get("/")
        count = len(etcd.call("/v3/cluster/member/list", {})["members"])
print(count, "members answer")
"""
Found = TypeVar("Found")


class Hosts:
    """Three hosts, and the account that their daemons rent from."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.seconds: dict[str, float] = {}
        self._folder, self._stack, self._began = folder, stack, time.monotonic()
        self._boots = 0
        self.network = Network(os.getpid() % 250)
        stack.callback(self.network.down)
        self.network.up()
        ours = build_wheels(ROOT, folder / "wheels")
        index = ensure_daemon_wheels(ROOT, ours)
        torch = ensure_wheels(ROOT, REQUIREMENTS)
        self._root, node = ensure_root(ROOT, control.PACKAGES), ensure_root(ROOT)
        self.account: Account = stack.enter_context(account(node, self.network, folder))
        # After the account: where that begins, moto forgets everything that it holds.
        self.s3 = stack.enter_context(S3(self.network.host).running())
        self.wheelhouse = stack.enter_context(wheels_served(torch, self.network.host))
        (folder / "operator").mkdir()
        self._identity = load_identity(folder / "operator" / "key")
        settings, uv = folder / "pip.conf", folder / "uv.toml"
        settings.write_text("[global]\nno-index = true\nfind-links = /srv/index\n")
        uv.write_text('no-index = true\nfind-links = ["/srv/index"]\n')
        self._places = {ours[0].parent: "/srv/wheels", index: "/srv/index", settings: "/etc/pip.conf"}
        self._places |= {uv: "/etc/uv/uv.toml", ROOT / "trainer" / "examples": "/srv/examples"}
        self._places |= {newer_etcd().parent: "/srv/newer"}
        self.passed("wheels and root file systems")
        with ThreadPoolExecutor(3) as pool:
            self.hosts = list(pool.map(self.boot, range(3)))
        self.passed("three hosts boot, and have spotsup")

    def boot(self, number: int) -> Control:
        """A host with an empty disk, and spotsup installed on it."""
        self._boots += 1
        folder = self._folder / f"host{number}-{self._boots}"
        host = Control(self._root, self.network, folder, self._identity, f"host{number}", number)
        self._stack.callback(host.machine.kill)
        host.boot(self._places, nodes=False, hosts=True)
        host.run("sudo cloud-init status --wait", 120.0)
        host.run(command("On a host", "sudo systemctl disable --now etcd"))
        host.run(command("With uv", "sudo env PIPX_HOME"), INSTALL_S)
        host.run(f"cd /srv/wheels && {command('With uv', INSTALL)}", INSTALL_S)
        return host

    def operator(self, line: str) -> str:
        """A line of the document, on the operator's own computer, whose ssh knows the hosts."""
        known = self._folder / "operator" / "known_hosts"
        known.write_text(
            "".join(f"{each.address} {self._identity.host_key(each.name).public}\n" for each in self.hosts)
        )
        key = self._folder / "operator" / "id"
        key.write_text(self._identity.client_key().private_openssh)
        key.chmod(0o600)
        bin_ = self._folder / "bin"
        bin_.mkdir(exist_ok=True)
        options = (
            f"-o User={OPERATOR} -o IdentityFile={key} -o UserKnownHostsFile={known} -o BatchMode=yes -F /dev/null"
        )
        (bin_ / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {options} "$@"\n')
        (bin_ / "ssh").chmod(0o755)
        for example, host in zip(("10.0.0.5", "10.0.0.6", "10.0.0.7"), self.hosts, strict=True):
            line = line.replace(example, host.address)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}"],
            env={**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def initialize(self) -> None:
        """The first host, what a person adds there, and the others by one command each."""
        first = self.hosts[0]
        group = self.account.security_group(*(each.address for each in self.hosts))
        init = command(SECTION, "sudo spotsupd init --cloud aws").replace("sg-0123456789abcdef0", group)
        for example, host in zip(("10.0.0.5", "10.0.0.6", "10.0.0.7"), self.hosts, strict=True):
            init = init.replace(example, host.address)
        said = first.run(
            f"{init} --set endpoint={self.account.server.url} --set ssh_user={USER} --set reach=ssh", INSTALL_S
        )
        assert f"etcd waits for 1 more of {self.hosts[1].address}, {self.hosts[2].address}" in said
        keys = "\n".join(f"{key}={value}" for key, value in self.account.server.environ.items() if "MOTO" not in key)
        node = f'[node]\nwheelhouse = "{self.wheelhouse}"\n'
        first.run(
            f"sudo tee -a /etc/spotsup/environment >/dev/null <<'END'\n{keys}\nEND\n"
            f"sudo tee -a /etc/spotsup/spotsupd.toml >/dev/null <<'END'\n\n{node}END\n"
        )
        # One after the other is as good: whoever is second has nothing to do.
        with ThreadPoolExecutor(2) as pool:
            joined = list(pool.map(self.join, (1, 2)))
        assert any("etcd answers to users only" in said for said in joined), joined
        assert all("answers to users only" in said or "etcd has its users" in said for said in joined), joined
        for host in self.hosts[:2]:
            self.start(host)

    def join(self, number: int, via: int = 0, more: str = "") -> str:
        """A further host, by the document's command for the second one."""
        (line,) = (each for each in self.lines() if "join-file" in each)
        return self.operator(
            f"{line}{more}".replace("10.0.0.6", f"10.0.0.{5 + number}").replace("10.0.0.5", f"10.0.0.{5 + via}")
        )

    def lines(self) -> list[str]:
        """All commands of the section."""
        return [command(SECTION, begin) for begin in ("sudo spotsupd init --cloud aws", "ssh 10.0.0.5")]

    def start(self, host: Control) -> None:
        """The daemon, after `spotsupd check`."""
        checked = host.run(f"{command('On a host', 'sudo systemd-run')} || :")
        assert checked
        assert faults(checked) == []
        host.run(command("On a host", "sudo systemctl enable --now spotsupd"))

    # -- looking -----------------------------------------------------------------------------------------------

    def passed(self, phase: str) -> None:
        """Note how long a phase took, since the last one."""
        now = time.monotonic()
        self.seconds[phase], self._began = round(now - self._began, 1), now
        print(f"{phase}: {self.seconds[phase]} s", flush=True)

    def ask(self, host: Control, asked: str) -> Any:
        """What spotsupctl answers."""
        return json.loads(host.run(f"sudo spotsupctl {asked} -o json"))

    def leads(self, host: Control) -> bool:
        """Whether a host's daemon says that it does."""
        return bool(self.ask(host, "daemon status")["leading"])

    def leader(self) -> Control:
        """The host whose daemon leads."""
        found = self.eventually("a leader", lambda: [each for each in self.hosts[:2] if self.leads(each)], TAKEOVER_S)
        return found[0]

    def job(self, host: Control) -> dict[str, Any]:
        """The job, as a host's daemon shows it."""
        found: dict[str, Any] = self.ask(host, f"status {JOB}")
        return found

    def trains(self, host: Control, members: int) -> dict[str, Any] | None:
        """The job, where so many nodes are in its round, and have made a step in it."""
        found = self.job(host)
        in_round = sum(node["state"] == "member" for node in found["node_list"])
        stepped = found["progress_round"] == found["round"] and found["step"] > 0
        return found if in_round == members and stepped and found["state"] == "running" else None

    def eventually(self, what: str, look: Callable[[], Found | None], timeout_s: float) -> Found:
        """What `look` finds, once it finds something."""
        deadline, why = time.monotonic() + timeout_s, ""
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
            except (BootstrapError, OSError) as error:
                why = str(error)
            time.sleep(0.5)
        raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{why}\n{self.why()}")

    def why(self) -> str:
        """What the hosts say when a wait has failed."""
        log = "sudo journalctl -u spotsupd -n 40 --no-pager -o cat; sudo spotsupctl nodes || :"
        found = []
        for host in self.hosts:
            try:
                found.append(f"== {host.name}\n{host.run(log)}")
            except (BootstrapError, OSError) as error:
                found.append(f"== {host.name}: {error}")
        return "\n".join(found)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if reason := why_not() or ("" if asked_for() else "takes minutes; in make acceptance"):
        pytest.skip(reason)
    with ExitStack() as stack:
        with skipped_where_impossible():
            made = Hosts(tmp_path, stack)
        yield made


def test_hosts_are_lost_as_a_whole_and_training_goes_on(hosts: Hosts) -> None:
    hosts.initialize()
    hosts.passed("init on one, join on two, check, start")
    first = hosts.leader()
    (second,) = (each for each in hosts.hosts[:2] if each is not first)
    hosts.eventually("a standby", lambda: not hosts.leads(second), TAKEOVER_S)
    secrets = "sudo sha256sum /var/lib/spotsup/cluster.key /var/lib/spotsup/etcd.password /var/lib/spotsup/tls/ca.crt"
    assert first.run(secrets) == second.run(secrets)
    modes = "sudo stat -c '%a %U' /var/lib/spotsup/cluster.key /var/lib/spotsup/tls/ca.key /etc/spotsup/environment"
    assert second.run(modes).splitlines() == ["600 spotsup", "600 spotsup", "600 root"]

    # The standby takes the command.
    second.run(job_folder(JOB, "{min: 1, desired: 1, max: 2}", STEPS, STEP_S, hosts.s3))
    assert second.run("cd job && sudo spotsupctl submit job.yaml") == JOB
    hosts.eventually("one node trains", lambda: hosts.trains(second, 1), TRAIN_S)
    hosts.passed("submit to the first step")
    number = hosts.job(second)["round"]
    machines = [each.node for each in hosts.account.machines.running()]

    # The network of the leader's host is cut. What it had carried to nodes, the other carries.
    first.machine.cut_off()
    hosts.eventually("the standby leads", lambda: hosts.leads(second), TAKEOVER_S)
    hosts.passed("the leader's network is cut: the standby leads")
    stepped(hosts, second, number)
    hosts.passed("and hears a step")
    first.machine.connect()
    hosts.eventually("the old leader is a standby", lambda: not hosts.leads(first), TAKEOVER_S)
    assert hosts.leads(second)
    assert [each.node for each in hosts.account.machines.running()] == machines
    hosts.passed("the network is back: it is a standby")

    lose_etcds_data(hosts)
    change_etcds_program(hosts)
    lose_the_leaders_host(hosts, second, first, number)
    new = replace_the_lost_host(hosts, second, first)
    lose_the_leaders_host_again(hosts, first, new)

    made = steps_in(new.run(f"sudo spotsupctl logs {JOB}"))
    assert lost_steps(made) == 0
    new.run(f"sudo spotsupctl cancel {JOB}")
    hosts.eventually("all is released", lambda: not hosts.account.left(), RELEASE_S)
    hosts.passed("cancelled and released")
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "hosts.json").write_text(json.dumps(hosts.seconds, indent=1) + "\n")
    print(json.dumps(hosts.seconds, indent=1))


def lose_etcds_data(hosts: Hosts) -> None:
    """Of the third host, and all else of it is there: nothing starts before a person has repeated `init` there."""
    third = hosts.hosts[2]
    third.run("sudo systemctl stop spotsup-etcd && sudo sh -c 'rm /var/lib/spotsup/etcd/member/wal/*.wal'")
    third.run("sudo systemctl start spotsup-etcd; ! systemctl is-active spotsup-etcd")
    assert "a new one takes its place" in third.run("sudo spotsupd init", INSTALL_S)
    assert members_of(third) == "3 members answer"
    third.run("sudo systemctl restart spotsup-etcd && ! sudo ls /var/lib/spotsup/etcd/begin.env")
    hosts.passed("etcd's data of one host is lost: it has its place again")


def members_of(host: Control) -> str:
    """What a host finds of etcd's members."""
    return host.run(f"sudo -u spotsup /opt/spotsup/spotsup/bin/python - <<'END'\n{_MEMBERS}END\n")


def change_etcds_program(hosts: Hosts) -> None:
    """On one host after another, by the document's command, with a program that claims to be what it is not: it serves,
    nothing is lost, and the claim is found out."""
    before = hosts.job(hosts.hosts[0])
    for host in hosts.hosts:
        said = host.run(f"{put_archive(host)} 2>&1 || echo refused", INSTALL_S)
        assert "etcd 3.5.33 is at /usr/local/lib/spotsup/etcd" in said
        assert "etcd is 3.5.1 after its restart" in said, said
        assert members_of(host) == "3 members answer"
    after = hosts.eventually("a step", lambda: stepped_on(hosts, before["step"]), HEARD_S)
    assert after["round"] == before["round"], "training went on"
    hosts.passed("etcd goes to another version on one host after another")


def put_archive(host: Control) -> str:
    """What a person has fetched to a host; the document's command that takes it."""
    put = command("An etcd that is closed", "sudo spotsupd init --etcd")
    name = put.split()[-1]
    inside = name.removesuffix(".tar.gz")
    host.run(
        f"mkdir -p {inside} && cat >{inside}/etcd <<'END'\n#!/bin/sh\n"
        '[ "$1" = --version ] && echo "etcd Version: 3.5.33" && exit\nexec /srv/newer/etcd "$@"\nEND\n'
        f"chmod 755 {inside}/etcd && tar -czf {name} {inside}"
    )
    return put


def stepped_on(hosts: Hosts, step: int) -> dict[str, Any] | None:
    """The job, once it has made a step more."""
    found = hosts.job(hosts.hosts[0])
    return found if found["step"] > step else None


def lose_the_leaders_host(hosts: Hosts, second: Control, first: Control, number: int) -> None:
    """Its power is off: daemon, etcd and all of its disk are gone. `second` led."""
    second.machine.kill()
    hosts.eventually("the standby leads", lambda: hosts.leads(first), TAKEOVER_S)
    hosts.passed("the leader's host is off: the standby leads")
    stepped(hosts, first, number)
    hosts.passed("and hears a step again")
    # It has all that a new node needs: credentials, the cluster's key, the CA, users of etcd, a way to etcd.
    first.run(f"sudo spotsupctl scale {JOB} 2")
    hosts.eventually("two nodes train", lambda: hosts.trains(first, 2), TRAIN_S)
    hosts.passed("scaled to two nodes")


def replace_the_lost_host(hosts: Hosts, second: Control, first: Control) -> Control:
    """An empty host gets its address, and its place in etcd."""
    lost = hosts.hosts.index(second)
    hosts.hosts[lost] = hosts.boot(lost)
    hosts.passed("a new host boots, and has spotsup")
    via = hosts.hosts.index(first)
    with pytest.raises(AssertionError, match="give --etcd the same release as there"):
        hosts.join(lost, via)
    archive = put_archive(hosts.hosts[lost]).split()[-1]
    assert "a new one takes its place" in hosts.join(lost, via, f" --etcd {archive}")
    hosts.start(hosts.hosts[lost])
    assert members_of(first) == "3 members answer"
    hosts.passed("it has the lost one's place")
    return hosts.hosts[lost]


def lose_the_leaders_host_again(hosts: Hosts, first: Control, new: Control) -> None:
    """All that is left of the beginning is the third host's etcd."""
    before = hosts.job(first)
    first.machine.kill()
    hosts.eventually("the new host leads", lambda: hosts.leads(new), TAKEOVER_S)
    stepped(hosts, new, before["round"])
    hosts.passed("the other host is off: the new one leads, and hears a step")


def stepped(hosts: Hosts, host: Control, number: int) -> None:
    """The same round makes another step, and the daemon of this host hears of it."""
    before = hosts.eventually("the job is shown", lambda: hosts.job(host), TAKEOVER_S)
    hosts.eventually("a step", lambda: hosts.job(host)["step"] > before["step"], HEARD_S)
    assert hosts.job(host)["round"] == number
