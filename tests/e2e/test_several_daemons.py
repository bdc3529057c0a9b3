"""Two hosts and an etcd of three members that somebody else runs, installed as docs/install.md says: a member and the
leading daemon are killed, and a job trains on."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsup_trainer.etcd import Etcd, Tls

from supervisor.journal.certificates import TlsFiles, ensure_certificates
from tests.e2e.ticking import code_in, ticks, went_on
from tests.support.documents import blocks
from tests.support.etcd_server import EtcdServer, etcd_cluster, require_login
from tests.support.host_box import HostBox, as_root, host_box
from tools.stack import ROOT

pytestmark = [pytest.mark.nightly, as_root]

PASSWORD = "of the person who runs etcd"  # noqa: S105 - of this test's etcd
INIT, PIPE, INIT_THERE = (
    line
    for block in blocks(ROOT / "docs" / "install.md", "sh")
    if block.heading == "Several daemons"
    for line in block.commands()
)


class Host:
    """A host, and its daemon once it was started."""

    def __init__(self, box: HostBox) -> None:
        self.box = box
        self.daemon: subprocess.Popen[str] | None = None

    def run(self, line: str) -> str:
        """A line of the document."""
        return self.box.run(line.removeprefix("sudo "))

    def start(self) -> None:
        """As root: the interpreter of a clone may be for its owner alone."""
        self.daemon = self.box.start("exec spotsupd run --config /etc/spotsup/spotsupd.toml")

    def kill(self) -> None:
        """Its daemon, by SIGKILL."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()
        self.daemon = None

    def ctl(self, line: str) -> str:
        """What spotsupctl answers, as root; a standby says on stderr that it is one."""
        return self.box.run(f"spotsupctl {line} 2>/dev/null")

    def answers(self) -> bool:
        """Whether its daemon does."""
        return self.box.attempt("spotsupctl daemon status").returncode == 0

    def leads(self) -> bool:
        """Whether its daemon answers, and says that it does."""
        done = self.box.attempt("spotsupctl daemon status -o json 2>/dev/null")
        return done.returncode == 0 and bool(json.loads(done.stdout)["leading"])

    def job(self) -> dict[str, Any]:
        """As its daemon shows it."""
        found: dict[str, Any] = json.loads(self.ctl("status ticker -o json"))
        return found

    def log(self) -> str:
        """The end of what its daemon said."""
        file = self.box.folder / "started.log"
        return file.read_text()[-3000:] if file.exists() else "it was not started"


@pytest.fixture
def members(tmp_path: Path) -> Iterator[tuple[list[EtcdServer], TlsFiles]]:
    files = TlsFiles(tmp_path / "tls-of-etcd")
    ensure_certificates(files, (), dt.datetime.now(dt.UTC))
    options = ("--cert-file", str(files.cert), "--key-file", str(files.key), "--bcrypt-cost", "4")
    with etcd_cluster(tmp_path / "etcd", 3, options, "https") as found:
        with contextlib.closing(Etcd([each.endpoint for each in found], tls=Tls(str(files.ca)))) as etcd:
            require_login(etcd, PASSWORD)
        yield found, files


def eventually(what: str, holds: Callable[[], object], hosts: list[Host], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "\n".join([what, *(host.log() for host in hosts)])
        time.sleep(0.3)


def test_a_member_and_the_leader_are_killed_and_a_job_trains_on(
    members: tuple[list[EtcdServer], TlsFiles], tmp_path: Path
) -> None:
    etcds, tls = members
    shared = tmp_path / "shared"
    shared.mkdir()
    with host_box(tmp_path / "a") as a, host_box(tmp_path / "b") as b:
        first, second = hosts = [Host(a), Host(b)]
        (shared / "login").write_text(f"root:{PASSWORD}\n")
        urls = ",".join(each.endpoint for each in etcds)
        init = re.sub(
            r"--cloud aws .*--etcd \S+ --etcd-ca \S+ .*", f"--cloud local --etcd {urls} --etcd-ca {tls.ca}", INIT
        )
        assert "done: make the user spotsupd of etcd" in first.run(f"{init} --etcd-login {shared}/login")
        # Machines of the local cloud are processes: both daemons rent them in one place.
        first.run(f"printf '\\n[local]\\ndir = \"{shared}/cloud\"\\n' >>/etc/spotsup/spotsupd.toml")

        out, into = (part.partition(" sudo ")[2] for part in PIPE.split(" | "))
        first.run(f"{out} >{shared}/piped")
        second.run(f"{into} <{shared}/piped")
        said = second.run(INIT_THERE.partition(" sudo ")[2])
        assert "done: give /var/lib/spotsup/cluster.key to spotsup:spotsup" in said or "all files are there" in said
        assert "copy" not in said
        modes = (
            "cd /; stat -c '%a %U %n' var/lib/spotsup/cluster.key etc/spotsup/*; sha256sum var/lib/spotsup/cluster.key"
        )
        assert first.run(modes) == second.run(modes)

        for host in hosts:
            host.start()
            eventually("a daemon that answers", host.answers, hosts)
        assert first.leads()
        assert not second.leads()
        second.ctl(f"submit {code_in(shared, '{min: 1, desired: 1, max: 2}')}")
        eventually("the first step", lambda: ticks(shared), hosts, 150.0)
        (access,) = (shared / "cloud").rglob("etcd.json")
        assert json.loads(access.read_text())["ca"] == tls.ca.read_text(), "nodes have etcd's CA"

        etcds[0].kill()
        made = len(ticks(shared))
        first.kill()
        eventually("the standby leads", second.leads, hosts)
        eventually("it looks after the job", lambda: second.job()["state"] == "running", hosts)
        eventually("another step", lambda: len(ticks(shared)) > made, hosts)
        went_on(shared)
        checked = second.box.attempt("spotsupd check --config /etc/spotsup/spotsupd.toml").stdout
        assert "not ok  etcd, members: 2 of 3 members serve, and none more may be lost" in checked
        second.ctl("cancel ticker")

        def released() -> bool:
            return all(node["state"] == "gone" for node in json.loads(second.ctl("nodes -o json")))

        eventually("its node is released", released, hosts)
