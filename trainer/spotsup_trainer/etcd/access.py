"""What a node needs to use an etcd that has TLS and users: one JSON file, which bootstrap uploads with mode 0600."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotsup_trainer.etcd.client import Etcd, Tls

# Names such a file, for launchers and for plain torchrun.
ACCESS_VARIABLE = "SPOTSUP_ETCD_ACCESS"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class EtcdAccess:
    """`user`: empty for an etcd without users. `ca`: certificates as PEM text; empty: the system's.

    `path`: the file that it is from, "" for none.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)
    path: str = field(default="", compare=False)

    def encode(self) -> bytes:
        """Return the file's content."""
        content = {"user": self.user, "password": self.password, "ca": self.ca}
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()

    def connect(self, endpoints: Sequence[str], timeout_s: float = 5.0) -> Etcd:
        """Return a client, which trusts another CA once its file does. Each endpoint may take `timeout_s` to answer.

        Raises ValueError if `ca` holds no certificate.
        """
        tls = _tls_of(self) if self.ca else None
        try:
            return Etcd(endpoints, user=self.user or None, password=self.password, tls=tls, timeout_s=timeout_s)
        except ssl.SSLError as error:
            raise ValueError(f"the CA certificate of etcd cannot be used: {error}") from error


# For an etcd that asks for nothing.
NO_ACCESS = EtcdAccess()


def read_access(path: str) -> EtcdAccess:
    """Return the access that a file holds, none for "". Raises ValueError: one sentence, without a secret."""
    if not path:
        return NO_ACCESS
    try:
        with Path(path).open("rb") as file:
            parsed = json.loads(file.read(_MAX_BYTES))
        found = EtcdAccess(*(_text(parsed, name) for name in ("user", "password", "ca")))
    except OSError as error:
        raise ValueError(f"the access to etcd cannot be read from {path}: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a file with the access to etcd, as bootstrap writes it") from error
    return replace(found, path=path)


def _tls_of(access: EtcdAccess) -> Tls:
    if not access.path:
        return Tls(ca_text=access.ca)
    return Tls(ca=access.path, read_ca=lambda path: read_access(path).ca)


def access_from(environ: Mapping[str, str]) -> EtcdAccess:
    """As the environment names it. Raises ValueError."""
    return read_access(environ.get(ACCESS_VARIABLE, ""))


def _text(parsed: dict[str, object], name: str) -> str:
    value = parsed.get(name, "")
    if not isinstance(value, str):
        raise TypeError(name)
    return value
