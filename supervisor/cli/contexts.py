"""Where `spotsupctl` finds its daemon: a Unix socket, or an address with a token, kept by `spotsupctl login`."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from supervisor.errors import CommandRefusedError, NotFoundError, UsageError
from supervisor.files import replace_file

# The name of the Unix socket, beside those of contexts.
SOCKET = "socket"
DEFAULT_PORT = 8443


@dataclass(frozen=True, slots=True)
class Context:
    """A daemon over the network."""

    name: str
    url: str
    user: str
    token: str = field(repr=False)
    # By which CAs its certificate is verified, as PEM text; "": the system's.
    ca: str = ""
    # `ca` is the daemon's own and signs nothing else, so that the certificate's names do not matter.
    own_ca: bool = False


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of a user, and which one is used."""

    found: dict[str, Context]
    current: str = SOCKET

    def get(self, name: str) -> Context | None:
        """None for the Unix socket. Raises NotFoundError."""
        if name == SOCKET:
            return None
        if name not in self.found:
            known = ", ".join([SOCKET, *sorted(self.found)])
            raise NotFoundError(f"there is no context {name!r}: {known}; `spotsupctl login` makes one")
        return self.found[name]


def file_of_user() -> Path:
    """Where they are kept (XDG base directories)."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "spotsup" / "contexts.json"


def load(file: Path) -> Contexts:
    """What is kept in a file; nothing without one. Raises CommandRefusedError if others can read it, UsageError."""
    try:
        with file.open() as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & 0o077:
                raise CommandRefusedError(f"{file} has tokens, and others can read it (mode {mode:o}): `chmod 600` it")
            raw = json.load(opened)
        found = {name: Context(name, **row) for name, row in raw["contexts"].items()}
        return Contexts(found, str(raw["current"]))
    except FileNotFoundError:
        return Contexts({})
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} is damaged: delete it, then `spotsupctl login` again") from error


def save(file: Path, contexts: Contexts) -> None:
    """Write them, readable by their user alone. Raises UsageError."""
    rows: dict[str, Any] = {}
    for name, each in contexts.found.items():
        rows[name] = asdict(each)
        del rows[name]["name"]
    text = json.dumps({"current": contexts.current, "contexts": rows}, indent=2) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(file, text.encode(), 0o600)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


def checked_url(text: str) -> str:
    """`https://host:port` as it is kept. Raises UsageError: a token is sent over nothing else."""
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise UsageError(f"{text!r} is no address: {error}") from error
    if parts.scheme != "https":
        raise UsageError(f"{text!r} is not https: a token is sent over nothing else")
    if not parts.hostname or parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(f"{text!r} is no address of a daemon: write https://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}:{port}"


def fingerprint(pem: str) -> str:
    """Of a certificate, as people compare it. Raises UsageError."""
    try:
        if pem.count("-----BEGIN CERTIFICATE-----") != 1:
            raise ValueError("it is not one certificate")
        der = ssl.PEM_cert_to_DER_cert(pem.strip())
        if not der:
            raise ValueError("it is empty")
        ssl.create_default_context(cadata=der)
    except (ValueError, ssl.SSLError) as error:
        raise UsageError(f"the daemon's CA cannot be read: {error}") from error
    return f"SHA256:{base64.b64encode(hashlib.sha256(der).digest()).decode().rstrip('=')}"


def tls_of(context: Context) -> ssl.SSLContext:
    """By which its daemon is verified. Raises UsageError."""
    try:
        made = ssl.create_default_context(cadata=context.ca or None)
    except (ValueError, ssl.SSLError) as error:
        raise UsageError(f"the CA of {context.name} cannot be read: `spotsupctl login {context.url}` again") from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = not context.own_ca
    return made
