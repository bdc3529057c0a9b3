"""SSH keys, and the key of users' secrets, all derived from one secret: none is stored, and a standby derives the same.

A node's SSH host key exists before the node and is passed in at launch, so that even the first connection is verified.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from provisioners.base import HostKey, Owner
from supervisor.errors import StartError
from supervisor.logins import authorized_line

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The secret that all keys of this cluster are derived from."""

    secret: bytes = field(repr=False)

    def host_key(self, node: str) -> HostKey:
        """Return the SSH host key of a node. It never changes, so that a repeated launch request is the same
        request."""
        return _openssh_pair(self._derive(f"host-key:{node}"), node)

    def client_key(self) -> HostKey:
        """Return the key with which the daemon logs in to nodes."""
        return _openssh_pair(self._derive("client-key"), "spotsupd")

    def login_ca(self) -> HostKey:
        """Return the key that signs the certificates with which people log in to nodes."""
        return _openssh_pair(self._derive("login-ca"), "spotsupd-logins")

    def authorized_keys(self, node: str) -> tuple[str, ...]:
        """Return who may log in to a new node, as sshd reads it: the daemon, and who shows a certificate for it."""
        return self.client_key().public, authorized_line(self.login_ca(), node)

    def etcd_password(self, user: str) -> str:
        """Return the password of a user of etcd: none is stored, and a standby knows it, too."""
        return self._derive(f"etcd:{user}").hex()

    def secrets_key(self) -> bytes:
        """Return the key that seals users' secrets: 32 bytes, of which a standby knows the same."""
        return self._derive("secrets")

    @property
    def mark(self) -> str:
        """Return what identifies the secret without revealing it."""
        return self._derive("mark").hex()[:16]

    def owner(self, cluster: str) -> Owner:
        """Return how all that this installation creates in an account is tagged."""
        return Owner(cluster, self.mark)

    def _derive(self, purpose: str) -> bytes:
        return hmac.new(self.secret, purpose.encode(), hashlib.sha256).digest()


def load_identity(path: Path) -> Identity:
    """Read the secret, or create it on first use. Raises StartError if its file mode or length is wrong."""
    if not path.exists():
        # link() is atomic, and succeeds once only: another daemon may start at the same time.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    return _read(path)


def _read(path: Path) -> Identity:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise StartError(f"{path} is readable by others (mode {mode:o}): `chmod 600` it")
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise StartError(f"{path} holds {len(secret)} bytes instead of {SECRET_BYTES}; restore it from a backup")
    return Identity(secret)


def _openssh_pair(seed: bytes, comment: str) -> HostKey:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    raw = private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    blob = _string(b"ssh-ed25519") + _string(public)
    text = f"ssh-ed25519 {base64.b64encode(blob).decode()}"
    return HostKey(text, _openssh_private(raw, public, blob, comment))


def _openssh_private(raw: bytes, public: bytes, blob: bytes, comment: str) -> str:
    """Return the openssh-key-v1 container: https://cvsweb.openbsd.org/src/usr.bin/ssh/PROTOCOL.key

    Not written by `cryptography`, whose check number is random: the same key must give the same bytes.
    """
    check = hashlib.sha256(raw).digest()[:4]
    body = check + check + blob + _string(raw + public) + _string(comment.encode())
    body += bytes(range(1, (-len(body)) % 8 + 1))
    nothing = _string(b"none") + _string(b"none") + _string(b"")
    whole = b"openssh-key-v1\0" + nothing + struct.pack(">I", 1) + _string(blob) + _string(body)
    encoded = base64.b64encode(whole).decode()
    lines = [encoded[begin : begin + 70] for begin in range(0, len(encoded), 70)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
