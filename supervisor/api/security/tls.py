"""The certificate with which the API answers over the network: the daemon's own, or one from given files."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from supervisor.config import Config
from supervisor.endpoints import host_of
from supervisor.errors import SpotsupError, StartError
from supervisor.journal.certificates import TlsFiles, ensure_certificates

# How often the files are looked at: another process may renew them.
LOOK_S = 60.0

log = structlog.get_logger("spotsupd")


class Certificate:
    """A context for the server, which takes a renewed certificate for new connections."""

    def __init__(self, cert: Path, key: Path, renew: Callable[[], str] = str) -> None:
        """`renew`: makes what is missing or ends soon. Raises StartError if the files cannot be used."""
        self._cert, self._key, self._renew = cert, key, renew
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_RENEGOTIATION
        self._renew()
        self._seen = self._load()
        self._looked_at = 0.0

    def follow(self, now: float) -> None:
        """Look whether it was renewed, now and then. `now`: seconds of a clock that never goes back."""
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        try:
            self._renew()
            if self._stamp() != self._seen:
                self._seen = self._load()
                log.info("the API has a new certificate", cert=str(self._cert))
        except SpotsupError as error:
            log.warning("the API keeps its old certificate", error=str(error))

    def _load(self) -> tuple[int, int]:
        seen = self._stamp()
        try:
            self.context.load_cert_chain(self._cert, self._key)
        except OSError as error:  # SSLError is one, too
            raise StartError(f"api.cert and api.key ({self._cert}, {self._key}) cannot be used: {error}") from error
        return seen

    def _stamp(self) -> tuple[int, int]:
        try:
            return self._cert.stat().st_mtime_ns, self._key.stat().st_mtime_ns
        except OSError as error:
            raise StartError(f"api.cert and api.key: {error.filename} cannot be read: {error.strerror}") from error


def own_files(config: Config) -> TlsFiles:
    """Return the daemon's own CA for the API, and its certificate."""
    return TlsFiles(config.state / "api")


def certificate_of(config: Config, host_name: str) -> Certificate:
    """Return the certificate for `api.listen`. `host_name`: of this computer. Raises StartError."""
    if config.api.cert:
        return Certificate(Path(config.api.cert), Path(config.api.key))
    files, names = own_files(config), names_of(config, host_name)
    return Certificate(files.cert, files.key, lambda: ensure_certificates(files, names, dt.datetime.now(dt.UTC)))


def names_of(config: Config, host_name: str) -> Sequence[str]:
    """Return the names beside loopback that the daemon's own certificate is for."""
    host = host_of(config.api.listen)
    given = () if host in {"0.0.0.0", "::", ""} else (host,)  # noqa: S104 - nothing is bound here
    return tuple(dict.fromkeys([*given, *config.api.names, *([host_name] if host_name else [])]))


def own_ca(config: Config) -> str:
    """Return the CA of the daemon's own certificate, as PEM text; "" where files were given."""
    return "" if config.api.cert else own_files(config).ca.read_text()
