"""A real etcd with TLS and users, secured as spotsup does it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotsup_trainer.etcd import Etcd, Tls
from spotsup_trainer.etcd.access import EtcdAccess
from spotsup_trainer.wire import Keys

from provisioners.base import Market, Offer
from supervisor.identity import Identity
from supervisor.journal.certificates import TlsFiles, ensure_certificates
from supervisor.journal.journal import EtcdUse
from supervisor.journal.users import JobUsers, enable_users
from supervisor.model import JobRecord, NodeRecord, NodeState
from supervisor.spec import parse_spec
from tests.support.etcd_server import EtcdServer, etcd_server

KEYS = Keys("test")
IDENTITY = Identity(b"k" * 32)
DAEMON = "spotsupd"
PHRASE = IDENTITY.etcd_password(DAEMON)
OFFER = Offer("local", "local", "local-a", "small", Market.SPOT, 0.1)


def a_job(name: str = "job", uid: str = "abcde") -> JobRecord:
    """A job that was just submitted."""
    spec = parse_spec({"name": name, "nodes": {"min": 1, "desired": 2, "max": 3}, "run": "train.py"})
    return JobRecord(name, uid, spec, "0" * 64, 1.0, 1, 2, 3)


def a_node(job: JobRecord, number: int = 1, state: NodeState = NodeState.MEMBER) -> NodeRecord:
    """One of its nodes."""
    return NodeRecord(f"{job.task_id}-{number}", job.name, f"token-{number}", OFFER, 2.0, state=state)


@dataclass
class SecuredEtcd:
    """`use`: the jobs whose nodes may use it, as a journal says."""

    server: EtcdServer
    tls: TlsFiles
    use: EtcdUse = field(default_factory=lambda: EtcdUse((), (), frozenset()))

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return self.server.endpoint

    @property
    def ca(self) -> str:
        """As PEM text."""
        return self.tls.ca.read_text()

    def client(self, user: str = DAEMON, password: str = PHRASE, timeout_s: float = 5.0) -> Etcd:
        """The daemon's, or another user's; without a login where `user` is empty."""
        return self.client_at(self.endpoint, user, password, timeout_s)

    def client_at(self, endpoint: str, user: str = DAEMON, password: str = PHRASE, timeout_s: float = 5.0) -> Etcd:
        """The same, by another way."""
        tls = Tls(str(self.tls.ca))
        return Etcd([endpoint], user=user or None, password=password, tls=tls, timeout_s=timeout_s)

    def enable(self) -> None:
        """From now on it answers to users only."""
        with closing(self.client("")) as anonymous, closing(self.client()) as known:
            enable_users(anonymous, known, DAEMON, PHRASE)

    @contextmanager
    def users(self) -> Iterator[JobUsers]:
        """As a daemon has them."""
        with closing(self.client()) as etcd:
            yield JobUsers(etcd, KEYS, IDENTITY, lambda: self.ca, lambda: self.use)

    def access(self, job: JobRecord) -> EtcdAccess:
        """Of the job's nodes, which may use etcd from now on."""
        self.use = replace(self.use, jobs=(*self.use.jobs, job))
        with self.users() as users:
            return users.ensure(job)


@contextmanager
def secured_etcd(folder: Path, options: Sequence[str] = (), *, enable: bool = True) -> Iterator[SecuredEtcd]:
    """A running etcd below `folder`, gone at the end."""
    files = TlsFiles(folder / "tls")
    ensure_certificates(files, (), dt.datetime.now(dt.UTC))
    secure = ("--cert-file", str(files.cert), "--key-file", str(files.key), "--bcrypt-cost", "4")
    with etcd_server(folder / "etcd", [*secure, *options], scheme="https") as server:
        made = SecuredEtcd(server, files)
        if enable:
            made.enable()
        yield made
