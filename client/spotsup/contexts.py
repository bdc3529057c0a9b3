"""Where the daemon is: a Unix socket, or an address with a token, as `spotsupctl login` keeps it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from spotsup.errors import CommandRefusedError, NotFoundError, UsageError

# The name of the Unix socket, beside those of contexts.
SOCKET = "socket"
DEFAULT_PORT = 8443


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Contexts:
    """All of a user, and which one is used."""

    found: Mapping[str, Context]
    current: str = SOCKET

    def get(self, name: str) -> Context | None:
        """Return one of them, None for the Unix socket. Raises NotFoundError."""
        if name == SOCKET:
            return None
        if name not in self.found:
            known = ", ".join([SOCKET, *sorted(self.found)])
            raise NotFoundError(f"there is no context {name!r}: {known}; `spotsupctl login` makes one")
        return self.found[name]


def default_daemon(context: str | None = None) -> Path | Context:
    """Return the daemon of a context, or else what this user's environment and `spotsupctl login` say.

    Raises SpotsupError.
    """
    if context is None and (socket := os.environ.get("SPOTSUP_SOCKET")):
        return Path(socket)
    kept = load(file_of_user())
    return kept.get(context or os.environ.get("SPOTSUP_CONTEXT") or kept.current) or _default_socket()


def _default_socket() -> Path:
    # As in supervisor.config.
    own = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "spotsup"
    return default_socket(Path("/var/lib/spotsup"), own, root=hasattr(os, "geteuid") and os.geteuid() == 0)


def default_socket(host: Path, own: Path, *, root: bool) -> Path:
    """Return the daemon's socket below one of two state folders: the host's for root, and for users without a daemon of
    their own where the host has one."""
    folder = host if root or (host.is_dir() and not own.is_dir()) else own
    return folder / "spotsupd.sock"


def file_of_user() -> Path:
    """Return where contexts are kept (XDG base directories)."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "spotsup" / "contexts.json"


def load(file: Path) -> Contexts:
    """Read contexts; none without the file. Raises CommandRefusedError if others can read it, UsageError."""
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


def checked_url(text: str) -> str:
    """Return `https://host:port` as it is kept. Raises UsageError: a token is sent over nothing else."""
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
    """Return a certificate's fingerprint, as people compare it. Raises UsageError."""
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
    """Return how the daemon of a context is verified. Raises UsageError."""
    try:
        made = ssl.create_default_context(cadata=context.ca or None)
    except (ValueError, ssl.SSLError) as error:
        raise UsageError(
            f"the CA of {context.name} cannot be read ({error}): it is the text of a PEM file; "
            f"`spotsupctl login {context.url}` fetches it"
        ) from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = not context.own_ca
    return made
