"""Connections to etcd, for the daemon and for commands that run beside it."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from spotsup_trainer.etcd import Etcd, Tls

from supervisor.config import Config
from supervisor.errors import StartError
from supervisor.identity import load_identity
from supervisor.journal.certificates import TlsFiles, certificates_in, ensure_certificates, names_in
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.journal.users import enable_users

# Of the daemon, in an embedded etcd with users.
DAEMON_USER = "spotsupd"


@dataclass(frozen=True, slots=True)
class EtcdLogin:
    """How this computer reaches etcd, and where nodes do."""

    endpoints: tuple[str, ...]
    node_endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    def connect(self, timeout_s: float = 5.0) -> Etcd:
        """Return a client. Each endpoint may take `timeout_s` to answer. Raises StartError if a file cannot be used."""
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path and not os.access(path, os.R_OK):
                why = "cannot be read" if Path(path).exists() else "does not exist"
                raise StartError(f"etcd.{name} names {path}, which {why}: correct it, or give the daemon's user access")
        try:
            tls = Tls(self.ca, self.cert or None, self.key or None) if self.ca else None
            return Etcd(self.endpoints, user=self.user or None, password=self.password, tls=tls, timeout_s=timeout_s)
        except OSError as error:  # SSLError is one, too
            raise StartError(f"etcd.ca, etcd.cert and etcd.key cannot be used: {error}") from error

    def anonymous(self) -> EtcdLogin:
        """Return the same without a user."""
        return replace(self, user="", password="")

    def ca_text(self) -> str:
        """Return the CA for nodes, "" for the system's. Raises StartError."""
        try:
            return Path(self.ca).read_text() if self.ca else ""
        except (OSError, ValueError) as error:
            raise StartError(f"etcd.ca names {self.ca}, which cannot be read: {error}") from error

    @property
    def tls(self) -> bool:
        """True if its connections are encrypted."""
        return any(endpoint.startswith("https:") for endpoint in self.endpoints)


def login_of(config: Config) -> EtcdLogin:
    """To the etcd that the configuration names. Raises UsageError."""
    etcd = config.etcd
    return EtcdLogin(
        endpoints=etcd.endpoints,
        node_endpoints=etcd.node_endpoints or etcd.endpoints,
        user=etcd.user,
        password=config.etcd_password(),
        ca=etcd.ca,
        cert=etcd.cert,
        key=etcd.key,
    )


def embedded_etcd_of(config: Config) -> EmbeddedEtcd:
    """Return the etcd in the state folder, not started. With `etcd.secure` its certificates are made, or renewed."""
    folder = config.state / "etcd"
    if not config.etcd.secure:
        return EmbeddedEtcd(folder)
    renew_certificates(config)
    return EmbeddedEtcd(folder, tls=tls_files(config), listen=config.etcd.listen)


def renew_certificates(config: Config) -> str:
    """Renew the certificates of an embedded etcd: what is missing is made, and what ends soon. Returns what was done,
    or ""."""
    return ensure_certificates(tls_files(config), certified_names(config), dt.datetime.now(dt.UTC))


def renewal(config: Config, *, embedded: bool) -> Callable[[], str] | None:
    """Return what renews etcd's certificate where this daemon has the key of its CA; None where others do."""
    if embedded:
        return partial(renew_certificates, config) if config.etcd.secure else None
    files = TlsFiles(Path(config.etcd.ca).parent)
    if Path(config.etcd.ca) != files.ca or not all(os.access(each, os.R_OK) for each in (files.ca_key, files.cert)):
        return None
    return partial(_renew_here, files)


def _renew_here(files: TlsFiles) -> str:
    (known,) = certificates_in(files.cert)
    return ensure_certificates(files, names_in(known), dt.datetime.now(dt.UTC))


def tls_files(config: Config) -> TlsFiles:
    """Return the TLS files of an embedded etcd."""
    return TlsFiles(config.state / "etcd" / "tls")


def certified_names(config: Config) -> tuple[str, ...]:
    """Return the names beside loopback under which nodes reach an embedded etcd."""
    urls = [*config.etcd.node_endpoints, *([f"https://{config.etcd.listen}"] if config.etcd.listen else [])]
    found = (urlsplit(url).hostname or "" for url in urls)
    return tuple(dict.fromkeys(name for name in found if name not in {"", "0.0.0.0", "::"}))  # noqa: S104 - no binding


def login_to_embedded(config: Config, server: EmbeddedEtcd) -> EtcdLogin:
    """To the embedded etcd, which has to run. With `etcd.secure` it has users from now on. Raises StartError."""
    nodes = config.etcd.node_endpoints or (server.node_endpoint,)
    if not config.etcd.secure:
        return EtcdLogin((server.endpoint,), nodes)
    ca = str(tls_files(config).ca)
    password = load_identity(config.state / "cluster.key").etcd_password(DAEMON_USER)
    login = EtcdLogin((server.endpoint,), nodes, DAEMON_USER, password, ca)
    with (
        contextlib.closing(login.anonymous().connect()) as anonymous,
        contextlib.closing(login.connect()) as known,
    ):
        enable_users(anonymous, known, DAEMON_USER, password)
    return login


@contextlib.contextmanager
def open_etcd(config: Config, *, embedded_etcd: bool) -> Iterator[Etcd]:
    """etcd for a command beside the daemon. An embedded etcd that does not run is started meanwhile."""
    with contextlib.ExitStack() as stack:
        if embedded_etcd:
            server = embedded_etcd_of(config)
            if not server.alive:
                stack.enter_context(state_lock(config.state))
                stack.callback(server.stop)
            server.start()
            login = login_to_embedded(config, server)
        else:
            login = login_of(config)
        etcd = login.connect()
        stack.callback(etcd.close)
        yield etcd


@contextlib.contextmanager
def state_lock(state: Path) -> Iterator[None]:
    """Hold the lock of the state folder: one daemon per folder."""
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (state / "lock").open("a")
    except OSError as error:
        raise StartError(f"the state folder {state} cannot be used ({error.strerror}): set state_dir") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(
                f"another spotsupd uses the state folder {state}: stop it, or set another state_dir"
            ) from error
        yield
