"""Secrets of users: sealed with a key that follows from `cluster.key`, each bound to its cluster, owner and name. Pure.

etcd, exports and backups have sealed values alone: who moves one to another name or owner cannot have it opened there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from supervisor.errors import CommandRefusedError, UsageError

MAX_BYTES = 16 * 1024  # of a value; Linux takes 128 KiB for a variable
MAX_OF_OWNER = 100
NONCE_BYTES = 12
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """A secret as it is stored."""

    name: str
    owner: str
    # Nonce and ciphertext, base64.
    sealed: str = field(repr=False)
    created_at: float
    changed_at: float


def check_name(name: str) -> str:
    """Return a secret's name. Raises ValueError unless it can be a variable's."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:100]!r} is no name of a secret: up to 100 letters, digits and _, no digit first, as of a variable"
        )
    return name


def check_value(name: str, value: str) -> bytes:
    """Return a secret's value as bytes. Raises UsageError, which does not say it."""
    data = value.encode(errors="ignore")
    if not data or len(data) > MAX_BYTES or b"\0" in data or data.decode() != value:
        what = "is empty" if not value else f"has {len(data)} bytes" if len(data) > MAX_BYTES else "is no such text"
        raise UsageError(f"the value of {name} {what}: 1 to {MAX_BYTES} bytes of text without NUL can be a secret")
    return data


def seal(key: bytes, nonce: bytes, cluster: str, record: SecretRecord, value: bytes) -> SecretRecord:
    """Return the record with a value. `nonce`: NONCE_BYTES that were never used before."""
    sealed = AESGCM(key).encrypt(nonce, value, _bound_to(cluster, record))
    text = base64.b64encode(nonce + sealed).decode()
    return SecretRecord(record.name, record.owner, text, record.created_at, record.changed_at)


def opened(key: bytes, cluster: str, record: SecretRecord) -> str:
    """Return a secret's value. Raises CommandRefusedError if it was sealed with another key, or for another place."""
    try:
        raw = base64.b64decode(record.sealed, validate=True)
        return AESGCM(key).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _bound_to(cluster, record)).decode()
    except (InvalidTag, ValueError):
        raise CommandRefusedError(
            f"the secret {record.name} of {record.owner} cannot be read with this installation's cluster.key: "
            f"{record.owner} sets it again (`spotsupctl secret set {record.name}`)"
        ) from None


def values_of(
    key: bytes, cluster: str, owner: str, names: Iterable[str], stored: Iterable[SecretRecord]
) -> Mapping[str, str]:
    """Return the values of an owner's secrets by name. Raises CommandRefusedError if one is missing, or cannot be
    read."""
    known = {each.name: each for each in stored if each.owner == owner}
    if missing := [name for name in names if name not in known]:
        raise CommandRefusedError(missing_because(owner, missing))
    return {name: opened(key, cluster, known[name]) for name in names}


def missing_because(owner: str, missing: list[str]) -> str:
    """Return that an owner has no such secrets, and what to do."""
    first, *more = missing
    others = f", nor {', '.join(more)}" if more else ""
    return f"{owner or 'its owner, who is not known,'} has no secret {first}{others}: `spotsupctl secret set {first}`"


def _bound_to(cluster: str, record: SecretRecord) -> bytes:
    """Return what a value is bound to. None of the three has a NUL character."""
    return f"spotsup secret\0{cluster}\0{record.owner}\0{record.name}".encode()
