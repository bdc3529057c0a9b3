"""Short-lived SSH certificates: whoever may log in to a node gets one for a key of their own. Pure.

A node's sshd accepts what `Identity.login_ca()` has signed for this node, by a line in its authorized_keys (man 8 sshd,
AUTHORIZED_KEYS FILE FORMAT: cert-authority, principals). The cluster's own key is given to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_key,
)

from provisioners.base import HostKey
from supervisor.errors import UsageError

# sshd looks at it when a session begins; a session that has begun lasts until it ends.
VALID_S = 300.0
# A node's clock may be behind ours by so much.
CLOCK_S = 300.0
MIN_RSA_BITS = 2048
MAX_KEY_CHARACTERS = 4096
_KINDS = frozenset({"ssh-ed25519", "ssh-rsa", *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521))})
_REMEDY = "send one line of a .pub file, such as `ssh-keygen -t ed25519` makes"
# What a session may do. Not in it: X11, agent forwarding, ~/.ssh/rc.
_EXTENSIONS = (b"permit-port-forwarding", b"permit-pty")


@dataclass(frozen=True, slots=True)
class Login:
    """What somebody asks for."""

    # Their own, as in a .pub file.
    public_key: str
    # For the logs of the node.
    who: str
    # UNIX seconds.
    at: float
    # Random, of 63 bits.
    serial: int


PublicKey = Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey


def authorized_line(ca: HostKey, machine: str) -> str:
    """Return the line of authorized_keys that lets in who shows a certificate of `ca` for `machine`."""
    return f'cert-authority,principals="{machine}" {ca.public}'


def public_key(text: str) -> PublicKey:
    """Return the key in one line of a .pub file. Raises UsageError for what is none, or too weak."""
    kind = text.split(" ", 1)[0]
    if kind not in _KINDS or len(text) > MAX_KEY_CHARACTERS or len(text.splitlines()) != 1:
        raise UsageError(f"this is no SSH public key of a type that is accepted: {_REMEDY}")
    try:
        found = load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"this is no SSH public key ({error}): {_REMEDY}") from error
    assert isinstance(found, PublicKey), kind
    if isinstance(found, RSAPublicKey) and found.key_size < MIN_RSA_BITS:
        raise UsageError(f"the RSA key has {found.key_size} bits, and {MIN_RSA_BITS} are needed: {_REMEDY}")
    return found


def certificate(ca: HostKey, key: PublicKey, who: str, machine: str, now: float, serial: int) -> str:
    """Return one line of a -cert.pub file: `key` may log in to `machine` from now on, for VALID_S seconds.

    `who`: appears in the log of the node's sshd. `serial`: a random number of 63 bits, there too.
    """
    builder = (
        SSHCertificateBuilder()
        .public_key(key)
        .serial(serial)
        .type(SSHCertificateType.USER)
        .key_id(who.encode())
        .valid_principals([machine.encode()])
        .valid_after(int(now - CLOCK_S))
        .valid_before(int(now + VALID_S))
    )
    for each in _EXTENSIONS:
        builder = builder.add_extension(each, b"")
    private = load_ssh_private_key(ca.private_openssh.encode(), None)
    signed = builder.sign(private)  # type: ignore[arg-type]  # the CA's is an ed25519 key
    return signed.public_bytes().decode()
