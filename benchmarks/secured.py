"""An etcd with TLS and users, as `[etcd] secure = true` makes it, beside one that has neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from supervisor.config import parse_config
from supervisor.identity import load_identity
from supervisor.journal.connection import embedded_etcd_of, login_to_embedded
from supervisor.journal.journal import EtcdUse
from supervisor.journal.users import JobUsers
from supervisor.model import JobRecord
from supervisor.spec import parse_spec


@dataclass(frozen=True, slots=True)
class Secured:
    """Such an etcd. `access`: makes the user of a job, and returns what its nodes need, as a file's content."""

    endpoint: str
    connect: Callable[[], Etcd]
    access: Callable[[str], bytes]


@contextmanager
def secured_etcd(folder: Path, cluster: str) -> Iterator[Secured]:
    """Below `folder`, which it makes; gone at the end."""
    folder.mkdir(parents=True)
    config = parse_config({"state_dir": str(folder), "cluster": cluster, "etcd": {"secure": True}}, "a benchmark")
    server = embedded_etcd_of(config)
    try:
        server.start()
        login = login_to_embedded(config, server)
        identity = load_identity(folder / "cluster.key")

        def access(job: str) -> bytes:
            spec = parse_spec({"name": job, "nodes": {"min": 1, "desired": 1, "max": 1}, "run": "train.py"})
            with closing(login.connect()) as etcd:
                users = JobUsers(etcd, Keys(cluster), identity, login.ca_text, lambda: EtcdUse((), (), frozenset()))
                return users.ensure(JobRecord(job, "bench", spec, "", 0.0, 1, 1, 1)).encode()

        yield Secured(server.endpoint, login.connect, access)
    finally:
        server.stop()
