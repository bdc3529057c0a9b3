"""`spotsupd init --etcd`: three real members with TLS and users that somebody else has made, and two hosts on them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from spotsup_trainer.etcd import Etcd, Tls

from supervisor.journal.certificates import TlsFiles, ensure_certificates
from tests.support.etcd_server import EtcdServer, etcd_cluster, require_login
from tests.support.host_box import HostBox, as_root, host_box

pytestmark = [pytest.mark.long, as_root]

PASSWORD = "of the person who runs etcd"  # noqa: S105 - of this test's etcd


@dataclass
class Cluster:
    """An etcd, and what its owner has of it."""

    members: list[EtcdServer]
    tls: TlsFiles

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(each.endpoint for each in self.members)

    def client(self) -> Etcd:
        return Etcd(self.urls, user="root", password=PASSWORD, tls=Tls(str(self.tls.ca)))

    def init(self, folder: Path, more: str = "") -> str:
        """The command, with a file that holds the login."""
        (folder / "login").write_text(f"root:{PASSWORD}\n")
        return (
            f"spotsupd init --cloud local --etcd {','.join(self.urls)} --etcd-ca {self.tls.ca} "
            f"--etcd-login {folder}/login {more}"
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with made(tmp_path, 3) as found:
        yield found


class made:  # noqa: N801 - a context manager
    """`count` members with TLS; with `users` they answer to root only."""

    def __init__(self, folder: Path, count: int, *, users: bool = True, options: tuple[str, ...] = ()) -> None:
        self._files = TlsFiles(folder / "tls-of-etcd")
        ensure_certificates(self._files, (), dt.datetime.now(dt.UTC))
        tls = ("--cert-file", str(self._files.cert), "--key-file", str(self._files.key), *options)
        self._cluster = etcd_cluster(folder / "etcd", count, tls, "https")
        self._users = users

    def __enter__(self) -> Cluster:
        found = Cluster(self._cluster.__enter__(), self._files)
        if self._users:
            with closing(Etcd(found.urls, tls=Tls(str(self._files.ca)))) as etcd:
                require_login(etcd, PASSWORD)
        return found

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__(None, None, None)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[HostBox]:
    with host_box(tmp_path / "first") as found:
        yield found


def test_the_daemons_user_and_the_configuration_are_made_once(cluster: Cluster, box: HostBox) -> None:
    dry = box.run(cluster.init(box.folder, "--dry-run"))
    assert "would write /etc/spotsup/spotsupd.toml" in dry
    box.run("[ ! -e /etc/spotsup ]")
    with closing(cluster.client()) as etcd:
        assert etcd.call("/v3/auth/user/list", {})["users"] == ["root"]
        said = box.run(cluster.init(box.folder))
        assert "ok      etcd, members: 3 of 3 members serve, etcd 3." in said
        assert "done: make the user spotsupd of etcd, with the role root" in said
        assert etcd.call("/v3/auth/user/get", {"name": "spotsupd"})["roles"] == ["root"]
    modes = box.run("stat --format '%a %U:%G %n' /etc/spotsup/* /var/lib/spotsup/*; ls /etc/systemd/system/spotsup*")
    for line in (
        "644 root:root /etc/spotsup/etcd-ca.crt",
        "640 root:spotsup /etc/spotsup/spotsupd.toml",
        "600 spotsup:spotsup /var/lib/spotsup/cluster.key",
        "600 spotsup:spotsup /var/lib/spotsup/etcd.password",
    ):
        assert line in modes
    assert "spotsup-etcd.service" not in modes, "none is made here"
    assert PASSWORD not in box.run("cat /etc/spotsup/* /var/lib/spotsup/etcd.password; true")
    # Repeated, it asks for no login, and makes nothing.
    again = box.run(cluster.init(box.folder).replace("--etcd-login", "--ssh-from x || :; :"))
    assert "are for --account" in again
    files = "find /etc/spotsup /var/lib/spotsup -type f -exec sha256sum {} + | sort"
    before = box.run(files)
    again = box.run(re.sub(r"--etcd-login \S+", "", cluster.init(box.folder)))
    assert "all files are there" in again
    assert "make the user" not in again
    assert box.run("spotsupd init").startswith("all files are there\n")
    assert box.run(files) == before


def test_a_member_that_is_away_is_said_and_does_no_harm(cluster: Cluster, box: HostBox) -> None:
    cluster.members[1].kill()
    said = box.run(cluster.init(box.folder))
    assert f"not ok  etcd, members: 2 of 3 members serve, and none more may be lost: {cluster.urls[1]}: " in said
    assert "done: make the user spotsupd of etcd" in said
    cluster.members[2].kill()
    refused = box.attempt(cluster.init(box.folder, "--cluster other"))
    assert refused.returncode == 5
    assert "1 of 3 members serve, which is no majority: " in refused.stdout
    assert "no majority of its members answers: see to that first" in refused.stdout
    assert "Connection refused (start it, or correct --etcd)" in refused.stdout


def test_what_is_wrong_is_said_in_one_list_and_nothing_is_made(cluster: Cluster, box: HostBox, tmp_path: Path) -> None:
    other = TlsFiles(tmp_path / "other-tls")
    ensure_certificates(other, (), dt.datetime.now(dt.UTC))
    command = cluster.init(box.folder)
    (box.folder / "wrong").write_text("root:wrong\n")
    (box.folder / "plain").write_text("no login\n")
    (box.folder / "reader").write_text("reader:phrase\n")
    with closing(cluster.client()) as etcd:
        etcd.call("/v3/auth/user/add", {"name": "reader", "password": "phrase"})
    login = f"--etcd-login {box.folder}/login"
    for wrong, code, message in (
        (command.replace(str(cluster.tls.ca), str(other.ca)), 5, "give --etcd-ca the certificate of the CA that made"),
        (command.replace("https://", "http://", 1), 2, "without TLS whoever is on the way reads passwords"),
        (command.replace("/login", "/wrong"), 5, "does not accept user 'root'"),
        (command.replace("/login", "/wrong"), 5, "give --etcd-login the right NAME:PASSWORD"),
        (command.replace("/login", "/reader"), 5, "give --etcd-login one with the role root"),
        (command.replace("/login", "/plain"), 2, "holds no NAME:PASSWORD"),
        (command.replace(login, ""), 2, "give --etcd-login FILE, which holds NAME:PASSWORD"),
        (re.sub(r"--etcd-ca \S+", "", command), 2, "--etcd needs --etcd-ca FILE"),
        (command.replace(cluster.urls[2], "https://127.0.0.1:1"), 0, "Connection refused"),
        (command.replace(f",{cluster.urls[2]}", ""), 0, "etcd has 3 members, and only 2 are named"),
    ):
        done = box.attempt(f"{wrong} --dry-run")
        assert (done.returncode, message in done.stdout) == (code, True), done.stdout
        box.run("[ ! -e /etc/spotsup ]")
    rented = command.replace("--cloud local", "--cloud aws --region us-east-1")
    assert "[aws] rents machines, which cannot be given etcd at https://127.0.0.1" in box.attempt(rented).stdout


def test_an_etcd_that_asks_for_no_login_is_refused_with_what_closes_it(box: HostBox, tmp_path: Path) -> None:
    with made(tmp_path, 1, users=False) as cluster:
        refused = box.attempt(cluster.init(box.folder))
        assert refused.returncode == 5
        assert '`etcdctl auth enable` (etcd.io, "Role-based access control"), then repeat' in refused.stdout
        box.run("[ ! -e /etc/spotsup ]")


def test_an_etcd_that_asks_for_client_certificates_is_refused(box: HostBox, tmp_path: Path) -> None:
    ca = tmp_path / "tls-of-etcd" / "ca.crt"
    with made(tmp_path, 1, users=False, options=("--client-cert-auth", "--trusted-ca-file", str(ca))) as cluster:
        refused = box.attempt(cluster.init(box.folder))
        assert (refused.returncode, "start it without --client-cert-auth" in refused.stdout) == (5, True), (
            refused.stdout
        )


def test_an_etcd_of_another_installation_is_left_alone(cluster: Cluster, box: HostBox, tmp_path: Path) -> None:
    box.run(cluster.init(box.folder))
    with host_box(tmp_path / "other") as other:
        refused = other.attempt(cluster.init(other.folder))
        assert refused.returncode == 5
        assert "it has a user spotsupd, whose password is not on this host" in refused.stdout
        assert "copy that one's files (docs/install.md#several-daemons)" in refused.stdout
        other.run("[ ! -e /etc/spotsup ]")
